"""Input checks shared by every loss: a bad batch or option is named before it reaches the arithmetic."""

import math

import torch
from torch import Tensor

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
        raise ValueError(f"embeddings must have shape (B, {embedding_size}), got {tuple(embeddings.shape)}")
    if not embeddings.is_floating_point():
        raise ValueError(f"embeddings must be floating point, got {embeddings.dtype}")
    if labels.dtype != torch.int64 or labels.shape != embeddings.shape[:1]:
        raise ValueError(
            f"labels must be int64 of shape ({len(embeddings)},), one per embedding, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if len(labels) == 0:
        raise ValueError("embeddings is an empty batch; every batch needs at least one sample")
    if not values_are_known():
        return
    low, high = torch.aminmax(labels)
    wide = torch.promote_types(embeddings.dtype, torch.float32)
    norms = torch.linalg.vector_norm(embeddings.detach(), dim=1, dtype=wide)  # NaN and infinity pass through
    low, high, shortest, longest = torch.stack([x.double() for x in (low, high, *torch.aminmax(norms))]).tolist()
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels must lie in [0, {num_classes}), found {low if low < 0 else high:.0f}; "
            "relabel the classes to 0..C-1 or raise num_classes"
        )
    if not math.isfinite(longest):
        what = f"are too long for {wide} to square" if embeddings.isfinite().all() else "contain NaN or infinity"
        raise ValueError(f"embeddings {what}; lower the learning rate or inspect the input images")
    if shortest < least_norm:
        raise ValueError(
            f"embeddings have a norm of {shortest:.3g} in row {norms.argmin().item()}, too little to have a direction; "
            "lower the learning rate or inspect the input images"
        )


def check_finite(**options: float) -> None:
    """Raise ValueError for an option of a loss that is no finite number."""
    for name, value in options.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, got {value!r}")


def check_positive(**options: float) -> None:
    """Raise ValueError for an option of a loss that is no finite number above 0."""
    check_finite(**options)
    for name, value in options.items():
        if value <= 0:
            raise ValueError(f"{name} must be positive, got {value}")
