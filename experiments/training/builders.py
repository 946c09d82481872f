"""What the names in a RunSpec stand for: losses, algorithms, optimisers."""

import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dmlrepro.losses._names import NAMES
from experiments.checks import refuse_unknown
from experiments.training.seeds import derive_seed

OPTIMIZERS: dict[str, functools.partial] = {
    "adam": functools.partial(torch.optim.Adam, fused=True),
    "adamw": functools.partial(torch.optim.AdamW, fused=True),
    "rmsprop": functools.partial(torch.optim.RMSprop, momentum=0.9),
}


def loss_builder(name: str) -> Callable:
    """The loss "<module>.<name>" of dmlrepro.losses, or "own.OwnLoss"; ValueError lists what exists."""
    places = {place.replace(":", "."): f"dmlrepro.losses.{place}" for place in NAMES.values()}
    places["own.OwnLoss"] = "experiments.training.own_loss:OwnLoss"
    refuse_unknown("unknown loss", [name], places)
    module, _, attribute = places[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


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
