"""Training without labels towards the embeddings of a momentum encoder: loss(embeddings, momentum embeddings).

Paper      Bhatnagar and Ahuja, "Piecewise-Linear Manifolds for Deep Metric Learning", CPAL 2024; Kim et al.,
           "Self-Taught Metric Learning without Labels", CVPR 2022.
Equations  PLM 1: phi <- gamma phi + (1 - gamma) theta, here after every step, of BatchNorm's statistics as well.
Deviations The encoder embeds in evaluation mode, as everywhere in momentum.py; the papers do not say.
           The papers do not say which network is evaluated either: both are, the trained one counts.
"""

import torch
from torch import Tensor

from experiments.training.algorithms import momentum

Options = momentum.Options  # gamma; 0 makes the encoder the network itself, without the noise of its BatchNorm


class Algorithm(momentum.Algorithm):
    """A loss with `terms(embeddings, momentum_embeddings) -> {name: value}`, each of which is logged."""

    from_labels = False

    def objective(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            targets = self.teacher(images)
        return self.loss.terms(self.network(images), targets)
