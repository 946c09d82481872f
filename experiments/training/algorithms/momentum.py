"""A teacher that follows the network: the exponential moving average of its weights and BatchNorm statistics.

Paper      Tarvainen and Valpola, "Mean teachers are better role models", NeurIPS 2017; as a momentum encoder in
           self-supervised metric learning (Kim et al., "Self-Taught Metric Learning without Labels", CVPR 2022).
Equations  theta' <- m theta' + (1 - m) theta after every step.
Deviations The teacher embeds in evaluation mode, so that its BatchNorm statistics are averages too, not a batch's.
"""

import copy
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from experiments.training.algorithms import supervised


class Options(supervised.Options):
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.999  # m; 0 makes the teacher a copy of the network


class Algorithm(supervised.Algorithm):
    """Supervised training beside whose network its moving average is kept; both are evaluated."""

    def __init__(self, *run: Any):
        super().__init__(*run)
        self.teacher = copy.deepcopy(self.network).eval().requires_grad_(False)

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
