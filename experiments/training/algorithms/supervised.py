"""Supervised training: one network and one loss of its embeddings and labels. Every other algorithm extends this one.

An algorithm owns what a step optimises and what happens around it; the loop (loop.py) owns when it happens. It is built
once per run, before the optimiser, and everything it draws comes from the spec's seed.
"""

from typing import Any

import numpy as np
from pydantic import BaseModel
from torch import Tensor, nn

from experiments.checks import STRICT
from experiments.networks.backbones import Network
from experiments.training import batches, inference
from experiments.training.builders import build_loss
from experiments.training.spec import RunSpec


class Options(BaseModel):
    """The options of the algorithm; that of another one adds to them."""

    model_config = STRICT


class Algorithm:
    """loss(embeddings, labels). A subclass overrides hooks; its file has its own `Options`.

    Attributes:
        loss: module whose parameters are learned beside the network's, at the rates `spec.loss_lr`.
        neighbours: (N, k) int64, the groups of which the batches of this epoch are made; None for other batches.
        from_labels: it learns from the labels of the images.
        checkpointed: the attributes that a checkpoint needs beside the modules: tensors and plain data.
    """

    from_labels = True
    checkpointed: tuple[str, ...] = ("neighbours",)

    def __init__(self, spec: RunSpec, task: batches.Task, network: Network, options: Any):
        if not self.from_labels:  # every training image is a class of its own: a label says which image it is
            task.train_labels = np.arange(len(task.train))
        self.spec, self.task, self.network, self.options = spec, task, network, options
        device = next(network.parameters()).device
        loss: Any = build_loss(spec, task.num_classes, network.embedding_size)
        self.loss = loss.to(device)
        self.neighbours: Tensor | None = None
        if spec.proxies_from_class_means:
            self.loss.initialize_proxies(inference.class_means(task, network).to(device))

    def objective(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The terms of the loss of one batch, scalars by name; their sum is minimised and each is logged.

        images: (B, C, H, W) uint8, or what enters the part of the network that is trained. labels: (B,).
        """
        return {"loss": self.loss(self.network(images), labels)}

    def after_step(self) -> None:
        """Called after every step of the optimiser."""

    def before_epoch(self, epoch: int) -> None:
        """Called before the first batch of every epoch, counted from 0, is drawn."""
        if self.spec.neighbours is not None:
            self.neighbours = inference.neighbours(self.task, self.network)

    def after_evaluation(self, step: int, score: float) -> None:
        """Called after every evaluation, with the step and the monitored metric."""

    def continues(self, step: int) -> bool:
        """Called after every step but the last: False stops training. What is optimised may be changed here in place,
        but not what requires a gradient.
        """
        return True

    def evaluated(self) -> dict[str, nn.Module]:
        """The networks whose embeddings are scored: the first, named "", counts for everything that picks a step."""
        return {"": self.network}

    def modules(self) -> dict[str, nn.Module]:
        """What is saved, by name: in checkpoints, as the best weights, and with the finished run."""
        return {"network": self.network, "loss": self.loss}

    def records(self) -> dict[str, dict[str, Tensor]]:
        """What else is saved with the finished run, tensors by name as in a state dict."""
        return {}
