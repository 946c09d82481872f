"""What the names in a RunSpec stand for: losses, schemes, optimisers; and a seed for every random stream."""

import functools
import hashlib
import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from dmlrepro import losses

OPTIMIZERS: dict[str, functools.partial] = {
    "adam": functools.partial(torch.optim.Adam, fused=True),
    "adamw": functools.partial(torch.optim.AdamW, fused=True),
    "rmsprop": functools.partial(torch.optim.RMSprop, momentum=0.9),
}


def loss_builder(name: str) -> Callable:
    """The loss `name` = "<module>.<name>" under dmlrepro.losses, or "own.<name>"; ValueError lists what exists.

    It is a public class of modules, or a function that says it returns one.
    """
    module_name, _, attribute = name.partition(".")
    known = {module.name for module in pkgutil.iter_modules(losses.__path__)} - {"checks", "recommended"} | {"own"}
    if module_name not in known:
        raise ValueError(f"unknown loss {name!r}: losses live in the modules {', '.join(sorted(known))}")
    own = "experiments.training.own_loss"
    module = importlib.import_module(own if module_name == "own" else f"dmlrepro.losses.{module_name}")

    def makes(value: Any) -> bool:
        made = inspect.get_annotations(value, eval_str=True).get("return") if inspect.isfunction(value) else value
        ours = getattr(value, "__module__", None) == module.__name__
        return ours and isinstance(made, type) and issubclass(made, nn.Module)

    builders = {key: value for key, value in vars(module).items() if not key.startswith("_") and makes(value)}
    if attribute not in builders:
        raise ValueError(f"unknown loss {name!r}: {module_name} has {', '.join(sorted(builders))}")
    return builders[attribute]


def check_loss(spec: Any) -> None:
    """ValueError unless the loss of a RunSpec takes its options, and has the parameters whose rates it gives."""
    if spec.loss is None:
        return
    try:
        options = json.dumps(dict(spec.loss_options), sort_keys=True)
    except TypeError as error:
        raise ValueError(f"loss_options must be numbers, words and lists of them ({error})") from error
    # without an embedding size the embeddings are the pooled features, whose length is not known here; 128 suits all
    parameters, initialised = _tried(spec.loss, options, spec.embedding_size or 128)
    if unknown := sorted(set(spec.loss_lr) - parameters - {"*"}):
        raise ValueError(f"loss_lr names {unknown}, but {spec.loss} has the parameters {sorted(parameters)}")
    if spec.proxies_from_class_means and not initialised:
        raise ValueError(f"proxies_from_class_means: the loss {spec.loss} has no initialize_proxies(class_means)")


@functools.cache
def _tried(name: str, options: str, embedding_size: int) -> tuple[frozenset[str], bool]:
    """The parameters of a loss built for two classes, and whether its proxies can start at class means."""
    loss = _build(name, json.loads(options), seed=0, num_classes=2, embedding_size=embedding_size)
    return frozenset(key for key, _ in loss.named_parameters()), hasattr(loss, "initialize_proxies")


def build_loss(spec: Any, num_classes: int, embedding_size: int) -> nn.Module:
    """The loss of a RunSpec, its proxies drawn from the spec's seed; ValueError on an option the loss does not have.

    It is given the number of classes and the embedding size if it takes them: a loss without labels has no classes.
    """
    seed = stream_seed(spec.seed, "loss")
    return _build(spec.loss, spec.loss_options, seed, num_classes=num_classes, embedding_size=embedding_size)


def _build(name: str, options: Mapping[str, Any], seed: int, **sizes: int) -> nn.Module:
    builder: Any = loss_builder(name)
    accepted = inspect.signature(builder).parameters
    unknown = set(options) - set(accepted)
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        raise ValueError(f"loss {name} has no option {sorted(unknown)}; it takes {sorted(accepted)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return builder(**{key: size for key, size in sizes.items() if key in accepted}, **options)
        except (ValueError, TypeError) as error:
            raise ValueError(f"loss {name} refuses its options {dict(options)}: {error}") from error


@functools.cache
def _scheme(name: str) -> Any:
    from experiments.training import schemes

    known = sorted(module.name for module in pkgutil.iter_modules(schemes.__path__))
    if name not in known:
        raise ValueError(f"unknown scheme {name!r}; choose one of {', '.join(known)}")
    return importlib.import_module(f"experiments.training.schemes.{name}").Scheme


def scheme_builder(name: str, options: Mapping[str, Any]) -> Any:
    """The class `Scheme` of the file `name` in training/schemes; ValueError on an unknown name or a bad option."""
    builder = _scheme(name)
    accepted = [key for key, p in inspect.signature(builder).parameters.items() if p.kind is p.KEYWORD_ONLY]
    if unknown := sorted(set(options) - set(accepted)):
        raise ValueError(f"scheme {name!r} has no option {', '.join(unknown)}; it takes {accepted}")
    builder.check(**options)
    return builder


def stream_seed(seed: int, *words: object) -> int:
    """An independent 63-bit stream seed for each purpose."""
    text = ":".join(str(word) for word in (seed, *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
