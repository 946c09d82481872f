"""`RetrievalMetric`: retrieval of images that come in batches, on one rank or several. Import it from metrics.py."""

import importlib.util
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor

from dmlrepro.retrieval import MEASURES, averages, retrieval, retrieval_per_query

Value = TypeVar("Value")


class _Alone:
    """What RetrievalMetric needs of torchmetrics' Metric, where that is not installed: states that can be reset."""

    def __init__(self):
        self._states = []

    def add_state(self, name: str, default: list, dist_reduce_fx: str) -> None:
        self._states.append(name)
        setattr(self, name, default)

    def reset(self) -> None:
        """Forget all images."""
        for name in self._states:
            setattr(self, name, [])


Metric: Any = _Alone
if importlib.util.find_spec("torchmetrics") is not None:
    from torchmetrics import Metric  # type: ignore[no-redef]


class RetrievalMetric(Metric):
    """`retrieval` of images that come in batches, called as torchmetrics' are: update, compute, reset.

    Where torchmetrics is installed it is one of its metrics, for `MetricCollection`, for calls that return the measures
    of a batch, and for Lightning.

    Where torch.distributed is initialised, `compute` gathers what all ranks have seen, each rank then ranks its share
    of the queries, and every rank returns the measures of all images, those that one rank would give.

        metric = RetrievalMetric(ks=(1, 8), measures=("MAP@R",))
        for images, labels, places in loader:
            metric.update(net(images), labels, places)
        print(metric.compute())

    Args:
        ks, measures, distance: as in `retrieval`.
        options: of torchmetrics' Metric, where that is installed.

    Raises:
        ValueError: as `retrieval` for ks, measures and distance.
    """

    is_differentiable, higher_is_better, full_state_update = False, True, False

    def __init__(
        self,
        ks: Sequence[int] = (1, 2, 4, 8),
        measures: Collection[str] = MEASURES,
        distance: str = "cosine",
        **options: Any,
    ):
        super().__init__(**options)
        self.how: dict[str, Any] = {"ks": ks, "measures": measures, "distance": distance}
        retrieval(torch.eye(2), [0, 0], **self.how)  # what it refuses, it refuses before the first image
        for name in ("embeddings", "labels", "ids"):  # lists of tensors, one for each batch; ids of all batches or none
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(
        self, embeddings: Tensor | ArrayLike, labels: Tensor | ArrayLike, ids: Tensor | ArrayLike | None = None
    ) -> None:
        """Add a batch: embeddings (B, D), labels (B,) and, if wanted, ids (B,), integers or strings.

        ids name the images, as their places in the data set do. With them an image counts once, however often it
        comes: torch's DistributedSampler repeats some, to give every rank as many, and twins find each other. Ties are
        then broken in the order of ids, and not of arrival, which depends on the number of ranks.

        Raises:
            ValueError: the lengths differ, or the columns from those of the first batch, or names are of another kind.
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
        if self.embeddings and embeddings.shape[1] != self.embeddings[0].shape[1]:
            columns = self.embeddings[0].shape[1]
            raise ValueError(f"embeddings must have {columns} columns as the first had, got {embeddings.shape[1]}")
        if not len(embeddings):
            return
        written = {name: _written(values, name) for name, values in given.items()}
        self.embeddings.append(embeddings)
        for name, values in written.items():
            getattr(self, name).append(values)

    def sync(self, *args: object, **how: object) -> None:
        """Nothing: `compute` gathers by itself, because the ranks divide the queries."""

    @torch.no_grad()
    def compute(self) -> dict[str, float]:
        """The measures of all images since the last reset, as `retrieval` returns them.

        Raises:
            ValueError: as `retrieval`, and if there was no update, or ids came with some of the batches.
        """
        mine = [[batch.cpu() for batch in state] for state in (self.embeddings, self.labels, self.ids)]
        ranks = _of_all_ranks(mine) if getattr(self, "_to_sync", True) else [mine]
        batches, labels, ids = ([batch for rank in ranks for batch in rank[i]] for i in range(3))
        if not batches:
            raise ValueError("there is nothing to compute: call update(embeddings, labels) first")
        points, labels = torch.cat(batches), _read(labels, "labels")
        if len(ids) not in (0, len(batches)):
            raise ValueError("ids came with some batches only: give them to every update, or to none")
        if ids:
            first = np.unique(_read(ids, "ids"), return_index=True)[1]
            points, labels = points[torch.from_numpy(first)], labels[first]
        if self.embeddings:
            points = points.to(self.embeddings[0].device)
        if len(ranks) == 1:
            return retrieval(points, labels, **self.how)
        everything = np.arange(len(points))
        mine = np.array_split(everything, len(ranks))[dist.get_rank()]
        values = None
        if len(mine):
            queries: dict[str, Any] = {"embeddings": points[mine], "labels": labels[mine], "query_ids": mine}
            others: dict[str, Any] = {"gallery": points, "gallery_labels": labels, "gallery_ids": everything}
            values = retrieval_per_query(**queries, **others, **self.how)
        parts = [part for part in _of_all_ranks({name: v.cpu() for name, v in (values or {}).items()}) if part]
        return averages({name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def _on_cpu(values: Tensor | ArrayLike) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.array(values)


def _written(values: np.ndarray, name: str) -> Tensor:
    """Names (B,) as a tensor, which a state must be: integers (B,), strings as their code points (B, longest)."""
    if values.dtype.kind in "biu":
        return torch.from_numpy(values.astype(np.int64))
    if values.dtype.kind == "U" or (values.dtype.kind == "O" and all(isinstance(value, str) for value in values)):
        letters = np.ascontiguousarray(values.astype(str))
        return torch.from_numpy(letters.view(np.uint32).reshape(len(letters), -1).astype(np.int64))
    raise ValueError(f"{name} must be integers or strings, got {values.dtype}")


def _read(batches: list[Tensor], name: str) -> np.ndarray:
    """The names that batches of `_written` hold."""
    if len({batch.ndim for batch in batches}) > 1:
        raise ValueError(f"{name} must be integers in all batches, or strings in all")
    if batches[0].ndim == 1:
        return torch.cat(batches).numpy()
    letters = [np.ascontiguousarray(batch.numpy().astype(np.uint32)) for batch in batches]
    return np.concatenate([batch.view(f"U{batch.shape[1]}")[:, 0] for batch in letters])


def _of_all_ranks(value: Value) -> list[Value]:
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: list = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
