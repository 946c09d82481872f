"""Training without labels towards the embeddings of a momentum encoder: loss(embeddings, momentum embeddings).

Paper      Bhatnagar and Ahuja, "Piecewise-Linear Manifolds for Deep Metric Learning", CPAL 2024; Kim et al.,
           "Self-Taught Metric Learning without Labels", CVPR 2022.
Equations  PLM 1: phi <- gamma phi + (1 - gamma) theta, here after every step, of BatchNorm's statistics as well.
Deviations The encoder ("teacher") embeds in evaluation mode, so that its BatchNorm statistics are averages too, not a
           batch's; the papers do not say. Nor do they say which network is evaluated: both are, the trained one counts.
"""

import copy
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from experiments.training.algorithms import supervised


class Options(supervised.Options):
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.999  # gamma; 0 makes the encoder a copy of the network


class Algorithm(supervised.Algorithm):
    """A loss with `terms(embeddings, momentum_embeddings) -> {name: value}`, each of which is logged."""

    from_labels = False

    def __init__(self, *run: Any):
        super().__init__(*run)
        self.teacher = copy.deepcopy(self.network).eval().requires_grad_(False)

    def objective(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            targets = self.teacher(images)
        return self.loss.terms(self.network(images), targets)

    @torch.no_grad()
    def after_step(self) -> None:
        ours, theirs = self.teacher.state_dict(), self.network.state_dict()
        for name, average in ours.items():
            if average.is_floating_point():
                average.lerp_(theirs[name], 1 - self.options.momentum)
            else:  # the number of batches that BatchNorm has seen
                average.copy_(theirs[name])

    def evaluated(self) -> dict[str, nn.Module]:
        return super().evaluated() | {"teacher": self.teacher}

    def modules(self) -> dict[str, nn.Module]:
        return super().modules() | {"teacher": self.teacher}
