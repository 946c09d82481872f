"""`RetrievalMetric`: retrieval of images that come in batches, on one rank or several. Import it from metrics.py."""

import hashlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor

from dmlrepro.extras import require
from dmlrepro.retrieval import DEFAULT_MEASURES, retrieval

require("torchmetrics")
from torchmetrics import Metric  # noqa: E402

NAMES = ("labels", "ids")


class RetrievalMetric(Metric):
    """`retrieval` of images that come in batches, a metric of torchmetrics: update, compute, reset, and a call that
    returns the measures of its batch.

        metric = RetrievalMetric(ks=(1, 8), measures=("MAP@R",))
        for images, labels, places in loader:
            metric.update(net(images), labels, places)
        print(metric.compute())

    Where torch.distributed is initialised, every rank returns the measures of all images, those that one rank would
    give. A call that raises leaves the images that came before.

    Args:
        ks, measures, distance: as in `retrieval`.
        options: of torchmetrics' Metric.

    Raises:
        ModuleNotFoundError: torchmetrics is not installed.
        ValueError: as `retrieval` for ks, measures and distance.
    """

    is_differentiable, higher_is_better, full_state_update = False, True, False
    embeddings: list[Tensor]
    labels: list[Tensor]
    ids: list[Tensor]
    strings: Tensor

    def __init__(
        self,
        ks: Sequence[int] = (1, 2, 4, 8),
        measures: Collection[str] = DEFAULT_MEASURES,
        distance: str = "cosine",
        **options: Any,
    ):
        super().__init__(**{"dist_sync_fn": _of_all_ranks} | options)
        self.how: dict[str, Any] = {"ks": ks, "measures": measures, "distance": distance}
        self.names = list(retrieval(torch.eye(2), [0, 0], **self.how))  # what it refuses, it refuses before any image
        for name in ("embeddings", *NAMES):  # one tensor for each batch; ids of all batches or none
            self.add_state(name, default=[], dist_reduce_fx="cat")
        self.add_state("strings", default=torch.zeros(2, dtype=torch.long), dist_reduce_fx="sum")  # of labels, of ids

    def forward(self, *batch: Any, **named: Any) -> dict[str, float]:
        """Add a batch as `update` does and return its measures, NaN where no image has another of its class."""
        held = {name: value if isinstance(value, Tensor) else [*value] for name, value in self.metric_state.items()}
        count = self._update_count
        try:
            measures = super().forward(*batch, **named)
            _check_columns(self.embeddings)  # of which torchmetrics shows `update` those of the batch alone
            return measures
        except BaseException:
            self.reset()
            for name, value in held.items():
                setattr(self, name, value)
            self._update_count, self._to_sync, self._should_unsync = count, self.sync_on_compute, True
            raise

    def update(
        self, embeddings: Tensor | ArrayLike, labels: Tensor | ArrayLike, ids: Tensor | ArrayLike | None = None
    ) -> None:
        """Add a batch: embeddings (B, D), labels (B,) and, if wanted, ids (B,), integers or strings.

        ids name the images, as their places in the data set do. With them an image counts once, however often it
        comes: torch's DistributedSampler repeats some, to give every rank as many, and an image would find its copy.
        Ties are then broken by ids, strings by their digests, and not in the order of arrival.

        Raises:
            ValueError: lengths differ, or columns from those of the first batch, or names are no integers or strings.
        """
        if isinstance(embeddings, Tensor):
            embeddings = embeddings.detach().clone()
        else:
            embeddings = torch.from_numpy(np.array(embeddings))
        given = {"labels": _on_cpu(labels)} | ({} if ids is None else {"ids": _on_cpu(ids)})
        for name, values in given.items():
            if embeddings.ndim != 2 or values.shape != embeddings.shape[:1]:
                raise ValueError(
                    f"{name} must be one for each row of embeddings (B, D), got {name} of shape {values.shape} and "
                    f"embeddings of shape {tuple(embeddings.shape)}"
                )
        _check_columns([*self.embeddings, embeddings])
        if not len(embeddings):
            return
        numbers = {name: _numbers(values, name).to(embeddings.device) for name, values in given.items()}
        self.embeddings.append(embeddings)
        for name, values in numbers.items():
            getattr(self, name).append(values)
        strings = [len(embeddings) * int(name in given and given[name].dtype.kind not in "biu") for name in NAMES]
        self.strings = self.strings + torch.tensor(strings, device=self.strings.device)

    @torch.no_grad()
    def compute(self) -> dict[str, float]:
        """The measures of all images since the last reset, as `retrieval` returns them; NaN, and every image
        `excluded`, where no image has another of its class.

        Raises:
            ValueError: as `retrieval`; there was no update; ids came with some batches only, or one has several labels.
        """
        points, labels, ids = (_joined(state) for state in (self.embeddings, self.labels, self.ids))
        if not len(labels):
            raise ValueError("there is nothing to compute: call update(embeddings, labels) first")
        if len(ids) not in (0, len(labels)):
            raise ValueError("ids came with some batches only: give them to every update, or to none")
        for name, strings in zip(NAMES, self.strings.tolist()):
            if strings not in (0, len(labels)):
                raise ValueError(f"{name} must be integers in all batches, or strings in all")
        if len(ids):
            found = np.unique(ids.cpu().numpy(), return_index=True, return_inverse=True)[1:]
            first, copies = (torch.from_numpy(rows).to(points.device) for rows in found)
            if (labels[first][copies] != labels).any():
                raise ValueError("ids must tell images apart: images of one id have several labels")
            points, labels = points[first], labels[first]
        if len(labels.unique()) == len(labels):
            return dict.fromkeys(self.names, torch.nan) | {"excluded": float(len(labels))}
        return retrieval(points, labels, **self.how)


def _check_columns(batches: list[Tensor]) -> None:
    first, last = batches[0].shape[1], batches[-1].shape[1]
    if first != last:
        raise ValueError(f"embeddings must have {first} columns as the first had, got {last}")


def _joined(state: list[Tensor] | Tensor) -> Tensor:
    """A state, which torchmetrics joins where it has gathered it."""
    if isinstance(state, Tensor):
        return state
    return torch.cat([batch.to(state[0].device) for batch in state]) if state else torch.empty(0)


def _on_cpu(values: Tensor | ArrayLike) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.array(values)


def _numbers(values: np.ndarray, name: str) -> Tensor:
    """Names (B,) as int64, which a state must be; strings by the first 8 bytes of their digests."""
    if values.dtype.kind in "biu":
        return torch.from_numpy(values.astype(np.int64))
    if values.dtype.kind == "U" or (values.dtype.kind == "O" and all(isinstance(value, str) for value in values)):
        digests = b"".join(hashlib.blake2b(value.encode(), digest_size=8).digest() for value in values.tolist())
        return torch.frombuffer(bytearray(digests), dtype=torch.int64) if digests else torch.empty(0).long()
    raise ValueError(f"{name} must be integers or strings, got {values.dtype}")


def _of_all_ranks(mine: Tensor, group: Any = None) -> list[Tensor]:
    """The tensors of all ranks that have any numbers; torchmetrics' own cannot gather from one without a batch."""
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, mine.cpu(), group)
    return [each.to(mine.device) for each in gathered if each.numel()] or [mine]
