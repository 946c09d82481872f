"""What the names in a RunSpec stand for: losses, algorithms, optimisers."""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dmlrepro import losses
from experiments.checks import refuse_unknown
from experiments.training.seeds import derive_seed

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
    refuse_unknown(f"loss {name!r}: unknown module", [module_name], sorted(known))
    own = "experiments.training.own_loss"
    module = importlib.import_module(own if module_name == "own" else f"dmlrepro.losses.{module_name}")
    builders = {}
    for key, value in vars(module).items():
        made = inspect.get_annotations(value, eval_str=True).get("return") if inspect.isfunction(value) else value
        public = not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
        if public and isinstance(made, type) and issubclass(made, nn.Module):
            builders[key] = value
    refuse_unknown(f"{module_name} has no loss", [attribute], sorted(builders))
    return builders[attribute]


def defaults(loss: str | None) -> dict[str, Any]:
    """The options of a loss that have a default, with it."""
    options = inspect.signature(loss_builder(loss)).parameters.values() if loss else ()
    return {option.name: option.default for option in options if option.default is not inspect.Parameter.empty}


def build_loss(spec: Any, num_classes: int, embedding_size: int) -> nn.Module:
    """The loss of a RunSpec, its proxies drawn from the spec's seed; ValueError on an option the loss does not have.

    It is given the number of classes and the embedding size if it takes them: a loss without labels has no classes.
    """
    builder, options = loss_builder(spec.loss), dict(spec.loss_options)
    accepted = inspect.signature(builder).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        refuse_unknown(f"loss {spec.loss} has no option", options, accepted)
    sizes = {"num_classes": num_classes, "embedding_size": embedding_size}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(spec.seed, "loss"))
        try:
            return builder(**{name: size for name, size in sizes.items() if name in accepted}, **options)
        except (ValueError, TypeError) as error:
            raise ValueError(f"loss {spec.loss} refuses its options {options}: {error}") from error


@functools.cache
def algorithm_module(name: str) -> Any:
    """training/algorithms/<name>.py, which has `Algorithm` and its `Options`; ValueError lists what exists."""
    known = sorted(path.stem for path in (Path(__file__).parent / "algorithms").glob("[a-z]*.py"))
    refuse_unknown("unknown algorithm", [name], known)
    return importlib.import_module(f"experiments.training.algorithms.{name}")
