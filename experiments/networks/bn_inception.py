"""BN-Inception in the layer naming of the published file bn_inception-52deb4733.pth.

Paper      Ioffe and Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate
           Shift", ICML 2015 (architecture in the appendix). The weights are a Caffe model ported to PyTorch; the deep
           metric learning papers that say "BN-Inception" or "IBN" start from them.
Input      BGR, 0-255, minus (104, 117, 128) per channel; 1024 feature maps of 1/32 of the side.
Deviations BatchNorm momentum is 0.9, so the running statistics nearly are the last batch's, as in the ProxyAnchor code
           (Caffe's decay read as PyTorch's update rate). It matters only where BatchNorm is not frozen (SOP, In-Shop).
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The file name carries the first nine digits of its SHA-256, which torch.hub verifies after a download.
URL = "https://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"

STEM = {"conv1": ("conv1_7x7_s2",), "conv2": ("conv2_3x3_reduce", "conv2_3x3")}
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


class BNInception(nn.Module):
    """Feature maps (B, 1024, H/32, W/32) of normalised float images (B, 3, H, W).

    H and W are multiples of 32, give or take a few pixels (224, 227): elsewhere the branches of a module that halves
    the side disagree by a pixel (ValueError). `last_linear` is the published classifier; `forward` stops before it.
    """

    def __init__(self, num_classes: int = 1000):
        super().__init__()
        self._conv("conv1_7x7_s2", 3, 64, 7, stride=2)
        self._conv("conv2_3x3_reduce", 64, 64, 1)
        self._conv("conv2_3x3", 64, 192, 3)
        width = 192
        for name, (single, (reduce, triple), (double_reduce, double), (_, projection)) in MODULES.items():
            module, stride = f"inception_{name}", 1 if single else 2
            if single:
                self._conv(f"{module}_1x1", width, single, 1)
            self._conv(f"{module}_3x3_reduce", width, reduce, 1)
            self._conv(f"{module}_3x3", reduce, triple, 3, stride)
            self._conv(f"{module}_double_3x3_reduce", width, double_reduce, 1)
            self._conv(f"{module}_double_3x3_1", double_reduce, double, 3)
            self._conv(f"{module}_double_3x3_2", double, double, 3, stride)
            if projection:
                self._conv(f"{module}_pool_proj", width, projection, 1)
            width = (single or 0) + triple + double + (projection or width)
        self.last_linear = nn.Linear(width, num_classes)
        # {block: the first of its layers}, those that `forward` goes through
        first = {name: "1x1" if single else "3x3_reduce" for name, (single, *_) in MODULES.items()}
        self.blocks = {name: layers[0] for name, layers in STEM.items()}
        self.blocks |= {f"inception_{name}": f"inception_{name}_{layer}" for name, layer in first.items()}

    def beginning(self, layer: str) -> "BNInception":
        """The part of the network from the block on whose first layer this is; the layers are the same."""
        part = copy.copy(self)
        layers, firsts = list(self._modules), list(self.blocks.values())
        part._modules = {name: self._modules[name] for name in layers[layers.index(layer) :]}
        part.blocks = dict(list(self.blocks.items())[firsts.index(layer) :])
        return part

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for block in self.blocks:
            x = _halve(self._run(x, *STEM[block])) if block in STEM else self._inception(block, x)
            if block == "conv2" and (x.shape[-2] % 4 or x.shape[-1] % 4):
                raise ValueError(
                    f"images of {images.shape[-2]} x {images.shape[-1]} pixels do not fit BN-Inception; "
                    "take sides that are multiples of 32 (or 227)"
                )
        return x

    def _inception(self, module: str, x: Tensor) -> Tensor:
        single, _, _, (pool, projection) = MODULES[module.removeprefix("inception_")]
        branches = [self._run(x, f"{module}_1x1")] if single else []
        branches.append(self._run(x, f"{module}_3x3_reduce", f"{module}_3x3"))
        branches.append(self._run(x, *(f"{module}_double_3x3_{part}" for part in ("reduce", "1", "2"))))
        if projection:
            pooling = F.avg_pool2d if pool == "avg" else F.max_pool2d
            branches.append(self._run(pooling(x, 3, stride=1, padding=1), f"{module}_pool_proj"))
        else:
            branches.append(_halve(x))
        return torch.cat(branches, dim=1)

    def _conv(self, name: str, width: int, out: int, kernel: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(width, out, kernel, stride, padding=kernel // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(out, momentum=0.9))

    def _run(self, x: Tensor, *names: str) -> Tensor:
        """Convolution, BatchNorm and ReLU of the named layers in turn."""
        for name in names:
            x = F.relu(self.get_submodule(f"{name}_bn")(self.get_submodule(name)(x)), inplace=True)
        return x


def _halve(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, stride=2, ceil_mode=True)
