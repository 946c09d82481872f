"""pytorch-metric-learning's wrappers around the losses of this package; their names and arguments are the library's."""

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from dmlrepro.extras import require
from dmlrepro.losses._state import _Stateful, replayable

require("pytorch-metric-learning")

from pytorch_metric_learning import losses  # noqa: E402
from pytorch_metric_learning.utils import distributed  # noqa: E402


class _AnyLoss:
    """Of a wrapper: any loss is taken; one without a meaning for how it is called says so when it is."""

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None: ...


class CrossBatchMemory(_AnyLoss, _Stateful, losses.CrossBatchMemory):
    """`CrossBatchMemory(loss, embedding_size, memory_size=1024, miner=None)`; eval() and no_grad leave its memory."""

    embedding_memory: Tensor
    label_memory: Tensor
    kept = ("embedding_memory", "label_memory", "queue_idx", "has_been_filled")
    forward = replayable(losses.CrossBatchMemory.forward)

    def reset_queue(self) -> None:
        super().reset_queue()
        for name in self.kept[:2]:  # no buffers, which averages of weights would average
            memory = getattr(self, name)
            self._buffers.pop(name, None)
            setattr(self, name, memory)

    def add_to_memory(self, *batch: Any) -> None:
        self.embedding_memory, self.label_memory = self.embedding_memory.clone(), self.label_memory.clone()
        super().add_to_memory(*batch)


class SelfSupervisedLoss(_AnyLoss, losses.SelfSupervisedLoss):
    """`SelfSupervisedLoss(loss, symmetric=True)`, called with two views of a batch."""


class DistributedLossWrapper(distributed.DistributedLossWrapper):
    """`DistributedLossWrapper(loss, efficient=False)`, with the gradients of one process, not their multiple.

    The loss must not be called outside of the wrapper while its gradients are collected, nor wrapped twice. EL-nivMF
    draws other samples on each rank, which has the batch in another order: use the gather of examples/two_ranks.py.
    """

    def __init__(self, loss: nn.Module, efficient: bool = False):
        if isinstance(loss, losses.BaseMetricLossFunction | losses.CrossBatchMemory):
            super().__init__(loss, efficient)
        else:  # the library asks for a class, and needs no more than how it is called
            nn.Module.__init__(self)
            self.loss, self.efficient = loss, efficient
        for parameter in loss.parameters():
            if parameter.requires_grad:  # else torch refuses the hook
                parameter.register_hook(lambda grad: grad / dist.get_world_size() if dist.is_initialized() else grad)
