"""What the examples train on: 30 classes to learn from and 30 others to test on, no file and no download.

A class is a point in 8 of 64 dimensions, and its 16 samples scatter around it in all of them. Which dimensions tell
classes apart is what training finds out.
"""

import torch
from torch import Tensor, nn

from dmlrepro.metrics import retrieval

CLASSES, DIM = 30, 16


def samples(noise: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training samples (480, 64) and labels (480,), and as many of the test classes.

    noise: how far samples scatter in the 56 dimensions that say nothing of the class; in the others it is 0.3.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(2 * CLASSES).repeat_interleave(16)
    rotation = torch.linalg.qr(torch.randn(64, 64, generator=generator)).Q
    x = torch.randn(len(labels), 64, generator=generator) * torch.tensor([0.3] * 8 + [noise] * 56)
    x[:, :8] += torch.randn(2 * CLASSES, 8, generator=generator)[labels]
    x, half = x @ rotation, len(labels) // 2
    return x[:half], labels[:half], x[half:], labels[half:] - CLASSES


def network() -> nn.Module:
    """Samples (B, 64) -> embeddings (B, DIM)."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, DIM))


@torch.no_grad()
def recall(embed: nn.Module, noise: float = 1.0) -> float:
    """R@1 of the test classes."""
    _, _, x, y = samples(noise)
    return retrieval(embed(x), y, ks=(1,))["R@1"]
