"""pytorch-metric-learning's losses: `pml.PFML(num_classes, embedding_size, ...)` and so on, by the names of
`dir(dmlrepro.losses)`, are each a `Loss`. Its wrappers are those of pml_wrappers.py."""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from dmlrepro import losses as ours
from dmlrepro.extras import require
from dmlrepro.losses.baselines import proxies_of
from dmlrepro.losses.checks import _TwoViews, check_unused
from dmlrepro.losses.recommended import order_one as order_one
from dmlrepro.pml_wrappers import CrossBatchMemory, DistributedLossWrapper, SelfSupervisedLoss  # noqa: F401

require("pytorch-metric-learning")

from pytorch_metric_learning import losses, reducers  # noqa: E402
from pytorch_metric_learning.utils import loss_and_miner_utils  # noqa: E402


class Loss(losses.BaseMetricLossFunction):
    """A loss of this package as one of pytorch-metric-learning's: `Loss(loss, ...)`, or `PFML(its arguments, ...)`.

    Value and bounds of gradients are the loss's own times scale (see `order_one`), 0 for an empty batch. A reducer gets
    the losses of samples or pairs; ValueError where there are none. A miner chooses the pairs, or weighs the samples.
    """

    build: Any = staticmethod(lambda loss: loss)

    def __init__(self, *args: Any, scale: float = 1.0, reducer: nn.Module | None = None, **options: Any):
        known = ("embedding_regularizer", "embedding_reg_weight", "collect_stats")
        super().__init__(**{name: options.pop(name) for name in known if name in options})
        if not 0 < scale < float("inf"):
            raise ValueError(f"scale must be a finite number above 0, got {scale!r}")
        self.distance = None  # that of the equation counts
        self.loss, self.scale = self.build(*args, **options), scale
        self.set_reducer(reducer)

    @property
    def proxies(self) -> Tensor:
        """The class vectors of the loss as it keeps them, those of the library's as (C, M, D)."""
        if (vectors := self.loss.proxies if hasattr(self.loss, "proxies") else proxies_of(self.loss)) is None:
            raise AttributeError(f"{type(self).__name__} has no class vectors")
        return vectors

    def parameter_groups(self, lr: float) -> list[dict]:
        """The recommended groups of the loss, their bounds scaled as the gradients are."""
        groups, bound = self.loss.parameter_groups(lr), "clip_value"
        return [group | {bound: self.scale * group[bound]} if bound in group else group for group in groups]

    @property
    def _library(self) -> Any:
        """The library's loss behind a baseline."""
        inner = getattr(getattr(self, "loss", None), "loss", None)  # no loss yet while the base class is set up
        return inner if isinstance(inner, losses.BaseMetricLossFunction) else None

    def set_reducer(self, reducer: nn.Module | None) -> None:
        """As of the library; None: the loss averages itself."""
        if self._library:
            self._library.set_reducer(reducer and reducers.DoNothingReducer())
        elif reducer and not (hasattr(self.loss, "per_sample") or hasattr(self.loss, "per_pair")):
            raise ValueError(
                f"reducer must be None, got {type(reducer).__name__}: {type(self.loss).__name__} has one value for the "
                "whole batch, which is no average of losses of single samples or pairs"
            )
        self.whole = reducer is None
        super().set_reducer(reducer)

    def _sub_loss_names(self) -> list[str]:
        if self._library and not self.whole:
            return self._library.sub_loss_names()
        return ["loss"] if self.whole or not hasattr(self.loss, "per_pair") else ["pos_loss", "neg_loss"]

    def forward(self, embeddings: Tensor, *others: Any, **named: Any):
        # the library's reducers add in the type of the embeddings
        return super().forward(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)), *others, **named)

    def compute_loss(self, embeddings: Tensor, labels: Any, indices_tuple: Any, ref_emb: Any, ref_labels: Any) -> dict:
        if not len(embeddings):
            return self.zero_losses()
        if ref_emb is embeddings and ref_labels is labels:  # the library's way to say that there are none
            ref_emb = ref_labels = None
        if isinstance(self.loss, _TwoViews):
            labels = ref_labels = None  # SelfSupervisedLoss gives some to losses that learn without
        given, of_pairs = (embeddings, labels, indices_tuple, ref_emb, ref_labels), hasattr(self.loss, "pairs")
        weighs = indices_tuple is not None and hasattr(self.loss, "per_sample") and not of_pairs
        if self.whole and not weighs:
            terms = {"loss": (self.loss(*given), None, "already_reduced")}
        elif self._library:
            terms = {name: tuple(term.values()) for name, term in self.loss(*given).items()}
        elif hasattr(self.loss, "per_pair"):
            a, b, *masks = self.loss.pairs(*given)
            chosen = zip(("pos", "neg"), self.loss.per_pair(a, b), (mask.nonzero(as_tuple=True) for mask in masks))
            terms = {f"{kind}_loss": (values[places], places, f"{kind}_pair") for kind, values, places in chosen}
        else:
            if not of_pairs:
                check_unused(self.loss, ref_emb=ref_emb, ref_labels=ref_labels)
            values = self.loss.per_sample(*(given if of_pairs else given[:2]))
            if weighs:
                if getattr(self.loss, "regularization", 0):
                    raise ValueError("indices_tuple would weigh the regulariser, too; set regularization to 0")
                values = values * loss_and_miner_utils.convert_to_weights(indices_tuple, labels, values.dtype)
            terms = {"loss": (values, torch.arange(len(values), device=values.device), "element")}
        keys = ("losses", "indices", "reduction_type")  # what reducers get, in the library's order
        return {name: dict(zip(keys, (self.scale * values, *about))) for name, (values, *about) in terms.items()}

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}"


@functools.cache
def __getattr__(name: str) -> type[Loss]:
    if name.startswith("_") or name not in dir(ours):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; dir({__name__}) lists the losses")
    build = getattr(ours, name)
    return type(name, (Loss,), {"build": staticmethod(build), "__doc__": build.__doc__, "__module__": __name__})


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(ours)})
