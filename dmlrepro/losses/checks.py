"""Input checks shared by every loss: a bad batch is named before it reaches the arithmetic."""

import torch
from torch import Tensor


def check_batch(embeddings: Tensor, labels: Tensor, num_classes: int, embedding_size: int) -> None:
    """Raise ValueError unless embeddings are finite (B, D) floats and labels are (B,) int64 in [0, num_classes).

    The values are read back once per call, a single small device synchronisation.
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
    low, high = torch.aminmax(labels)
    finite = embeddings.detach().isfinite().all()
    low, high, finite = torch.stack([low, high, finite.to(low.dtype)]).tolist()
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels must lie in [0, {num_classes}), found {low if low < 0 else high}; "
            "relabel the classes to 0..C-1 or raise num_classes"
        )
    if not finite:
        raise ValueError("embeddings contain NaN or infinity; lower the learning rate or inspect the input images")
