"""pytorch-metric-learning's wrappers for the losses of this package: the same names and arguments, other imports.

Its trainers and MultipleLosses take any loss. CrossBatchMemory takes the names of its own losses only, and
DistributedLossWrapper its own classes; these subclasses take every loss that can be called as they call it.

    CrossBatchMemory        Calls with mined pairs and past embeddings: for ProxyContrastiveLoss, ProxyTripletLoss,
                            ProxyMultiSimilarityLoss and the pair losses of `baselines`; the others say that they
                            have no meaning for these.
    DistributedLossWrapper  Every loss of embeddings and labels. The library's multiplies the gradients of a loss's
                            parameters by the number of ranks; this one gives those of one rank. Each rank sees the
                            batch in another order, so that EL-nivMF draws other samples on each: use the gather of
                            examples/two_ranks.py instead.
"""

import torch.distributed as dist
from torch import Tensor, nn

from dmlrepro.extras import require

require("pytorch-metric-learning")

from pytorch_metric_learning import losses  # noqa: E402
from pytorch_metric_learning.utils import distributed  # noqa: E402


class CrossBatchMemory(losses.CrossBatchMemory):
    """`pytorch_metric_learning.losses.CrossBatchMemory(loss, embedding_size, memory_size=1024, miner=None)`."""

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Any loss is taken; one without a meaning for past embeddings says so when it is called."""


class DistributedLossWrapper(distributed.DistributedLossWrapper):
    """`pytorch_metric_learning.utils.distributed.DistributedLossWrapper(loss, efficient=False)`.

    The loss must not be called outside of the wrapper while its gradients are collected, nor wrapped twice.
    """

    def __init__(self, loss: nn.Module, efficient: bool = False):
        own = isinstance(loss, losses.BaseMetricLossFunction | losses.CrossBatchMemory)
        super().__init__(loss if own else _Called(loss), efficient)
        for parameter in loss.parameters():
            if parameter.requires_grad:  # else torch refuses the hook
                parameter.register_hook(_over_ranks)


class _Called(losses.BaseMetricLossFunction):
    """A loss behind the base class that the wrapper asks for."""

    def __init__(self, loss: nn.Module):
        super().__init__()
        self.loss = loss

    def forward(self, embeddings: Tensor, labels=None, indices_tuple=None, ref_emb=None, ref_labels=None) -> Tensor:
        return self.loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)


def _over_ranks(gradient: Tensor) -> Tensor:
    return gradient / dist.get_world_size() if dist.is_initialized() else gradient
