"""Ranking by distance: who is near whom, and the retrieval scores that follow. What training needs of the metrics.

Distances are those of float64 whatever the input type, compared in steps of 2^-32 of their range, and ties are broken
by gallery index, so neither the rounding of a matrix product nor the block size reorders equal embeddings.

A large gallery is searched in float32 first. What that finds is ranked in float64, and a query whose list the rounding
of float32 leaves open is searched in float64 after all, so that lists and measures are those of float64.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

INDEX_BITS = 29  # half squared distances lie in [0, 2]: 34 bits of steps, 63 with the index
SPARE = 64  # the search in float32 keeps so many candidates beyond those asked for
SMALLEST_SEARCH = 2**15  # a smaller gallery is ranked in float64 at once, which takes no longer
CPU_BLOCK, CPU_LISTS = 2**21, 2**18  # numbers of a block of distances, of the candidates' vectors: a CPU's caches
LEAST_NORM = 1e-12  # a shorter vector is taken to have no direction


def retrieval(
    embeddings: Tensor,
    labels: Tensor,
    ks: Sequence[int] = (1, 2, 4, 8),
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    distance: str = "cosine",
    block: int | None = None,
) -> dict[str, float]:
    """Retrieval measures averaged over the queries, as fractions in [0, 1]: the means of `retrieval_per_query`.

    Args:
        embeddings: queries (N, D).
        labels: (N,) integers.
        ks: ranks K of R@K.
        gallery, gallery_labels: (G, D) and (G,); without them each query searches all other queries.
        distance: "cosine" or "euclidean".
        block: queries compared at once, by default what keeps the block's distances below 2^21 on a CPU, and in a
            sixteenth of the memory of a GPU. Memory is O(block x G) and three copies of the vectors, never N x G; the
            result does not depend on it.

    Returns:
        R@K for each K, P@1, RP, MAP@R, mAP@1000 and mAP@1000/class_size, and `excluded`, the number of queries without
        a relevant gallery item (a class of one item); they count in no average.

    Raises:
        ValueError: a wrong shape or type, NaN or infinity, a vector without direction if the distance is "cosine", or
            no query with a relevant item.
    """
    values = retrieval_per_query(embeddings, labels, ks, gallery, gallery_labels, distance, block)
    kept = values["relevant"] > 0
    if not kept.any():
        raise ValueError("labels give no query a relevant gallery item: every class has one item, nothing to evaluate")
    means = {name: value[kept].mean().item() for name, value in values.items() if name != "relevant"}
    return means | {"excluded": float((~kept).sum())}


@torch.no_grad()
def retrieval_per_query(
    embeddings: Tensor,
    labels: Tensor,
    ks: Sequence[int] = (1, 2, 4, 8),
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    distance: str = "cosine",
    block: int | None = None,
) -> dict[str, Tensor]:
    """The measures of every query, float64 (N,) each. Arguments as in `retrieval`.

    With R relevant gallery items, rel(k) = 1 if the item of rank k is relevant, and P(k) = (rel(1) + ... + rel(k)) / k:

        R@K                   1 if any of the first K items is relevant
        P@1                   rel(1)
        RP                    P(R)
        MAP@R                 sum over k <= R of rel(k) P(k), / R
        mAP@1000              sum over k <= 1000 of rel(k) P(k), / min(R, 1000), so that a perfect ranking scores 1
        mAP@1000/class_size   the same sum / class size in the gallery, the query included if it is there: Roth et
                              al. (ICML 2020), where a perfect ranking scores R / (R + 1)
        relevant              R; all measures are 0 where R = 0
    """
    if not ks or min(ks) < 1:
        raise ValueError(f"ks must be ranks from 1 up, got {tuple(ks)}")
    own_gallery = gallery is None
    queries = as_points(embeddings, "embeddings")
    targets = queries if own_gallery else as_points(gallery, "gallery")
    labels = as_labels(labels, queries, "labels")
    if own_gallery != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels must be given together")
    target_labels = labels if own_gallery else as_labels(gallery_labels, targets, "gallery_labels")

    class_ids, target_classes = target_labels.unique(return_inverse=True)
    position = torch.searchsorted(class_ids, labels).clamp_max(len(class_ids) - 1)
    class_size = target_classes.bincount()[position] * (class_ids[position] == labels)
    relevant = class_size - int(own_gallery)

    depth = min(max(*ks, 1000, int(relevant.max())), len(targets) - int(own_gallery))
    if depth < 1:
        raise ValueError("embeddings must hold at least two items to search each other")
    ranks = torch.arange(1, depth + 1, device=queries.device, dtype=torch.float64)
    columns: dict[str, list[Tensor]] = {}
    both = labels, target_labels
    for rows, nearest in _nearest_blocks(queries, targets, depth, distance, own_gallery, block, both):
        hits = target_labels[nearest] == labels[rows, None]
        gains = hits * hits.cumsum(1) / ranks
        count = relevant[rows]
        within_r = ranks <= count[:, None]
        at_1000 = gains[:, :1000].sum(1)
        measures = {f"R@{k}": hits[:, :k].any(1) for k in ks} | {
            "P@1": hits[:, 0],
            "RP": (hits * within_r).sum(1).double() / count.clamp_min(1),
            "MAP@R": (gains * within_r).sum(1) / count.clamp_min(1),
            "mAP@1000": at_1000 / count.clamp(1, 1000),
            "mAP@1000/class_size": at_1000 / class_size[rows].clamp_min(1),
            "relevant": count,
        }
        for name, value in measures.items():
            columns.setdefault(name, []).append(value.double())
    return {name: torch.cat(values) for name, values in columns.items()}


@torch.no_grad()
def nearest(
    embeddings: Tensor, k: int, gallery: Tensor | None = None, distance: str = "cosine", block: int | None = None
) -> Tensor:
    """Indices (N, k) of the nearest gallery items of each query, nearest first, ties by index.

    Without a gallery the queries search each other, each left out of its own list by index. Arguments as in
    `retrieval`.
    """
    queries = as_points(embeddings, "embeddings")
    targets = queries if gallery is None else as_points(gallery, "gallery")
    available = len(targets) - int(gallery is None)
    if not 1 <= k <= available:
        raise ValueError(f"k must lie in [1, {available}], the number of items to choose from, got {k}")
    blocks = _nearest_blocks(queries, targets, k, distance, gallery is None, block)
    return torch.cat([indices for _, indices in blocks])


def _nearest_blocks(
    queries: Tensor,
    targets: Tensor,
    k: int,
    distance: str,
    leave_self_out: bool,
    block: int | None,
    labels: tuple[Tensor, Tensor] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (rows, indices of their k nearest targets).

    labels: of queries and targets, where the order among a query's relevant items, and among the others, is free.
    """
    if queries.shape[1] != targets.shape[1]:
        raise ValueError(f"gallery must have {queries.shape[1]} columns as embeddings has, got {targets.shape[1]}")
    if distance == "cosine":
        unit = directions(queries, "embeddings")
        queries, targets = unit, unit if targets is queries else directions(targets, "gallery")
        half_squares = queries.new_ones(len(queries), 1), targets.new_zeros(len(targets))  # half |q - t|^2 = 1 - cos
    elif distance == "euclidean":
        radius = max(queries.norm(dim=1).max(), targets.norm(dim=1).max()).clamp_min(torch.finfo(torch.float64).tiny)
        if not radius.isfinite():
            raise ValueError("embeddings or gallery are too long for float64 to square; the ranking would be by index")
        queries, targets = queries / radius, targets / radius
        half_squares = queries.square().sum(1, keepdim=True) / 2, targets.square().sum(1) / 2
    else:
        raise ValueError(f'distance must be "cosine" or "euclidean", got {distance!r}')
    points = Points(queries, targets, *half_squares)
    search = _Search(points, k, leave_self_out, labels) if _searches_first(points, k) else None
    rows_at_once = block or _at_once(points.targets, CPU_BLOCK, len(points.targets))
    for rows in torch.arange(len(points.queries), device=points.targets.device).split(rows_at_once):
        yield rows, search(rows) if search else _ranked(points, rows, k, leave_self_out)


class Points(NamedTuple):
    """Queries (N, D) and targets (G, D) in float64, and what makes half |q - t|^2 of -<q, t>: (N, 1) and (G,)."""

    queries: Tensor
    targets: Tensor
    of_queries: Tensor
    of_targets: Tensor


def _at_once(like: Tensor, on_cpu: int, each: int) -> int:
    """How many rows that need `each` numbers are computed at once; on a GPU a number takes about 32 bytes in all."""
    numbers = torch.cuda.get_device_properties(like.device).total_memory // 512 if like.is_cuda else on_cpu
    return max(1, numbers // each)


def _ranked(points: Points, rows: Tensor, k: int, leave_self_out: bool) -> Tensor:
    """Indices (len(rows), k) of the nearest targets, all compared in float64."""
    half = torch.addmm(points.of_targets, points.queries[rows], points.targets.T, alpha=-1)
    index = torch.arange(len(points.targets), device=rows.device)
    keys = _keys(half.add_(points.of_queries[rows]), index)
    if leave_self_out:
        keys[torch.arange(len(rows), device=rows.device), rows] = torch.iinfo(torch.int64).max
    return _index_of(keys.topk(k, largest=False, sorted=True).values)


def _keys(half: Tensor, index: Tensor) -> Tensor:
    """One integer per pair that holds its distance in steps, then its index; `half` is overwritten."""
    keys = half.mul_(2**32).round_().clamp_min_(0).long()
    return keys.bitwise_left_shift_(INDEX_BITS).bitwise_or_(index)


def _index_of(keys: Tensor) -> Tensor:
    return keys.bitwise_and_(2**INDEX_BITS - 1)


def _searches_first(points: Points, k: int) -> bool:
    """Whether a search in float32 pays, and its products are not rounded further (TF32, bfloat16)."""
    size = len(points.targets)
    return size >= SMALLEST_SEARCH and size >= 8 * (k + SPARE) and _products_are_float32()


def _products_are_float32() -> bool:
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # the newer settings differ by backend: assume that they are coarser
        return False


class _Search:
    """The nearest targets by a search in float32, with the distances in float64 that decide the lists.

    The search errs in half a squared distance by at most `error`: each product of D terms by (D + 2) roundings of the
    largest norm squared, the rest by a few, and twice that for what is of second order. It takes vectors less the mean
    of the targets, because distances are then no smaller beside the norms than they have to be.

    A list is right if its last item is nearer than any target that is no candidate can be; else the query is ranked in
    float64. With labels, only the order of relevant and other items counts, so only relevant candidates and those that
    the error may place on either side of one get a distance in float64, usually a few of a thousand.
    """

    def __init__(self, points: Points, k: int, leave_self_out: bool, labels: tuple[Tensor, Tensor] | None):
        self.points, self.k, self.leave_self_out, self.labels = points, k, leave_self_out, labels
        center = points.targets.mean(0)
        same = points.queries is points.targets
        self.queries = (points.queries - center).float()
        self.targets = self.queries if same else (points.targets - center).float()
        self.of_queries, self.of_targets = (each.square().sum(1) / 2 for each in (self.queries, self.targets))
        largest = 2 * max(self.of_queries.max(), self.of_targets.max()).double()
        self.error = 2 * (self.targets.shape[1] + 8) * 2.0**-24 * largest

    def __call__(self, rows: Tensor) -> Tensor:
        half = torch.addmm(self.of_targets, self.queries[rows], self.targets.T, alpha=-1)
        half.add_(self.of_queries[rows, None])
        if self.leave_self_out:
            half[torch.arange(len(rows), device=rows.device), rows] = torch.inf
        half, candidates = half.topk(self.k + SPARE, largest=False, sorted=True)
        half = half.double()
        farthest = half[:, -1] - self.error  # what is no candidate lies beyond
        query, place = self._decisive(rows, half, candidates).nonzero(as_tuple=True)
        half[query, place] = self._exactly(rows[query], candidates[query, place])
        keys = _keys(half, candidates).topk(self.k, largest=False, sorted=True).values
        last = keys[:, -1].bitwise_right_shift(INDEX_BITS) / 2**32 + self.error
        open_lists = (last + 2.0**-31 >= farthest).nonzero()[:, 0]
        found = _index_of(keys)
        if len(open_lists):
            found[open_lists] = _ranked(self.points, rows[open_lists], self.k, self.leave_self_out)
        return found

    def _decisive(self, rows: Tensor, half: Tensor, candidates: Tensor) -> Tensor:
        """Which candidates, sorted by `half`, need a distance in float64."""
        if self.labels is None:
            return torch.ones_like(half, dtype=torch.bool)
        of_queries, of_targets = self.labels
        hits = of_targets[candidates] == of_queries[rows, None]
        before = half.masked_fill(~hits, -torch.inf).cummax(1).values
        after = half.masked_fill(~hits, torch.inf).flip(1).cummin(1).values.flip(1)
        return torch.minimum(half - before, after - half) <= 2 * self.error + 2.0**-31

    def _exactly(self, queries: Tensor, targets: Tensor) -> Tensor:
        """Half the squared distances of pairs, given by their indices, in float64."""
        points, parts = self.points, []
        at_once = _at_once(points.targets, CPU_LISTS, points.targets.shape[1])
        for query, target in zip(queries.split(at_once), targets.split(at_once)):
            products = torch.linalg.vecdot(points.queries[query], points.targets[target])
            parts.append((points.of_targets[target] - products).add_(points.of_queries[query, 0]))
        return torch.cat(parts)


def as_points(values: Tensor, name: str) -> Tensor:
    """values as a non-empty, finite float64 matrix."""
    values = torch.as_tensor(values).detach()
    if values.ndim != 2 or not values.numel() or not values.is_floating_point():
        raise ValueError(
            f"{name} must be a non-empty floating-point matrix, got {values.dtype} of shape {tuple(values.shape)}"
        )
    if not values.isfinite().all():
        row = int((~values.isfinite().all(1)).nonzero()[0])
        raise ValueError(f"{name} contain NaN or infinity, first in row {row}")
    return values.double()


def directions(points: Tensor, name: str) -> Tensor:
    """Rows of a float64 matrix over their norms; ValueError names one whose norm is below LEAST_NORM or overflows.

    Such rows have no direction: all others are equally far from them, and a ranking would be by index.
    """
    norms = points.norm(dim=1, keepdim=True)
    bad = ~((norms >= LEAST_NORM) & norms.isfinite())
    if bad.any():
        row = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"{name} have no direction in row {row}, whose norm is {norms[row].item():.3g}; is the image blank, or has "
            "training collapsed?"
        )
    return points / norms


def as_labels(labels: Tensor, points: Tensor, name: str) -> Tensor:
    labels = torch.as_tensor(labels, device=points.device)
    if labels.shape != points.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"{name} must be {len(points)} integers, one per row, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    return labels.long()
