"""What the names in a RunSpec stand for: losses, schemes, optimisers; and a seed for every random stream."""

import functools
import hashlib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

OPTIMIZERS = {
    "adam": functools.partial(torch.optim.Adam, fused=True),
    "adamw": functools.partial(torch.optim.AdamW, fused=True),
    "rmsprop": functools.partial(torch.optim.RMSprop, momentum=0.9),
}


def loss_builder(name: str | None) -> Callable | None:
    """The class or function `name` = "<module>.<callable>" under dmlrepro.losses; ValueError lists what exists."""
    if name is None:
        return None
    module_name, _, attribute = name.partition(".")
    folder = Path(__file__).parents[1] / "losses"
    known = sorted(path.stem for path in folder.glob("*.py") if path.stem not in ("__init__", "checks"))
    if module_name not in known:
        raise ValueError(f"unknown loss {name!r}: losses live in the modules {', '.join(known)}")
    module = importlib.import_module(f"dmlrepro.losses.{module_name}")
    builder = getattr(module, attribute, None)
    if builder is None:
        public = [
            key
            for key, value in vars(module).items()
            if callable(value) and not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
        raise ValueError(f"unknown loss {name!r}: {module_name} has {', '.join(sorted(public))}")
    return builder


def build_loss(spec, num_classes: int, embedding_size: int) -> nn.Module:
    """The loss of a RunSpec, its proxies drawn from the spec's seed; ValueError on an option the loss does not have.

    It is given the number of classes and the embedding size if it takes them: a loss without labels has no classes.
    """
    builder = loss_builder(spec.loss)
    options = inspect.signature(builder).parameters
    unknown = set(spec.loss_options) - set(options)
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in options.values()):
        raise ValueError(f"loss {spec.loss} has no option {sorted(unknown)}; it takes {sorted(options)}")
    sizes = {"num_classes": num_classes, "embedding_size": embedding_size}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(spec.seed, "loss"))
        return builder(**{name: size for name, size in sizes.items() if name in options}, **spec.loss_options)


def scheme_builder(name: str, options: Mapping) -> type:
    """The class `Scheme` of the file `name` in training/schemes; ValueError on an unknown name or option."""
    builder = _scheme(name)
    accepted = [key for key, p in inspect.signature(builder).parameters.items() if p.kind is p.KEYWORD_ONLY]
    if unknown := sorted(set(options) - set(accepted)):
        raise ValueError(f"scheme {name!r} has no option {', '.join(unknown)}; it takes {accepted}")
    return builder


@functools.cache
def _scheme(name: str) -> type:
    from dmlrepro.training import schemes

    known = sorted(module.name for module in pkgutil.iter_modules(schemes.__path__))
    if name not in known:
        raise ValueError(f"unknown scheme {name!r}; choose one of {', '.join(known)}")
    return importlib.import_module(f"dmlrepro.training.schemes.{name}").Scheme


def stream_seed(seed: int, *words) -> int:
    """An independent 63-bit stream seed for each purpose."""
    text = ":".join(str(word) for word in (seed, *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
