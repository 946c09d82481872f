"""Whether a loss keeps the contract of this package, loss(embeddings, labels) -> scalar, found out in under a minute.

`contract.check(lambda num_classes, embedding_size: MyLoss(num_classes, embedding_size))` gives findings to print. What
is tried: batches in which losses break; the order of the samples; whether labels matter; how memory and time grow with
batch and classes. A finding says in a sentence what was seen; only `trains` must hold before training makes sense.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from experiments import timing

Build = Callable[[int, int], nn.Module]  # (number of classes, embedding size) -> the loss

Evaluated = tuple[float, dict[str, Tensor]]  # a value, and gradients by what they are of

CLASSES, PER_CLASS, DIM = 8, 4, 32  # of the batches that are tried
ALIKE = 1e-4  # relative difference up to which values and gradients are the same, in float32
BATCHES = (64, 128, 256, 512)  # sizes at which memory and time are measured
CLASS_COUNTS = (256, 512, 1024, 2048, 4096)
STEEPEST = {"batch": 2.3, "classes": 1.3}  # exponents of growth that are usual: pairs of a batch, a proxy per class
NOTICED = 0.05  # seconds of a call from which on its time tells how it grows
TOO_LONG = 5.0  # seconds of a call after which no larger one is tried


@dataclass(frozen=True)
class Finding:
    """name: what was tried. holds: whether the loss behaves as others need it. said: what was seen, in a sentence."""

    name: str
    holds: bool
    said: str

    def __str__(self) -> str:
        return f"{'ok      ' if self.holds else 'NOT MET '} {self.name}: {self.said}"


def check(build: Build) -> list[Finding]:
    """All findings, in the order of `batches`, then order, labels and growth; those of a loss that fails on a usual
    batch are of batches alone."""
    findings = [finite(build, name, *batch) for name, batch in batches().items()]
    if trains(findings):
        findings += [order(build), labels_matter(build), growth(build, "batch"), growth(build, "classes")]
    return findings


def trains(findings: list[Finding]) -> bool:
    """Whether the first finding, of a usual batch, allows training."""
    return findings[0].holds


def batches() -> dict[str, tuple[Tensor, Tensor]]:
    """The batches that are tried, embeddings (B, DIM) and labels (B,), by name; the usual one first."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, DIM, generator=generator)
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    usual = centres[labels] + torch.randn(len(labels), DIM, generator=generator)
    lone = torch.arange(CLASSES)
    return {
        "usual batch": (usual, labels),
        "one class": (usual[:PER_CLASS], labels[:PER_CLASS]),
        "lone classes": (centres, lone),
        "batch of one": (centres[:1], lone[:1]),
        "two classes at one point": (centres[:1].repeat(2 * PER_CLASS, 1), labels[: 2 * PER_CLASS]),
    }


# --- what is tried ----------------------------------------------------------------------------------------------------


def finite(build: Build, name: str, embeddings: Tensor, labels: Tensor) -> Finding:
    """Whether a batch has a finite value and finite gradients."""
    try:
        value, gradients = _evaluated(build, embeddings, labels)
    except Exception as error:  # whatever a stranger's code raises is the finding
        return Finding(name, False, f"raises {type(error).__name__}: {error}")
    if not math.isfinite(value):
        return Finding(name, False, f"the value is {value}")
    if wrong := [variable for variable, gradient in gradients.items() if not gradient.isfinite().all()]:
        return Finding(name, False, f"the value is {value:.4g}, but the gradient of {', '.join(wrong)} is not finite")
    zero = "" if gradients["embeddings"].any() else ", which teaches the network nothing (zero gradient)"
    return Finding(name, not zero or name != "usual batch", f"the value is {value:.4g}{zero}")


def order(build: Build) -> Finding:
    """Whether the order of the samples has no part."""
    embeddings, labels = batches()["usual batch"]
    if _differ(_evaluated(build, embeddings, labels), _evaluated(build, embeddings, labels, call_seed=1)):
        return Finding("order of samples", True, "it draws random numbers, so that the order cannot be judged")
    places = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    value, gradients = _evaluated(build, embeddings, labels)
    other, moved = _evaluated(build, embeddings[places], labels[places])
    moved |= {"embeddings": moved["embeddings"][places.argsort()]}
    if _differ((value, gradients), (other, moved)):
        return Finding("order of samples", False, f"another order of one batch: {other:.6g} instead of {value:.6g}")
    return Finding("order of samples", True, "it has no part")


def labels_matter(build: Build) -> Finding:
    """Whether other labels give another value or gradient."""
    embeddings, labels = batches()["usual batch"]
    first = _evaluated(build, embeddings, labels)
    for seed in (1, 2, 3):
        others = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
        if _differ(first, _evaluated(build, embeddings, others)):
            return Finding("labels", True, "they matter")
    return Finding("labels", False, "it ignores its labels: three shuffles of them change neither value nor gradient")


def growth(build: Build, of: str) -> Finding:
    """How memory and time of a call grow with the batch or with the classes, the other one fixed."""
    sizes: list[int] = []
    memory: list[float] = []
    seconds: list[float] = []
    for size in BATCHES if of == "batch" else CLASS_COUNTS:
        count, classes = (size, BATCHES[0]) if of == "batch" else (BATCHES[0], size)
        generator = torch.Generator().manual_seed(size)
        embeddings = torch.randn(count, DIM, generator=generator)
        labels = torch.arange(count) // PER_CLASS % classes
        try:
            call = functools.partial(_backward, _built(build, classes), embeddings, labels)
            memory.append(timing.peak_bytes(call, "cpu"))
            seconds.append(min(timing.seconds(call, "cpu") for _ in range(3)))
        except Exception as error:
            return Finding(f"growth with {of}", False, f"{of} of {size}: {type(error).__name__}: {error}")
        sizes.append(size)
        if seconds[-1] > TOO_LONG:
            break
    steps = {"memory": _exponent(sizes, memory)}
    if seconds[-1] > NOTICED:
        steps["time"] = _exponent(sizes, seconds)
    holds = all(exponent <= STEEPEST[of] for exponent in steps.values())
    told = " and ".join(f"{what} as its power {exponent:.1f}" for what, exponent in steps.items())
    at = f"{memory[-1] / 2**20:.1f} MiB and {1e3 * seconds[-1]:.1f} ms at {sizes[-1]}"
    usual = "" if holds else f"; usual is up to {STEEPEST[of]:.1f}"
    return Finding(f"growth with {of}", holds, f"{told} at the end ({at}){usual}")


def _exponent(sizes: list[int], values: list[float]) -> float:
    """Of the last doubling."""
    if len(sizes) < 2:
        return math.inf
    return math.log(max(values[-1], 1e-9) / max(values[-2], 1e-9)) / math.log(sizes[-1] / sizes[-2])


# --- a call -----------------------------------------------------------------------------------------------------------


def _evaluated(build: Build, embeddings: Tensor, labels: Tensor, call_seed: int = 0) -> Evaluated:
    """Value and gradients of a loss that is always drawn alike; call_seed: of the random numbers of the call."""
    loss = _built(build, CLASSES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(call_seed)
        return _backward(loss, embeddings, labels)


def _built(build: Build, classes: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(classes, DIM).train()


def _backward(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> Evaluated:
    point = embeddings.detach().clone().requires_grad_()
    loss.zero_grad(set_to_none=True)
    value = loss(point, labels)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise TypeError(f"a loss gives a scalar tensor, got {getattr(value, 'shape', type(value).__name__)}")
    value.backward()
    gradients = {
        f"parameter {name}": parameter.grad for name, parameter in loss.named_parameters() if parameter.grad is not None
    }
    return value.item(), {"embeddings": torch.zeros_like(point) if point.grad is None else point.grad} | gradients


def _differ(one: Evaluated, other: Evaluated) -> bool:
    """Whether the values, or the gradients by their names, are not alike."""
    (value, gradients), (value_of_other, others) = one, other
    if _apart(torch.tensor(value), torch.tensor(value_of_other)) or gradients.keys() != others.keys():
        return True
    return any(_apart(gradient, others[name]) for name, gradient in gradients.items())


def _apart(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() > ALIKE * torch.maximum(a.abs().max(), b.abs().max()).clamp_min(1e-8))
