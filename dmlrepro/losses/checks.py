"""What every loss shares: checks that name a bad batch or option before it reaches the arithmetic, and a printed form.

A loss is called as in pytorch-metric-learning, loss(embeddings, labels, indices_tuple, ref_emb, ref_labels), and says
so where it has no meaning for one of the last three.
"""

import inspect
import math
import numbers
from typing import Any

import torch
from torch import Tensor, nn

LEAST_NORM = 1e-12  # below it torch's F.normalize gives no unit vector, and gradients of 1e12 and more


def values_are_known() -> bool:
    """Whether a check may look at values: not while torch.compile or torch.export traces, which see shapes alone."""
    return not torch.compiler.is_compiling()


def check_batch(
    embeddings: Tensor, labels: Tensor, num_classes: int, embedding_size: int, least_norm: float = LEAST_NORM
) -> None:
    """Raise ValueError unless embeddings are finite (B, D) floats and labels are (B,) int64 in [0, num_classes).

    Norms must lie between least_norm, 0 for a loss that gives a zero vector a meaning, and what float32 (or a wider
    type of the embeddings) can square: beyond, a loss on directions would be finite and teach nothing.

    The values are read back once per call, a single small device synchronisation; in compiled code they are not looked
    at, see `values_are_known`.
    """
    if embeddings.ndim != 2 or embeddings.shape[1] != embedding_size:
        raise ValueError(
            f"embeddings must have shape (B, {embedding_size}), got {tuple(embeddings.shape)}; "
            + ("make the loss with the network's embedding_size" if embeddings.ndim == 2 else "flatten them to (B, D)")
        )
    if not embeddings.is_floating_point():
        raise ValueError(f"embeddings must be floating point, got {embeddings.dtype}")
    if labels.dtype != torch.int64 or labels.shape != embeddings.shape[:1]:
        raise ValueError(
            f"labels must be integers of shape ({len(embeddings)},), one per embedding, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}; a column becomes such by labels.squeeze(1), one-hot rows by labels.argmax(1)"
        )
    if labels.shape[0] == 0:
        raise ValueError("embeddings is an empty batch; every batch needs at least one sample")
    if not values_are_known():
        return
    low, high = torch.aminmax(labels)
    wide = torch.promote_types(embeddings.dtype, torch.float32)
    norms = torch.linalg.vector_norm(embeddings.detach(), dim=1, dtype=wide)  # NaN and infinity pass through
    low, high, shortest, longest = torch.stack([x.double() for x in (low, high, *torch.aminmax(norms))]).tolist()
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels must be at least 0, found {low:.0f}; relabel the classes to 0..C-1"
            if low < 0
            else f"labels must lie in [0, {num_classes}), found {high:.0f}; relabel the classes to 0..C-1 or raise "
            "num_classes"
        )
    if not math.isfinite(longest):
        what = f"are too long for {wide} to square" if embeddings.isfinite().all() else "contain NaN or infinity"
        raise ValueError(f"embeddings {what}; lower the learning rate or inspect the input images")
    if shortest < least_norm:
        raise ValueError(
            f"embeddings have a norm of {shortest:.3g} in row {norms.argmin().item()}, too little to have a direction; "
            "lower the learning rate or inspect the input images"
        )


def check_directions(vectors: Tensor, name: str) -> None:
    """Raise ValueError unless all learned class vectors (N, D) are finite and have a direction."""
    if not values_are_known() or not vectors.numel():
        return
    norms = torch.linalg.vector_norm(vectors.detach(), dim=1)
    shortest, longest = torch.stack(torch.aminmax(norms)).tolist()
    if not (shortest >= LEAST_NORM and math.isfinite(longest)):
        worst = (~(norms >= LEAST_NORM) | norms.isinf()).nonzero()[0].item()
        raise ValueError(
            f"{name} have a norm of {norms[worst].item():.3g} in row {worst} and so no direction; "
            "lower their learning rate, or draw that row anew"
        )


def check_pair(embeddings: Tensor, momentum_embeddings: Tensor, embedding_size: int) -> None:
    """Raise ValueError unless both are finite (B, embedding_size) floats with directions."""
    nothing = torch.zeros(embeddings.shape[0], dtype=torch.int64, device=embeddings.device)
    check_batch(embeddings, nothing, 1, embedding_size)
    if momentum_embeddings.shape != embeddings.shape:
        raise ValueError(
            f"momentum_embeddings must have the shape of embeddings, {tuple(embeddings.shape)}, "
            f"got {tuple(momentum_embeddings.shape)}"
        )
    try:
        check_batch(momentum_embeddings, nothing, 1, embedding_size)
    except ValueError as error:
        raise ValueError(f"momentum_{error}") from error


def check_tensors(**arguments: object) -> None:
    """Raise ValueError for an argument that is no torch tensor."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} must be a torch tensor, got {type(value).__name__}; pass torch.as_tensor({name})")


def whole_labels(embeddings: Tensor, labels: Tensor, name: str = "labels") -> Tensor:
    """Labels of any integer dtype, on any device, as int64 beside the embeddings.

    Raises ValueError where either is no tensor or the labels are no integers.
    """
    check_tensors(embeddings=embeddings, labels=labels)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{name} must be integers, got {labels.dtype}; pass {name}.long() if they number the classes")
    return labels.to(embeddings.device, torch.int64)


UNUSED = {
    "labels": "learns without labels; pass None",
    "indices_tuple": "takes the whole batch; leave out the miner",
    "ref_emb": "compares the batch with itself and with what it holds; leave it out",
    "ref_labels": "compares the batch with itself and with what it holds; leave it out",
}


def check_unused(loss: nn.Module, **arguments: object) -> None:
    """Raise ValueError for an argument of pytorch-metric-learning's losses that this loss has no meaning for."""
    for name, value in arguments.items():
        if value is not None:
            kind = type(value).__name__
            raise ValueError(f"{name} must be None, got a {kind}: {type(loss).__name__} {UNUSED[name]}")


def paired(loss: nn.Module, embeddings: Tensor, second: Tensor | None, ref_emb: Tensor | None) -> Tensor:
    """The other embeddings of the same images, from loss(embeddings, second) or loss(embeddings, ref_emb=...).

    A second argument of integers is labels, which such a loss has no meaning for; raises ValueError for them, for what
    is no tensor, and where there are no or two other embeddings.
    """
    if isinstance(second, Tensor) and not second.is_floating_point():
        check_unused(loss, labels=second)
    given = [other for other in (second, ref_emb) if other is not None]
    if len(given) != 1:
        raise ValueError(
            f"momentum_embeddings are needed once: {type(loss).__name__} is called as loss(embeddings, "
            "momentum_embeddings), or as loss(embeddings, ref_emb=momentum_embeddings)"
        )
    check_tensors(embeddings=embeddings, momentum_embeddings=given[0])
    return given[0]


def printed(module: nn.Module, **values: object) -> str:
    """The `extra_repr` of a loss: its constructor's arguments, from its attributes and from further values."""
    known = vars(module) | values
    return ", ".join(f"{name}={known[name]!r}" for name in inspect.signature(type(module)).parameters if name in known)


def check_sizes(*, least: int = 1, **sizes: int) -> None:
    """Raise ValueError for a size of a loss that is no whole number from `least` on."""
    for name, value in sizes.items():
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number from {least} on, got {value!r}")


def check_finite(**options: float) -> None:
    """Raise ValueError for an option of a loss that is no finite number."""
    for name, value in options.items():
        if not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value!r}")


def check_positive(**options: float) -> None:
    """Raise ValueError for an option of a loss that is no finite number above 0."""
    check_finite(**options)
    for name, value in options.items():
        if value <= 0:
            raise ValueError(f"{name} must be positive, got {value}")


class _WholeBatch(nn.Module):
    """A loss of the whole batch: its `of_batch`, with labels as int64 beside the embeddings, is the equation."""

    of_batch: Any

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        check_unused(self, indices_tuple=indices_tuple, ref_emb=ref_emb, ref_labels=ref_labels)
        return self.of_batch(embeddings, whole_labels(embeddings, labels))


class _TwoViews(nn.Module):
    """A loss without labels, of the embeddings of two views of each image: the sum of its `terms`."""

    terms: Any

    def forward(
        self,
        embeddings: Tensor,
        momentum_embeddings: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        check_unused(self, indices_tuple=indices_tuple, ref_labels=ref_labels)
        return sum(self.terms(embeddings, paired(self, embeddings, momentum_embeddings, ref_emb)).values())
