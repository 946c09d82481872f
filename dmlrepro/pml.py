"""pytorch-metric-learning's classes for the losses of this package.

`pml.PFML(num_classes, embedding_size, ...)` and so on, by the short names of `dir(dmlrepro.losses)`, are the losses
below pytorch-metric-learning's base class, `losses.BaseMetricLossFunction`: with a scale, a reducer, an embedding
regulariser, weights of mined samples, and zero for an empty batch, see `Loss`. The wrappers have the library's names
and arguments and take all losses, these and, but for those without labels, the plain ones:

    CrossBatchMemory        Calls with mined pairs and past embeddings: for CCPContrastive, CCPTriplet,
                            CCPMultiSimilarity and the pair losses of `baselines`; the others say that they have no
                            meaning for these.
    SelfSupervisedLoss      Symmetric, a batch of 2 B with a label for each image: for every loss of labels, with as
                            many classes as images. Otherwise calls with the other view: for those above, and as
                            momentum embeddings for pml.PLM and pml.ContextualSimilarity.
    DistributedLossWrapper  Every loss of embeddings and labels. The library's multiplies the gradients of a loss's
                            parameters by the number of ranks; this one gives those of one rank. Each rank sees the
                            batch in another order, so that EL-nivMF draws other samples on each: use the gather of
                            examples/two_ranks.py instead.

The library's trainers and MultipleLosses take any loss. What it adds up should be of one order, and a sum over pairs is
not: PFML is about 5e5 where a softmax is 5. `order_one` gives the scale for yours:

    scale = pml.order_one(losses.PFML(100, 64), embeddings, labels)  # of a first batch, 1e-6 or so
    both = MultipleLosses([pml.PFML(100, 64, scale=scale), pml.NormSoftmax(100, 64)])
"""

import copy
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dmlrepro import losses as ours
from dmlrepro.extras import require
from dmlrepro.losses._names import NAMES
from dmlrepro.losses.checks import check_unused

require("pytorch-metric-learning")

from pytorch_metric_learning import losses, reducers  # noqa: E402
from pytorch_metric_learning.utils import distributed, loss_and_miner_utils  # noqa: E402


class Loss(losses.BaseMetricLossFunction):
    """A loss of this package as one of pytorch-metric-learning's: `Loss(loss, ...)`, or `PFML(its arguments, ...)`.

    Without a reducer the loss averages itself, and the value is its own. With one, it is handed the losses of single
    samples or pairs, which the losses of this package have where their equation does: NivMF, MFCont, NormSoftmax,
    ProxyNCAPP and CCPMultiSimilarity of samples, CCPContrastive of pairs, and what the library computes as there.

    A miner's pairs or triplets choose the pairs of a loss of pairs. Of the others those that have losses of samples
    weigh a sample as the library's do, by how often it is among them; the rest raise ValueError.

    Args:
        scale: factor of the value, and of the "clip_value" that `parameter_groups` gives; see `order_one`.
        reducer, embedding_regularizer, embedding_reg_weight, collect_stats: as in pytorch-metric-learning.

    Raises:
        ValueError: scale is no finite number above 0, or a reducer is given to a loss that has no losses of samples.
    """

    loss: Any
    build: Callable[..., nn.Module] = staticmethod(lambda loss: loss)

    def __init__(
        self,
        *args: Any,
        scale: float = 1.0,
        reducer: nn.Module | None = None,
        embedding_regularizer: nn.Module | None = None,
        embedding_reg_weight: float = 1.0,
        collect_stats: bool | None = None,
        **options: Any,
    ):
        super().__init__(
            embedding_regularizer=embedding_regularizer,
            embedding_reg_weight=embedding_reg_weight,
            collect_stats=collect_stats,
        )
        if not 0 < scale < math.inf:
            raise ValueError(f"scale must be a finite number above 0, got {scale!r}")
        self.loss, self.scale = self.build(*args, **options), scale
        if reducer is not None:
            self.set_reducer(reducer)

    @property
    def proxies(self) -> Tensor:
        """The class vectors of the loss as it keeps them, those of a loss of the library as (C, M, D); AttributeError
        where it has none."""
        from dmlrepro.losses.baselines import proxies_of

        if hasattr(self.loss, "proxies"):
            return self.loss.proxies
        vectors = proxies_of(self.loss)
        if vectors is None:
            raise AttributeError(f"{type(self).__name__} has no class vectors")
        return vectors

    def parameter_groups(self, lr: float) -> list[dict]:
        """The recommended groups of the loss; bounds of gradients are scaled as these are."""
        groups = self.loss.parameter_groups(lr)
        for group in groups:
            if "clip_value" in group:
                group["clip_value"] *= self.scale
        return groups

    def set_reducer(self, reducer: nn.Module | None) -> None:
        """As of the library; None: the loss averages itself."""
        if "loss" in self._modules:
            if self._librarys:
                self._librarys.set_reducer(reducer and reducers.DoNothingReducer())
            elif reducer and not (hasattr(self.loss, "per_sample") or hasattr(self.loss, "per_pair")):
                raise ValueError(
                    f"reducer must be None, got {type(reducer).__name__}: {type(self.loss).__name__} has one value for "
                    "the whole batch, which is no average of losses of single samples or pairs"
                )
        self.whole = reducer is None
        super().set_reducer(reducer)

    def get_default_distance(self) -> None:
        """None: that of the equation counts."""

    @property
    def _librarys(self) -> Any:
        """The library's loss behind a baseline."""
        inner = getattr(self.loss, "loss", None)
        return inner if isinstance(inner, losses.BaseMetricLossFunction) else None

    def _sub_loss_names(self) -> list[str]:
        if "loss" not in self._modules or self.whole:
            return ["loss"]
        if self._librarys:
            return self._librarys.sub_loss_names()
        return ["pos_loss", "neg_loss"] if hasattr(self.loss, "per_pair") else ["loss"]

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ):
        # the library's reducers add in the type of the embeddings
        wide = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        return super().forward(wide, labels, indices_tuple, ref_emb, ref_labels)

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
    ) -> dict[str, dict]:
        if not len(embeddings):
            return self.zero_losses()
        if ref_emb is embeddings:  # the library's way to say that there are none
            ref_emb = ref_labels = None
        elif ref_labels is not None and ref_labels is labels:
            ref_labels = labels.view_as(labels)  # of one tensor the library thinks that it is one batch
        if "momentum_embeddings" in inspect.signature(self.loss.forward).parameters:
            labels = ref_labels = None  # SelfSupervisedLoss gives some to losses that learn without
        of_pairs = hasattr(self.loss, "pairs")
        weights = 1.0
        if indices_tuple is not None and hasattr(self.loss, "per_sample") and not of_pairs:
            weights = loss_and_miner_utils.convert_to_weights(indices_tuple, labels, embeddings.dtype)
            indices_tuple = None
        given = (embeddings, labels, indices_tuple, ref_emb, ref_labels)
        if self.whole and isinstance(weights, float):
            terms = {"loss": _said(self.loss(*given), None, "already_reduced")}
        elif self._librarys:
            terms = self.loss(*given)
        elif hasattr(self.loss, "per_pair"):
            a, b, *chosen = self.loss.pairs(*given)
            terms = {}
            for kind, hinges, mask in zip(("pos", "neg"), self.loss.per_pair(a, b), chosen):
                places = mask.nonzero(as_tuple=True)
                terms[f"{kind}_loss"] = _said(hinges[places], places, f"{kind}_pair")
        else:
            if not of_pairs:
                check_unused(self.loss, ref_emb=ref_emb, ref_labels=ref_labels)
            values = self.loss.per_sample(*(given if of_pairs else given[:2]))
            every = torch.arange(len(values), device=values.device)
            terms = {"loss": _said(weights * values, every, "element")}
        return {name: term | {"losses": self.scale * term["losses"]} for name, term in terms.items()}

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}"


def _said(values: Tensor, indices: Tensor | tuple[Tensor, ...] | None, kind: str) -> dict:
    return {"losses": values, "indices": indices, "reduction_type": kind}


@functools.cache
def _named(name: str) -> type[Loss]:
    build = getattr(ours, name)
    opening = f"`dmlrepro.losses.{name}` as a loss of pytorch-metric-learning: its arguments, and those of `Loss`.\n\n"
    members = {"build": staticmethod(build), "__doc__": opening + (inspect.getdoc(build) or ""), "__module__": __name__}
    return type(name, (Loss,), members)


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; dir({__name__}) lists the losses")
    return _named(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *NAMES})


def order_one(loss: nn.Module, embeddings: Tensor, labels: Tensor | None = None, **more: Any) -> float:
    """The power of ten that makes the value of a loss on this batch lie between 0.3 and 3.2; the loss stays as it is.

    Take a batch of the first steps: most losses fall, a sum over the violated ones by orders. Raises ValueError where
    the value is zero or not finite.
    """
    with torch.no_grad():
        value = abs(float(copy.deepcopy(loss)(embeddings, labels, **more)))
    if not 0 < value < math.inf:
        raise ValueError(f"loss must have a finite value other than 0 on this batch, got {value}; give another batch")
    return 10.0 ** -round(math.log10(value))


class CrossBatchMemory(losses.CrossBatchMemory):
    """`pytorch_metric_learning.losses.CrossBatchMemory(loss, embedding_size, memory_size=1024, miner=None)`."""

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Any loss is taken; one without a meaning for past embeddings says so when it is called."""


class SelfSupervisedLoss(losses.SelfSupervisedLoss):
    """`pytorch_metric_learning.losses.SelfSupervisedLoss(loss, symmetric=True)`, called with two views of a batch."""

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Any loss is taken; one without a meaning for how it is called says so when it is."""


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

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        return self.loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)


def _over_ranks(gradient: Tensor) -> Tensor:
    return gradient / dist.get_world_size() if dist.is_initialized() else gradient
