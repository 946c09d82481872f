"""BN-Inception, which neither torchvision nor timm has.

Paper      Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate
           Shift", ICML 2015 (architecture in the appendix). The weights are a Caffe model ported to PyTorch; the deep
           metric learning papers that say "BN-Inception" or "IBN" start from them.
Input      BGR, 0-255, minus (104, 117, 128) per channel; 1024 feature maps of 1/32 of the side.
Deviations BatchNorm momentum is 0.9, so the running statistics nearly are the last batch's, as in the ProxyAnchor code
           (Caffe's decay read as PyTorch's update rate). It matters only where BatchNorm is not frozen (SOP, In-Shop).
"""

import itertools
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

# The file name carries the first nine digits of its SHA-256, which torch.hub verifies after a download.
URL = "https://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"

# Widths of each module: branch 1x1; branch 3x3 (reduction, output); branch of two 3x3 (reduction, both outputs);
# pooling branch (kind, projection). Without a 1x1 branch the module halves the side and passes its pooled input on.
MODULES = {
    "3a": (64, (64, 64), (64, 96), ("avg", 32)),
    "3b": (64, (64, 96), (64, 96), ("avg", 64)),
    "3c": (None, (128, 160), (64, 96), ("max", None)),
    "4a": (224, (64, 96), (96, 128), ("avg", 128)),
    "4b": (192, (96, 128), (96, 128), ("avg", 128)),
    "4c": (160, (128, 160), (128, 160), ("avg", 128)),
    "4d": (96, (128, 192), (160, 192), ("avg", 128)),
    "4e": (None, (128, 192), (192, 256), ("max", None)),
    "5a": (352, (192, 320), (160, 224), ("avg", 128)),
    "5b": (352, (192, 320), (192, 224), ("max", 128)),
}
Pair = tuple[int, int]


def _layer(name: str, width: int, out: int, kernel: int, stride: int = 1) -> dict[str, nn.Module]:
    """Convolution, BatchNorm and ReLU."""
    conv = nn.Conv2d(width, out, kernel, stride, padding=kernel // 2)
    return {name: conv, f"{name}_bn": nn.BatchNorm2d(out, momentum=0.9), f"{name}_relu": nn.ReLU(inplace=True)}


class Inception(nn.Module):
    """Branches of layers beside one another, whose outputs are joined. `out` is their number of channels."""

    def __init__(self, width: int, single: int | None, triple: Pair, double: Pair, pooling: tuple):
        super().__init__()
        stride, (kind, projection) = 1 if single else 2, pooling
        branches = [_layer("1x1", width, single, 1)] if single else []
        branches.append(_layer("3x3_reduce", width, triple[0], 1) | _layer("3x3", *triple, 3, stride))
        double_branch = _layer("double_3x3_reduce", width, double[0], 1) | _layer("double_3x3_1", *double, 3)
        branches.append(double_branch | _layer("double_3x3_2", double[1], double[1], 3, stride))
        branches.append(_layer("pool_proj", width, projection, 1) if projection else {})
        for name, module in itertools.chain(*(branch.items() for branch in branches)):
            self.add_module(name, module)
        if projection:
            self.pool = nn.AvgPool2d(3, 1, 1) if kind == "avg" else nn.MaxPool2d(3, 1, 1)
        else:
            self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.branches = [[*branch] for branch in branches]  # the last one follows the pooling
        self.out = (single or 0) + triple[1] + double[1] + (projection or width)

    def forward(self, x: Tensor) -> Tensor:
        outputs = [x] * (len(self.branches) - 1) + [self.pool(x)]
        for branch, names in enumerate(self.branches):
            for name in names:
                outputs[branch] = self.get_submodule(name)(outputs[branch])
        return torch.cat(outputs, dim=1)


class BNInception(nn.Sequential):
    """Feature maps (B, 1024, H/32, W/32) of normalised float images (B, 3, H, W), without the published classifier.

    H and W are multiples of 32, give or take a few pixels (224, 227): elsewhere the branches of a module that halves
    the side disagree by a pixel (ValueError).
    """

    def __init__(self) -> None:
        stem = {"conv1": _layer("7x7_s2", 3, 64, 7, stride=2)}
        stem["conv2"] = _layer("3x3_reduce", 64, 64, 1) | _layer("3x3", 64, 192, 3)
        halved = {"pool": nn.MaxPool2d(3, 2, ceil_mode=True)}
        blocks: dict[str, Any] = {name: nn.Sequential(OrderedDict(layers | halved)) for name, layers in stem.items()}
        width = 192
        for name, widths in MODULES.items():
            blocks[f"inception_{name}"] = module = Inception(width, *widths)
            width = module.out
        super().__init__(OrderedDict(blocks))

    def forward(self, images: Tensor) -> Tensor:
        maps = self[1](self[0](images))
        if maps.shape[-2] % 4 or maps.shape[-1] % 4:
            raise ValueError(
                f"images of {images.shape[-2]} x {images.shape[-1]} pixels do not fit BN-Inception; "
                "take sides that are multiples of 32 (or 227)"
            )
        for module in list(self)[2:]:
            maps = module(maps)
        return maps


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The published state dict under the names of `BNInception`, without its classifier. That file says
    "inception_3a_1x1" for "inception_3a.1x1", and has vectors (n,) as (1, n)."""
    state = {re.sub(r"^(conv\d|inception_\d\w)_", r"\1.", name): values for name, values in state.items()}
    layers = {name: values for name, values in state.items() if not name.startswith("last_linear.")}
    return {name: values.squeeze(0) if values.ndim == 2 else values for name, values in layers.items()}
