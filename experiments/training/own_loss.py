"""A loss of the reader's own in a training run: the run knows the bytes of its code. See docs/your_loss.md."""

import functools
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from dmlrepro.losses.checks import check_batch, whole_labels
from experiments.files import sha256

CLASSES, PER_CLASS, DIM = 8, 4, 32  # of the batches that `refuse_unsound` tries
ALIKE = 1e-4  # relative difference up to which gradients are the same, in float32


class OwnLoss(nn.Module):
    """Any module called as loss(embeddings, labels), behind this package's checks of a batch.

    code: of `code_of`. num_classes, embedding_size: handed on if the loss asks for them by these names. options: all
    others of the loss. It sees at least float32, under autocast too. ValueError names a loss that cannot be made.
    """

    draw: Tensor

    def __init__(self, code: Mapping[str, str], num_classes: int, embedding_size: int, **options: object):
        super().__init__()
        builder = builder_of(code)
        sizes = {"num_classes": num_classes, "embedding_size": embedding_size}
        self.loss = builder(**{name: size for name, size in sizes.items() if name in asked_by(builder)}, **options)
        if not isinstance(self.loss, nn.Module):
            raise ValueError(f"{code['loss']} must give a torch module, got a {type(self.loss).__name__}")
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.register_buffer("draw", torch.randint(2**31, ()))  # a seed for whatever the loss draws in its next call

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        labels = whole_labels(embeddings, labels)
        check_batch(embeddings, labels, self.num_classes, self.embedding_size, least_norm=0.0)
        devices = [embeddings.device] if embeddings.is_cuda else []
        with torch.autocast(embeddings.device.type, enabled=False), torch.random.fork_rng(devices):
            torch.manual_seed(int(self.draw))
            self.draw += 1
            return self.loss(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)), labels)


def code_of(reference: str) -> dict[str, str]:
    """What a run keeps of "package.module:NAME": that name, and a digest of all Python files of the package, or of the
    file alone where the module lies in none; NAME is a class or a function that returns a module.

    Raises:
        ValueError: the reference has another form, or there is no such module or name.
    """
    module, _, name = reference.partition(":")
    if not module or not name.isidentifier():
        raise ValueError(f"loss must be package.module:NAME, as in examples.my_loss:MyLoss, got {reference!r}")
    code = {"loss": reference, "sha256": _digest(module)}
    builder_of(code)
    return code


def builder_of(code: Mapping[str, str]) -> Callable[..., nn.Module]:
    """The class or function that `code` names; ValueError if it is not there, or its files have changed since."""
    module, _, name = code["loss"].partition(":")
    if _digest(module) != code["sha256"]:
        raise ValueError(f"loss {code['loss']}: its files have changed since; start again")
    builder = getattr(sys.modules[module], name, None)
    if not callable(builder):
        here = vars(sys.modules[module])
        known = [key for key, value in here.items() if inspect.isclass(value) and issubclass(value, nn.Module)]
        raise ValueError(f"loss {code['loss']}: {module} has no {name}; it has {', '.join(known) or 'no torch module'}")
    return builder


def asked_by(builder: Callable[..., nn.Module]) -> dict[str, inspect.Parameter]:
    """The arguments that a loss takes by name."""
    every = inspect.signature(builder).parameters.values()
    return {p.name: p for p in every if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


@functools.cache
def _digest(module: str) -> str:
    """Of the Python files that come with a module, which is imported."""
    try:
        file = importlib.import_module(module).__file__
    except Exception as error:  # whatever its first line does
        raise ValueError(
            f"loss: cannot import {module!r} ({type(error).__name__}: {error}); it must be installed, or lie below the "
            "folder you are in"
        ) from error
    package = getattr(sys.modules[module.partition(".")[0]], "__file__", None)  # a folder without __init__.py has none
    root = Path(package or str(file))
    files = sorted(root.parent.rglob("*.py")) if root.name == "__init__.py" else [Path(str(file))]
    content = [[path.relative_to(root.parent).as_posix(), sha256(path)] for path in files]
    return hashlib.sha256(repr(content).encode()).hexdigest()


def refuse_unsound(build: Callable[[int, int], nn.Module]) -> None:
    """Refuse a loss with which no training makes sense, before anything is trained.

    build: (number of classes, embedding size) -> the loss.

    Raises:
        ValueError: on an ordinary batch the loss fails, gives no finite scalar or no finite gradient, teaches the
            network nothing, or has the same gradient for other labels.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    centres = torch.randn(CLASSES, DIM, generator=generator)
    embeddings = centres[labels] + torch.randn(len(labels), DIM, generator=generator)
    try:
        value, gradients = _evaluated(build, embeddings, labels)
        _, shuffled = _evaluated(build, embeddings, labels[torch.randperm(len(labels), generator=generator)])
    except Exception as error:  # whatever a stranger's code raises
        raise ValueError(f"the loss fails on an ordinary batch: {type(error).__name__}: {error}") from error
    if wrong := [name for name, part in {"value": value, **gradients}.items() if not part.isfinite().all()]:
        raise ValueError(f"the loss of an ordinary batch is {value.item():.4g}; not finite: {', '.join(wrong)}")
    largest = {name: gradient.abs().max() for name, gradient in gradients.items()}
    if not largest["embeddings"]:
        raise ValueError("the loss of an ordinary batch has no gradient, so that the network would learn nothing")
    if all((gradients[name] - shuffled[name]).abs().max() <= ALIKE * largest[name] for name in gradients):
        raise ValueError("the loss ignores its labels: other labels do not change its gradient")


def _evaluated(
    build: Callable[[int, int], nn.Module], points: Tensor, labels: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Value and gradients, by what they are of, of a loss whose draws are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loss, points = build(CLASSES, DIM).train(), points.clone().requires_grad_()
        value = loss(points, labels)
    value.backward()
    of_all = {"embeddings": points, **dict(loss.named_parameters())}
    return value.detach(), {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in of_all.items()}
