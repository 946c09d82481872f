"""A teacher that follows the network: the exponential moving average of its weights and BatchNorm statistics.

Paper      Tarvainen and Valpola, "Mean teachers are better role models", NeurIPS 2017; as a momentum encoder in
           self-supervised metric learning (Kim et al., "Self-Taught Metric Learning without Labels", CVPR 2022).
Equations  theta' <- m theta' + (1 - m) theta after every step; consistency w (1 - cos(z, z')), averaged over the batch.
Deviations The teacher embeds in evaluation mode, so that its BatchNorm statistics are averages too, not a batch's.
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.networks.backbones import Network
from experiments.training import batches
from experiments.training.schemes import supervised
from experiments.training.spec import RunSpec


class Scheme(supervised.Scheme):
    """Supervised training whose network is drawn to its own moving average; both are evaluated.

    Args:
        momentum: m in [0, 1); 0 makes the teacher a copy of the network.
        consistency: weight w of the second term; 0 leaves the network as supervised training would have it.
    """

    def __init__(
        self,
        spec: RunSpec,
        task: batches.Task,
        network: Network,
        *,
        momentum: float = 0.999,
        consistency: float = 0.0,
    ):
        super().__init__(spec, task, network)
        self.momentum, self.consistency = momentum, consistency
        self.teacher = copy.deepcopy(network).eval().requires_grad_(False)

    @staticmethod
    def check(*, momentum: float, consistency: float = 0.0) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {momentum}")
        if not 0 <= consistency < math.inf:
            raise ValueError(f"consistency must be finite and at least 0, got {consistency}")

    def objective(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        embeddings = self.network(images)
        terms = {"loss": self.loss(embeddings, labels)}
        if self.consistency:
            with torch.no_grad():
                target = self.teacher(images)
            distance = 1 - F.cosine_similarity(embeddings.float(), target.float())
            terms["consistency"] = self.consistency * distance.mean()
        return terms

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
