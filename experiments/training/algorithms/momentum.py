"""A teacher that follows the network: the exponential moving average of its weights and BatchNorm statistics.

Paper      Tarvainen and Valpola, "Mean teachers are better role models", NeurIPS 2017; as a momentum encoder in
           self-supervised metric learning (Kim et al., "Self-Taught Metric Learning without Labels", CVPR 2022).
Equations  theta' <- m theta' + (1 - m) theta after every step.
Deviations The teacher embeds in evaluation mode, so that its BatchNorm statistics are averages too, not a batch's.
"""

import copy

import torch
from torch import nn

from experiments.networks.backbones import Network
from experiments.training import batches
from experiments.training.algorithms import supervised
from experiments.training.spec import RunSpec


class Algorithm(supervised.Algorithm):
    """Supervised training beside whose network its moving average is kept; both are evaluated.

    Args:
        momentum: m in [0, 1); 0 makes the teacher a copy of the network.
    """

    def __init__(self, spec: RunSpec, task: batches.Task, network: Network, *, momentum: float = 0.999):
        super().__init__(spec, task, network)
        self.momentum = momentum
        self.teacher = copy.deepcopy(network).eval().requires_grad_(False)

    @staticmethod
    def check(*, momentum: float) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {momentum}")

    @torch.no_grad()
    def after_step(self) -> None:
        ours, theirs = self.teacher.state_dict(), self.network.state_dict()
        for name, average in ours.items():
            if average.is_floating_point():
                average.lerp_(theirs[name], 1 - self.momentum)
            else:  # the number of batches that BatchNorm has seen
                average.copy_(theirs[name])

    def evaluated(self) -> dict[str, nn.Module]:
        return super().evaluated() | {"teacher": self.teacher}

    def modules(self) -> dict[str, nn.Module]:
        return super().modules() | {"teacher": self.teacher}
