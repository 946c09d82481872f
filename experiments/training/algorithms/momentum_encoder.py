"""Training without labels towards the embeddings of a momentum encoder: loss(embeddings, momentum embeddings).

Paper      Bhatnagar and Ahuja, "Piecewise-Linear Manifolds for Deep Metric Learning", CPAL 2024; Kim et al.,
           "Self-Taught Metric Learning without Labels", CVPR 2022.
Equations  PLM 1: phi <- gamma phi + (1 - gamma) theta, here after every step, of BatchNorm's statistics as well.
Deviations The encoder embeds in evaluation mode, as everywhere in momentum.py; the papers do not say.
           The papers do not say which network is evaluated either: both are, the trained one counts.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.networks.backbones import Network
from experiments.training import batches
from experiments.training.algorithms import momentum
from experiments.training.spec import RunSpec

Options = momentum.Options  # gamma; 0 makes the encoder the network itself, without the noise of its BatchNorm


def without_labels(task: batches.Task) -> None:
    """Make every training image a class of its own, so that what a batch says of an image is which one it is."""
    task.train_labels = np.arange(len(task.train))


class Algorithm(momentum.Algorithm):
    """A loss with `terms(embeddings, momentum_embeddings) -> {name: value}`, each of which is logged."""

    from_labels = False

    def __init__(self, spec: RunSpec, task: batches.Task, network: Network, options: Any):
        without_labels(task)
        super().__init__(spec, task, network, options)

    def objective(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            targets = self.teacher(images)
        return self.loss.terms(self.network(images), targets)
