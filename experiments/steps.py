"""What a training step costs with different losses: one harness for the cost notebooks of all papers.

A step is the network's forward and backward pass and update, which no loss changes, and the loss's forward and backward
pass with the update of its proxies. Within a repetition all are measured in turn, and only ratios within a repetition
are compared. The network's passes are measured on a few random images and scaled up to the batch.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from experiments import timing
from experiments.networks import backbones
from experiments.training.builders import OPTIMIZERS

ROUNDS = 2  # of a repetition; the fastest one counts
STILL = 1e-12  # a learning rate so small that the points stay where they are


class LossStep:
    """The loss's part of a training step: forward, backward to embeddings (B, D) and proxies, update; labels (B,)."""

    def __init__(self, loss: nn.Module, embeddings: Tensor, labels: Tensor, device: torch.device):
        self.loss: Any = loss.to(device)
        self.embeddings = embeddings.to(device).requires_grad_()
        self.labels = labels.to(device)
        # of a loss without parameters it updates nothing
        self.optimizer = OPTIMIZERS["adam"]([*self.loss.parameters()] or [torch.zeros(())], lr=STILL)

    def __call__(self) -> None:
        self.embeddings.grad = None
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(self.embeddings, self.labels).backward()
        self.optimizer.step()


def network_step(network: backbones.EmbeddingNet, images: Tensor) -> tuple[Callable[[], None], Callable[[], None]]:
    """A network's passes on some images (N, 3, H, W), and its update."""
    optimizer = OPTIMIZERS["adam"](network.train().parameters(), lr=STILL)
    gradient = torch.ones(len(images), network.embedding_size, device=images.device)

    def passes() -> None:
        network.zero_grad(set_to_none=True)
        network(images).backward(gradient)

    return passes, optimizer.step


def network_and_images(
    backbone: str, weights: str, embedding_size: int, count: int, image_size: int, device: torch.device
) -> tuple[backbones.EmbeddingNet, Tensor]:
    """The network, with weights as a notebook's parameters name them, and so many random images for it."""
    network = backbones.build(backbone, embedding_size, weights=None if weights == "none" else weights).to(device)
    images = torch.randint(256, (count, 3, image_size, image_size), generator=torch.Generator().manual_seed(0))
    return network, images.to(device, torch.uint8)


def in_turn(
    losses: Mapping[timing.Key, Callable[[], object]],
    network: tuple[Callable[[], None], Callable[[], None]],
    share: float,
    repetitions: int,
    device: torch.device,
) -> tuple[dict[timing.Key, list[float]], list[float]]:
    """({name: seconds of the loss's part}, seconds of the network's part), a number per repetition; network: what
    `network_step` gives; share: its images over those of a batch."""
    passes, update = network
    calls: dict = {("network", "passes"): passes, ("network", "update"): update} | dict(losses)
    times = timing.in_turn(calls, repetitions, device.type, rounds=ROUNDS)
    passes, update = times.pop(("network", "passes")), times.pop(("network", "update"))
    return times, [one / share + other for one, other in zip(passes, update)]
