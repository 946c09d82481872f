"""Backbones: uint8 images in, raw embeddings out.

A name of CATALOGUE says exactly which network and which published weights are meant.
Preprocessing belongs to the network: `forward` takes uint8 (B, C, H, W), scales, normalises and repeats grey channels.
"""

import copy
import functools
import itertools
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import MethodType
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight
from torch.nn.modules.batchnorm import _BatchNorm

from experiments.checks import refuse_unknown
from experiments.files import data_root, sha256_once
from experiments.networks import bn_inception

# sha256 of files without a published checksum with which the committed results were made. Torch's own files carry the
# first eight digits of theirs in their names.
KNOWN_WEIGHTS = {
    "squeezenet1_1_in1k.safetensors": "102fa02ec826921aae2c3408f9f154381a466f8210fead01b8aa941ee607e4e8",
    "mobilenet_v2_in1k_features.safetensors": "db307f0f59caa1fed268532af80a847a543d5c121559de7b36a1e3e86d9cf60b",
}
# weights="symbols" of conv4: trained by workflow/pretrain.py to tell signs apart that are not among the glyphs
SYMBOLS = Path(__file__).with_name("conv4_symbols.safetensors")
CLASSIFIERS = ("aux1", "aux2", "avgpool", "classifier", "dropout", "fc")  # children beside and behind the feature maps
POOLINGS = ("avg", "avg+max", "token")

CATALOGUE = {  # the networks of the five papers and of our own profiles: name -> library
    "conv4": "own",  # profiles quick and small; weights="symbols" are in this package
    "squeezenet1_1": "torchvision",  # profile small; "imagenet" are the IMAGENET1K_V1 of all from torchvision
    "mobilenet_v2": "torchvision",  # profile small
    "bn_inception": "own",  # pfml, nivmf, meanfield, ccp
    "resnet50.tv_in1k": "timm",  # pfml, nivmf, ccp; timm's names end in the tag of their weights
    "googlenet": "torchvision",  # plm
    "vit_small_patch16_224.augreg_in21k": "timm",  # pfml (ViT)
    "vit_small_patch16_224.dino": "timm",  # pfml (DINO)
    "vit_base_patch16_224.augreg_in21k": "timm",  # meanfield (Table 14)
    "resnetv2_20": "own",  # ccp (MNIST); without published weights
    "resnet50": "torchvision",  # costs of pfml and nivmf
    "resnet18": "torchvision",
}


class Preprocess(NamedTuple):
    """What a network expects: (pixel * scale - mean) / std per channel, in the order RGB or (bgr) BGR; crop: the side
    in pixels at test time, None: any."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 1 / 255
    bgr: bool = False
    crop: int | None = 224


class EmbeddingNet(nn.Module):
    """A trunk, a global pooling and a linear head; the embeddings are not normalised, that is the loss's business.

    Args:
        trunk: maps normalised float images to feature maps (B, F, h, w) or tokens (B, N, F).
        embedding_size: D of the linear head; None: no head, and the embedding is the F pooled features.
        pooling: over positions "avg" or "avg+max" (the SUM of average and maximum, as in the ProxyAnchor code); or
            "token", the class token of a transformer, which the other two leave out.
    """

    def __init__(self, trunk: nn.Module, embedding_size: int | None, preprocess: Preprocess, pooling: str = "avg"):
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
        self.trunk = trunk
        self.pool = Pool(pooling, trunk)
        self.preprocess = preprocess
        scale = torch.tensor([preprocess.scale / s for s in preprocess.std]).view(1, -1, 1, 1)
        offset = torch.tensor([-m / s for m, s in zip(preprocess.mean, preprocess.std)]).view(1, -1, 1, 1)
        self.input_scale, self.input_offset = (nn.Buffer(values, persistent=False) for values in (scale, offset))
        self.num_features = self._probe_width()
        self.embedding_size = embedding_size or self.num_features
        self.head = nn.Identity() if embedding_size is None else nn.Linear(self.num_features, embedding_size)

    def forward(self, images: Tensor) -> Tensor:
        """uint8 images (B, C, H, W) -> raw embeddings (B, D)."""
        return self.head(self.pool(self.trunk(self._normalise(images))))

    def _normalise(self, images: Tensor) -> Tensor:
        channels = len(self.preprocess.mean)
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, channels):
            raise ValueError(
                f"images must be uint8 of shape (B, {channels} or 1, H, W), unnormalised, "
                f"got {images.dtype} of shape {tuple(images.shape)}"
            )
        if self.preprocess.bgr:
            images = images.flip(1)
        images = images.expand(-1, channels, -1, -1)
        return images.to(self.input_scale.dtype).mul(self.input_scale).add_(self.input_offset)

    @torch.no_grad()
    def _probe_width(self) -> int:
        """Width of the pooled features, found by shape inference on the meta device: no arithmetic."""
        side = self.preprocess.crop or 32
        image = torch.empty(1, len(self.preprocess.mean), side, side, device="meta")
        maps = copy.deepcopy(self.trunk).to("meta").eval()(image)
        if self.pool.kind == "token" and not self.pool.prefix_tokens:
            raise ValueError("pooling='token' needs a transformer with a class token; use 'avg' or 'avg+max'")
        return self.pool(maps).shape[1]


class Pool(nn.Module):
    """Feature maps (B, F, h, w) or tokens (B, N, F) of a trunk -> features (B, F); kind: one of POOLINGS."""

    def __init__(self, kind: str, trunk: nn.Module):
        super().__init__()
        self.kind = kind
        self.prefix_tokens: int = getattr(trunk, "num_prefix_tokens", 0)

    def forward(self, maps: Tensor) -> Tensor:
        if self.kind == "token":
            return maps[:, 0]
        maps = maps[:, self.prefix_tokens :].transpose(1, 2) if maps.ndim == 3 else maps.flatten(2)
        mean = maps.mean(-1)
        return mean + maps.amax(-1) if self.kind == "avg+max" else mean


def build(
    name: str,
    embedding_size: int | None,
    *,
    pooling: str = "avg",
    weights: str | Path | None = None,
    in_channels: int = 3,
    seed: int = 0,
) -> EmbeddingNet:
    """The network `name` (see the head of this file) with a linear embedding head; sizes as in `EmbeddingNet`.

    Args:
        weights: None draws them from `seed`; "imagenet" takes the published ones (from `<data root>/weights` if a file
            is there, otherwise the library's own download); "symbols" those that this package has of conv4 for grey
            images; anything else is the path of a .safetensors or .pth file with the state dict of the complete network
            as published, classifier included.
        in_channels: how many the images have, 1 or 3. Only conv4 and resnetv2_20 have a first layer for 1; the others
            repeat grey images.
        seed: of the random weights, those of the head also when the trunk is pretrained.

    Raises ValueError for an unknown name (with the closest ones) or pooling and weights that do not fit, and
    FileNotFoundError for a weight file that is not there.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        trunk, preprocess = build_trunk(name, weights, in_channels)
        torch.default_generator.manual_seed(seed)  # so the head does not depend on how the trunk got its weights
        net = EmbeddingNet(trunk, embedding_size, preprocess, pooling)
    # Channels-last weights make every convolution run in that layout: on a CPU two thirds to half of the time.
    return net.to(memory_format=torch.channels_last)


class Tail(nn.Sequential):
    """A network from a block on: activations, what enters that block, -> raw embeddings (B, D).

    Its modules are those of the network, under their names, so that a state dict of a tail is a part of the network's.
    block: one of `blocks`, or "head".
    """

    trunk: nn.Module
    head: nn.Module

    def __init__(self, network: EmbeddingNet, name: str, block: str):
        self.first = check_block(name, block)
        super().__init__(OrderedDict(trunk=nn.Identity()) | _from(network, self.first))  # a head has no trunk
        self.embedding_size = network.embedding_size
        self.train(network.training)


Network = EmbeddingNet | Tail  # what a run trains


class _Reached(Exception):
    """What enters a module."""


def entering(network: nn.Module, path: str, images: Tensor) -> Tensor:
    """What enters the module at `path` when a network is given images; nothing behind it is computed."""

    def stop(_: nn.Module, inputs: tuple):
        raise _Reached(inputs[0])

    with network.get_submodule(path).register_forward_pre_hook(stop):
        try:
            network(images)
        except _Reached as reached:
            return reached.args[0]
    raise ValueError(f"no image enters {path}")


def _from(module: nn.Module, path: str) -> OrderedDict[str, nn.Module]:
    """The children of a module that is a chain of them, under their names, from the one at `path` on."""
    first, _, rest = path.partition(".")
    kept = OrderedDict(itertools.dropwhile(lambda child: child[0] != first, module._modules.items()))
    if rest:
        kept[first] = nn.Sequential(_from(module.get_submodule(first), rest))
    return kept  # type: ignore[return-value]


def check_block(name: str, block: str) -> str:
    """Where the first module of a block of the network `name` is in an `EmbeddingNet`; ValueError unless it has this
    block. "head" is one of every network."""
    if block not in (known := blocks(name)):
        raise ValueError(
            f"train_from must be a block of {name}, {', '.join(known)}, got {block!r}; "
            'None (in a notebook "") trains the whole network'
        )
    return known[block]


@functools.cache
def blocks(name: str) -> dict[str, str]:
    """The blocks of a network in their order, {block: path of its first module}; nothing is initialised.

    Unless `_BLOCKS` names them: the children of a trunk and of its Sequential modules that have parameters, by path."""

    def chain(module: nn.Module, prefix: str = "") -> Iterator[str]:
        for child_name, child in module.named_children():
            if type(child).forward is nn.Sequential.forward:
                yield from chain(child, f"{prefix}{child_name}.")
            elif [*child.parameters()] and child_name != "patch_embed":  # positions are added behind it
                yield prefix + child_name

    if not (paths := _BLOCKS.get(name, {})):
        with torch.device("meta"):
            trunk, _ = build_trunk(name, None, 3)
        paths = {path: path for path in chain(trunk)}
    return {block: f"trunk.{path}" for block, path in paths.items()} | {"head": "head"}


def freeze_batchnorm(net: EmbeddingNet) -> EmbeddingNet:
    """Fix every BatchNorm, also after `net.train()`: running statistics used, not updated; affine parameters frozen."""

    def stay(self: nn.Module, mode: bool = True) -> nn.Module:
        return self

    for module in net.modules():
        if isinstance(module, _BatchNorm):
            module.eval().requires_grad_(False)
            vars(module)["train"] = MethodType(stay, module)  # a copy of the network has it too, bound to the copy
    return net


def fuse_batchnorm(net: nn.Module) -> None:
    """Let convolutions apply the frozen BatchNorm that follows them in a chain: the same function, parameters and
    gradients without passes over the feature maps, which saves up to a fifth of a step of MobileNetV2 on CPUs."""
    for chain in [module for module in net.modules() if isinstance(module, nn.Sequential)]:
        for convolution, norm in itertools.pairwise(chain):
            if isinstance(convolution, nn.Conv2d) and isinstance(norm, _BatchNorm):
                vars(convolution)["forward"] = functools.partial(_convolve_and_normalise, convolution, norm)
                vars(norm)["forward"] = nn.Identity().forward


def _convolve_and_normalise(convolution: nn.Conv2d, norm: Any, maps: Tensor) -> Tensor:
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    bias = norm.bias - norm.running_mean * scale
    bias = bias if convolution.bias is None else bias + convolution.bias * scale
    weight = convolution.weight * scale.view(-1, 1, 1, 1)
    form = convolution.stride, convolution.kernel_size, convolution.padding, maps.dtype, maps.device.type
    if form == ((2, 2), (3, 3), (1, 1), torch.bfloat16, "cpu") and convolution.groups == len(weight):
        return _StridedDepthwise.apply(maps, weight.to(maps.dtype), bias.to(maps.dtype))
    return convolution._conv_forward(maps, weight, bias)


class _StridedDepthwise(torch.autograd.Function):
    """A depthwise 3x3 convolution of stride 2 and padding 1. On CPUs torch's gradients of bfloat16 maps take half of a
    step of MobileNetV2. They are a convolution of stride 1 of the gradient with zeros between, which is far faster."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(maps, weight)
        return torch.conv2d(maps, weight, bias, stride=2, padding=1, groups=len(weight))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maps, weight = ctx.saved_tensors
        spread = torch.zeros_like(maps)
        spread[..., ::2, ::2] = grad
        to_maps = torch.conv2d(spread, weight.flip(2, 3), padding=1, groups=len(weight))
        to_weight = conv2d_weight(maps, weight.shape, grad, stride=2, padding=1, groups=len(weight))
        return to_maps, to_weight, grad.sum((0, 2, 3))


def build_trunk(name: str, weights: str | Path | None, in_channels: int) -> tuple[nn.Module, Preprocess]:
    """The network `name` up to its feature maps, and what it expects of images; as in `build`."""
    if (name, weights, in_channels) == ("conv4", "symbols", 3):
        raise ValueError("weights='symbols' are for grey images, and these have colours; give a file or none")
    library = _library(name)
    state = None if weights is None else _state(name, weights)  # before anything is initialised: it may be missing
    model: Any
    if library == "own":
        model = _OWN[name](in_channels)
    elif library == "torchvision":
        from torchvision import models

        model = models.get_model(name, **({"init_weights": True} if name == "googlenet" else {}))
    else:
        import timm

        model = timm.create_model(name)
    if state is not None:
        classifiers = {key: value for key, value in model.state_dict().items() if key.partition(".")[0] in CLASSIFIERS}
        try:
            model.load_state_dict(classifiers | state)  # files may lack them
        except RuntimeError as error:
            raise ValueError(f"weights: {weights} does not fit: {' '.join(str(error).split())[:300]}") from error

    if name == "bn_inception":
        return model, Preprocess((104.0, 117.0, 128.0), (1.0, 1.0, 1.0), scale=1.0, bgr=True)
    if library == "own":
        half = (0.5,) * in_channels  # pixels to [-1, 1], images not resized
        return model, Preprocess(half, half, crop=None)
    if library == "timm":
        model.reset_classifier(0, "")
        config = model.pretrained_cfg
        return model, Preprocess(tuple(config["mean"]), tuple(config["std"]), crop=config["input_size"][-1])
    stages = {child: stage for child, stage in model.named_children() if child not in CLASSIFIERS}
    # of GoogLeNet torchvision hides it in the argument transform_input
    mean, std = ((0.5,) * 3,) * 2 if name == "googlenet" else ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return nn.Sequential(OrderedDict(stages)), Preprocess(mean, std)


def _library(name: str) -> str:
    """Where a network comes from, "own", "torchvision" or "timm"."""
    refuse_unknown("unknown backbone", [name], CATALOGUE)
    return CATALOGUE[name]


def _conv4(in_channels: int) -> nn.Module:
    """Four blocks conv 3x3, BatchNorm, max-pool 2x2, ReLU. The usual 64 channels throughout take four times as
    long, for 2 points of R@1 on glyphs; the ReLU, which is monotonic, gives the same values behind the pooling."""
    layers, width = [], in_channels
    for out in (16, 32, 64, 128):
        layers += [nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.MaxPool2d(2), nn.ReLU()]
        width = out
    return nn.Sequential(*layers)


def _resnetv2_20(in_channels: int) -> nn.Module:
    """ResNet v2 of depth 20 for small images (He et al., "Identity Mappings in Deep Residual Networks", ECCV 2016), as
    in the code released with CCP: the inner width is half of the outer one, a quarter in the very first block."""
    blocks = [nn.Conv2d(in_channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    blocks += [Bottleneck(16, 16, 64, activate=False), Bottleneck(64, 32, 64)]
    for out in (128, 256):
        blocks += [Bottleneck(out // 2, out // 2, out, stride=2), Bottleneck(out, out // 2, out)]
    return nn.Sequential(*blocks, nn.BatchNorm2d(256), nn.ReLU())


class Bottleneck(nn.Module):
    """x -> shortcut(x) + 1x1, 3x3, 1x1 convolutions, each after BatchNorm and ReLU (the first only if `activate`)."""

    def __init__(self, width: int, inner: int, out: int, stride: int = 1, activate: bool = True):
        super().__init__()
        self.activation = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU()) if activate else nn.Identity()
        self.branch = nn.Sequential(
            nn.Conv2d(width, inner, 1, stride, bias=False),
            *(nn.BatchNorm2d(inner), nn.ReLU(), nn.Conv2d(inner, inner, 3, padding=1, bias=False)),
            *(nn.BatchNorm2d(inner), nn.ReLU(), nn.Conv2d(inner, out, 1, bias=False)),
        )
        self.shortcut = nn.Identity() if width == out else nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.branch(self.activation(x))


# the blocks of trunks that are not named after them
_BLOCKS = {
    "conv4": {f"block{number}": str(4 * number - 4) for number in range(1, 5)},
    "resnetv2_20": {f"block{number}": str(number + 2) for number in range(1, 7)},
    "bn_inception": {
        name: name for name in ("conv1", "conv2", *(f"inception_{module}" for module in bn_inception.MODULES))
    },
    "squeezenet1_1": {f"fire{n}": f"features.{at}" for n, at in zip(range(2, 10), (3, 4, 6, 7, 9, 10, 11, 12))},
}
_OWN = {"conv4": _conv4, "resnetv2_20": _resnetv2_20, "bn_inception": lambda channels: bn_inception.BNInception()}


@functools.cache
def _published(name: str) -> tuple[str, tuple[str, ...]]:
    """Address of the published weights of a network ("": timm knows it), and what a local copy may be called."""
    library = _library(name)
    if library == "torchvision":
        from torchvision import models

        url = models.get_model_weights(name)["IMAGENET1K_V1"].url
        return url, (f"{name}_in1k.safetensors", f"{name}_in1k_features.safetensors", PurePosixPath(url).name)
    if library == "timm":
        return "", (f"{name}.safetensors", f"{name}.pth")
    if name == "bn_inception":
        return bn_inception.URL, (PurePosixPath(bn_inception.URL).name,)
    raise ValueError(f'{name} has no ImageNet weights here; use None (in a notebook "none") or the path of a file')


def weights_file(name: str, weights: str | Path | None) -> Path | None:
    """The local file of weights of a network; None: there is none, or they are downloaded. Raises what `build` does."""
    _library(name)
    if weights == "symbols":
        if name != "conv4":
            raise ValueError(f"weights='symbols' are those of conv4, not of {name}; give 'imagenet', a file or none")
        return SYMBOLS
    if weights == "imagenet":
        folder = data_root() / "weights"
        if _library(name) == "torchvision" and not folder.is_dir():
            return None  # before torchvision, which knows the name of its file, is imported: that takes seconds
        return next((folder / file for file in _published(name)[1] if (folder / file).is_file()), None)
    if weights is None:
        return None
    if not (path := Path(weights)).is_file():
        raise FileNotFoundError(f"weights: no file {path}; give an existing file, 'imagenet', 'symbols' or none")
    return path


def _state(name: str, weights: str | Path) -> dict[str, Tensor]:
    if file := weights_file(name, weights):
        state = read_weights(file)
    else:
        url, files = _published(name)
        try:
            if url:
                state = torch.hub.load_state_dict_from_url(url, map_location="cpu", check_hash=True, weights_only=True)
            else:
                import timm

                state = timm.create_model(name, pretrained=True).state_dict()
        except Exception as error:
            raise FileNotFoundError(
                f"weights='imagenet' of {name}: the download failed ({_reason(error)}); start again with a network, or "
                f"put {' or '.join(files)} into {data_root() / 'weights'}, which DMLREPRO_DATA moves"
            ) from error
    return bn_inception.renamed(state) if name == "bn_inception" else state


def weights_digest(name: str, weights: str | None) -> str | None:
    """What stands for weights of the network `name` in a key: the sha256 of a local file, also of the one that a
    published tag resolves to; the tag itself where the library downloads, because it compares checksums.

    Warns of a local copy of published weights whose content is not known to be what was published.
    """
    file = weights_file(name, weights)
    if file is None:
        return weights
    digest = sha256_once(file)
    if weights == "imagenet" and digest not in KNOWN_WEIGHTS.values() and f"-{digest[:8]}" not in file.stem:
        warnings.warn(
            f"weights: {file} has sha256 {digest}, which is not known here, so it may not be what was published; "
            "results name it by this hash",
            stacklevel=2,
        )
    return digest


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in a .safetensors or a torch file (loaded with weights_only), on the CPU."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"weights: {path} is unreadable, is it complete? ({_reason(error)})") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"weights: {path} holds no plain state dict (a mapping from names to tensors)")
    return state


def _reason(error: Exception) -> str:
    """Why weights cannot be read, in a line. Of a pickle torch itself advises to run what the file says."""
    if isinstance(error, pickle.UnpicklingError):
        return (
            "it holds more than tensors, or is none of torch's files; reading it could run any program, so it is not "
            "read: save its state dict as .safetensors where it was made"
        )
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
