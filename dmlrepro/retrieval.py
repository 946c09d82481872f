"""Ranking by distance: who is near whom, and the retrieval scores that follow. What training needs of the metrics.

The order is that of float64 distances, the vectors' differences squared, whatever the input type, however far all
vectors or some of them lie from the others. Distances are equal if their squares, rounded to 31 bits, are; equal ones
go by gallery index, so neither the rounding of a matrix product nor the block size reorders embeddings.

Matrix products find candidates, and differences decide between those that rounding may have exchanged. A large gallery
is searched in float32 first, by faiss where it is installed and lists are short. A query whose list float32 cannot
decide is searched again in float64, so that every route gives the same bytes.

Vectors may be tensors, NumPy arrays, memory-mapped ones too, or what NumPy makes an array of; labels and ids are
integers or strings. On a terminal, work of more than ten seconds shows a bar on stderr (TQDM_DISABLE=1: none).
"""

import numbers
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

INDEX_BITS, STEP_BITS = 23, 40  # a key holds a distance in steps, then an index: 63 bits
LEAST_EXPONENT = 1023 - 510  # of a float64 that a step tells from 0: 9 bits up to that of 2
UNDERFLOW = 2.0**-100  # more than a product in float32 loses, of vectors no longer than 1, where numbers underflow
SPARE = 5  # the search in float32 keeps so many candidates beyond those asked for, and one more for every 24
SMALLEST_SEARCH = 2**10  # a smaller gallery is ranked in float64 at once, which takes no longer,
LONGEST_LIST = 1 / 2  # and so is one whose lists are a larger part of it
FAISS_CANDIDATES = 32  # with more faiss is slower than torch on a CPU,
LONG = 64  # and torch than NumPy
CPU_BLOCK, CPU_LISTS = 2**21, 2**18  # numbers of a block of distances, of the candidates' vectors: a CPU's caches
CPU_SEARCH, LARGEST_BLOCK, FAISS_ROWS = 2**24, 256, 2**12  # numbers and rows of a search by torch, rows by faiss
PRODUCT = 64  # dimensions of one of the products that the search adds up: the fewer, the less their sum can err
LEAST_NORM = 1e-12  # a shorter vector is taken to have no direction
BAR_AFTER = 10  # seconds
TO_R, TO_1000 = ("RP", "MAP@R"), ("mAP@1000", "mAP@1000/class_size")  # as deep as their lists are
DEFAULT_MEASURES = ("P@1", *TO_R)
MEASURES = (*DEFAULT_MEASURES, *TO_1000)


def retrieval(
    embeddings: Tensor | ArrayLike,
    labels: Tensor | ArrayLike,
    ks: Sequence[int] = (1, 2, 4, 8),
    gallery: Tensor | ArrayLike | None = None,
    gallery_labels: Tensor | ArrayLike | None = None,
    distance: str = "cosine",
    block: int | None = None,
    *,
    measures: Collection[str] = DEFAULT_MEASURES,
    query_ids: Tensor | ArrayLike | None = None,
    gallery_ids: Tensor | ArrayLike | None = None,
) -> dict[str, float]:
    """Retrieval measures averaged over the queries, as fractions in [0, 1]: the means of `retrieval_per_query`.

    Args:
        embeddings: queries (N, D).
        labels: (N,) integers or strings.
        ks: ranks K of R@K, () for none; where K is more than the list has, the whole list counts.
        gallery, gallery_labels: (G, D) and (G,); without them each query searches all other queries.
        distance: "cosine" or "euclidean".
        block: queries compared at once, by default what keeps the block's distances below 2^21 on a CPU (2^24 float32
            in a search), and in a sixteenth of the memory of a GPU. Memory is O(block x G) and three copies of the
            vectors, never N x G; the result does not depend on it.
        measures: which of P@1, RP, MAP@R, mAP@1000 and mAP@1000/class_size there are besides R@K, by default the first
            three; `MEASURES` are all. Lists are ranked as deep as the measures need: R@K to K, RP and MAP@R to the size
            of the largest class, the last two to 1000.
        query_ids, gallery_ids: (N,) and (G,) integers or strings that name the images of a gallery which holds
            queries: an image never finds itself.

    Returns:
        R@K for each K, the measures in the order above, and `excluded`, the number of queries without a relevant
        gallery item (a class of one item); they count in no average.

    Raises:
        ValueError: a wrong shape or type, NaN or infinity, a vector without direction if the distance is "cosine",
            more than 2^23 gallery items, or no query with a relevant item.

    Warns:
        UserWarning: there are no ids and every query has an item at distance zero: itself, most likely.
    """
    asked: dict[str, Any] = {"measures": measures, "query_ids": query_ids, "gallery_ids": gallery_ids}
    values = retrieval_per_query(embeddings, labels, ks, gallery, gallery_labels, distance, block, **asked)
    kept = values.pop("relevant") > 0
    if not kept.any():
        raise ValueError("labels give no query a relevant gallery item: every class has one item, nothing to evaluate")
    return {name: value[kept].mean().item() for name, value in values.items()} | {"excluded": float((~kept).sum())}


@torch.no_grad()
def retrieval_per_query(
    embeddings: Tensor | ArrayLike,
    labels: Tensor | ArrayLike,
    ks: Sequence[int] = (1, 2, 4, 8),
    gallery: Tensor | ArrayLike | None = None,
    gallery_labels: Tensor | ArrayLike | None = None,
    distance: str = "cosine",
    block: int | None = None,
    *,
    measures: Collection[str] = DEFAULT_MEASURES,
    query_ids: Tensor | ArrayLike | None = None,
    gallery_ids: Tensor | ArrayLike | None = None,
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
    ks = [ks] if isinstance(ks, numbers.Integral) else list(ks)
    measured = {measures} if isinstance(measures, str) else set(measures)
    if min(ks, default=1) < 1 or not (ks or measured):
        raise ValueError(f"ks must be ranks from 1 up, and some where there are no measures, got {tuple(ks)}")
    if not measured <= set(MEASURES):
        raise ValueError(f"measures must be some of {MEASURES}, got {measures!r}; ks asks for R@K")
    points = _points(embeddings, gallery, distance)
    own_gallery = gallery is None
    if own_gallery != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels must be given together")
    if own_gallery:
        labels = target_labels = as_labels(labels, points.queries, "labels")
    else:
        labels, target_labels = as_labels_alike(
            (labels, points.queries, "labels"), (gallery_labels, points.targets, "gallery_labels")
        )
    own = _own_places(points, own_gallery, query_ids, gallery_ids)

    class_ids, target_classes = target_labels.unique(return_inverse=True)
    position = torch.searchsorted(class_ids, labels).clamp_max(len(class_ids) - 1)
    class_size = target_classes.bincount()[position] * (class_ids[position] == labels)
    relevant = class_size if own is None else class_size - ((own >= 0) & (target_labels[own] == labels)).long()

    all_leave = own is not None and bool((own >= 0).all())
    longest = len(points.targets) - int(all_leave)
    if longest < 1:
        raise ValueError("embeddings must hold at least two items to search each other")
    most = int(relevant.max())
    depths = [1, *ks] + [most] * (not measured.isdisjoint(TO_R)) + [1000] * (not measured.isdisjoint(TO_1000))
    depth, width = min(max(depths), longest), min(max(*ks, 1000, most), longest)
    twins_first = not own_gallery and own is None
    columns: dict[str, list[Tensor]] = {}
    for rows, nearest in _nearest_blocks(points, depth, own, block, (labels, target_labels)):
        if twins_first:
            first, last = (_halves(points, rows, nearest[:, place]) for place in (0, -1))
            twins_first = bool((first <= 2.0**-30 * last).all())
        hits = target_labels.take(nearest) == labels[rows, None]
        if own is not None and not all_leave:
            hits &= nearest != own[rows, None]  # a list of the whole gallery ends with the image that is left out
        values = _of_lists(hits, relevant[rows], class_size[rows], ks, measured, width)
        for name, value in values.items():
            columns.setdefault(name, []).append(value.double())
    if twins_first:
        warnings.warn(
            "every query has an item of the gallery at distance zero, itself if the gallery holds the queries: give "
            "query_ids and gallery_ids, and no image finds itself",
            stacklevel=3,
        )
    return {name: torch.cat(values) for name, values in columns.items()}


def _of_lists(
    hits: Tensor, relevant: Tensor, class_size: Tensor, ks: Sequence[int], measures: set[str], width: int
) -> dict[str, Tensor]:
    """The measures of lists hits (B, depth), see `retrieval_per_query`.

    Sums go over `width` columns however deep the lists are: their rounding is then that of the measure, whatever else
    is asked for.
    """
    values = {f"R@{k}": hits[:, :k].any(1) for k in ks}
    if measures:
        ranks = torch.arange(1, hits.shape[1] + 1, device=hits.device, dtype=torch.float64)
        gains = hits * hits.cumsum(1) / ranks
        within_r = ranks <= relevant[:, None]
        missing = (0, width - hits.shape[1])
    if "P@1" in measures:
        values["P@1"] = hits[:, 0]
    if "RP" in measures:
        values["RP"] = (hits * within_r).sum(1).double() / relevant.clamp_min(1)
    if "MAP@R" in measures:
        gained = torch.cat([F.pad(some, missing).sum(1) for some in (gains * within_r).split(256)])
        values["MAP@R"] = gained / relevant.clamp_min(1)
    if not measures.isdisjoint(TO_1000):
        at_1000 = F.pad(gains, missing)[:, :1000].sum(1)
    if "mAP@1000" in measures:
        values["mAP@1000"] = at_1000 / relevant.clamp(1, 1000)
    if "mAP@1000/class_size" in measures:
        values["mAP@1000/class_size"] = at_1000 / class_size.clamp_min(1)
    return values | {"relevant": relevant}


@torch.no_grad()
def nearest(
    embeddings: Tensor | ArrayLike,
    k: int,
    gallery: Tensor | ArrayLike | None = None,
    distance: str = "cosine",
    block: int | None = None,
) -> Tensor:
    """Indices (N, k) of the nearest gallery items of each query, nearest first, ties by index.

    Without a gallery the queries search each other, each left out of its own list by index. Arguments as in
    `retrieval`.
    """
    points = _points(embeddings, gallery, distance)
    available = len(points.targets) - int(gallery is None)
    if not 1 <= k <= available:
        raise ValueError(f"k must lie in [1, {available}], the number of items to choose from, got {k}")
    own = torch.arange(len(points.queries), device=points.queries.device) if gallery is None else None
    return torch.cat([indices for _, indices in _nearest_blocks(points, k, own, block)])


class Points(NamedTuple):
    """Queries (N, D), targets (G, D) whose Euclidean distances count, and the targets' mean (D,), in float64."""

    queries: Tensor
    targets: Tensor
    center: Tensor


def _points(embeddings: Tensor | ArrayLike, gallery: Tensor | ArrayLike | None, distance: str) -> Points:
    """Unit vectors for cosine, else the input times a power of two: no vector less the mean is longer than 1."""
    queries = as_points(embeddings, "embeddings")
    targets = queries if gallery is None else as_points(gallery, "gallery").to(queries.device)
    if queries.shape[1] != targets.shape[1]:
        raise ValueError(f"gallery must have {queries.shape[1]} columns as embeddings has, got {targets.shape[1]}")
    if len(targets) > 2**INDEX_BITS:
        raise ValueError(f"gallery must have at most 2^{INDEX_BITS} items, got {len(targets)}; search its parts")
    if distance == "cosine":
        unit = directions(queries, "embeddings")
        targets = unit if gallery is None else directions(targets, "gallery")
        return Points(unit, targets, targets.mean(0))
    if distance == "euclidean":
        center = targets.mean(0)
        both = queries.split(512) + (() if gallery is None else targets.split(512))
        radius = torch.stack([some.sub(center).norm(dim=1).max() for some in both]).max()
        if not radius.isfinite():
            raise ValueError("embeddings or gallery are too long for float64 to square; the ranking would be by index")
        scale = 2.0 ** -min(max(int(radius.frexp().exponent), -1000), 1000)
        scaled = queries * scale
        return Points(scaled, scaled if gallery is None else targets * scale, center * scale)
    raise ValueError(f'distance must be "cosine" or "euclidean", got {distance!r}')


def _nearest_blocks(
    points: Points, k: int, own: Tensor | None, block: int | None, labels: tuple[Tensor, Tensor] | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (rows, indices of their k nearest targets).

    own: (N,) the target that a query leaves out, -1 for none.
    labels: of queries and targets, where the order among a query's relevant items, and among the others, is free.
    """
    size, device = len(points.targets), points.targets.device
    wanted = min(k + (own is not None), size)  # the target that is left out is put behind all others
    candidates = wanted + SPARE + wanted // 24
    search = precise = None
    rows_at_once = _at_once(points.targets, CPU_BLOCK, size)
    if size >= SMALLEST_SEARCH and candidates <= LONGEST_LIST * size and _products_are_float32():
        there = sys.platform != "darwin" and find_spec("faiss") is not None  # on macOS two OpenMP runtimes abort
        by_faiss = there and device.type == "cpu" and candidates <= FAISS_CANDIDATES
        search = _Search(points, k, own, labels, torch.float32, by_faiss)
        rows_at_once = FAISS_ROWS if by_faiss else min(_at_once(points.targets, CPU_SEARCH, size), LARGEST_BLOCK)
    for rows in _shown(torch.arange(len(points.queries), device=device).split(block or rows_at_once)):
        if search:
            found, settled = search.lists(rows, *search.least(rows, candidates))
            left = (~settled).nonzero()[:, 0]
        else:
            found, left = rows.new_empty(len(rows), k), torch.arange(len(rows), device=device)
        for some in left.split(_at_once(points.targets, CPU_BLOCK, size)) if len(left) else ():
            precise = precise or _Search(points, k, own, labels, torch.float64)
            found[some] = precise.lists(rows[some], *precise.all_near(rows[some], wanted))[0]
        yield rows, found


def _shown(blocks: Sequence[Tensor]) -> Iterable[Tensor]:
    """The blocks, with a bar on a terminal if they take long."""
    if not getattr(sys.stderr, "isatty", bool)():
        return blocks
    try:
        from tqdm import tqdm
    except ImportError:
        return blocks
    return tqdm(blocks, "ranking", delay=BAR_AFTER, leave=False, unit="block")


class _Search:
    """Half the squared distances from queries to targets by matrix products of a precision, less exact than `_halves`.

    The products take vectors less the mean of the targets, because distances are then no smaller beside the norms than
    they have to be.

    Of vectors of norms a and b, a product of D dimensions errs by at most (D + 8) roundings of a b, those before and
    after included, half their squares by eight, or as much as a product where they are summed in that precision; 1 % is
    for what is of second order. torch adds up products of PRODUCT dimensions. A target nearer to the query than h is
    no longer than a + sqrt(2 h), so that an item far away makes the search no coarser among near ones.
    """

    def __init__(
        self,
        points: Points,
        k: int,
        own: Tensor | None,
        labels: tuple[Tensor, Tensor] | None,
        dtype: torch.dtype,
        by_faiss: bool = False,
    ):
        self.points, self.k, self.own, self.labels, self.by_faiss = points, k, own, labels, by_faiss
        self.targets, self.of_targets = self.queries, self.of_queries = _centered(points.targets, points.center, dtype)
        if points.queries is not points.targets:
            self.queries, self.of_queries = _centered(points.queries, points.center, dtype)
        self.addend = self.of_targets.to(dtype)
        self.longest = self.of_targets.max().mul(2).sqrt()
        self.rounding = torch.finfo(dtype).eps / 2 * 1.01
        dim = points.targets.shape[1]
        self.terms = 8 + (dim if by_faiss else min(dim, PRODUCT) + -(-dim // PRODUCT))
        self.squares = 8 + (dim if by_faiss or dtype == torch.float64 else 0)
        self.half = self.targets.new_empty(0, len(self.targets))

    def room(self, rows: Tensor, farthest: Tensor) -> Tensor:
        """(B, 1) half squared distances up to `farthest` (B, 1) are in the right order, and differ in `_steps`, where
        they are this far apart: twice what one can err."""
        farthest = farthest.clamp_min(0)
        a = self.of_queries[rows, None].mul(2).sqrt()
        b = (2 * (a + farthest.mul(2).sqrt())).clamp_max(self.longest)
        error = self.rounding * (self.terms * a * b + self.squares * (a.square() + b.square()) / 2) + UNDERFLOW
        return 2 * error + 2.0**-30 * farthest

    def _products(self, rows: Tensor) -> Tensor:
        """(B, G) half the squared distances, less what all of a row have in common; the next call overwrites them."""
        if len(self.half) < len(rows):
            self.half = self.targets.new_empty(len(rows), len(self.targets))  # kept: as dear as the product
        half = self.half[: len(rows)].copy_(self.addend)
        for some, theirs in zip(self.queries[rows].split(PRODUCT, 1), self.targets.split(PRODUCT, 1)):
            half.addmm_(some, theirs.T, alpha=-1)
        return half

    def least(self, rows: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The `count` least half squared distances (B, count), the indices of their targets, and (B, 1) what no other
        target is below."""
        if self.by_faiss:
            values, indices = _searched_by_faiss(self.queries[rows[0] : rows[-1] + 1], self.targets, count)
            values = values.double().div_(2)
        else:
            values, indices = _least(self._products(rows), count)
            values = values.double().add_(self.of_queries[rows, None])
        return values, indices, values.amax(1, keepdim=True)

    def all_near(self, rows: Tensor, wanted: int) -> tuple[Tensor, Tensor, Tensor]:
        """The same with all targets that can be among the `wanted` nearest ones."""
        half = self._products(rows)
        last = half.kthvalue(wanted, dim=1, keepdim=True).values
        far = last + self.of_queries[rows, None]
        count = int((half <= last + self.room(rows, far)).sum(1).max())
        values, indices = _least(half, count)
        return values.add_(self.of_queries[rows, None]), indices, torch.full_like(last, torch.inf)

    def lists(self, rows: Tensor, values: Tensor, indices: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
        """Indices (B, k) of the nearest of the candidates, and which rows (B,) no other target can be among."""
        room = self.room(rows, values.amax(1, keepdim=True))
        leaving = None if self.own is None else self.own[rows, None]
        if leaving is not None:
            values = values.masked_fill(indices == leaving, torch.inf)
        keys = _ascending(_keys(values, indices))
        undecided = self._undecided(rows, keys, room)
        if leaving is not None:
            undecided &= _index_of(keys) != leaving
        query, place = undecided.nonzero(as_tuple=True)
        if len(query):
            targets = _index_of(keys[query, place])
            keys[query, place] = _keys(_halves(self.points, rows[query], targets), targets)
            keys = _ascending(keys)
        keys = keys[:, : self.k]
        return _index_of(keys), (_values(keys[:, -1:]) + room < limit)[:, 0]

    def _undecided(self, rows: Tensor, keys: Tensor, room: Tensor) -> Tensor:
        """Which candidates (B, C), ascending, need their exact distance: those within `room` of another, with labels of
        one of the other kind, a hit or none."""
        values = _values(keys)
        close = values[:, 1:] - values[:, :-1] <= room
        if self.labels is None:
            return F.pad(close, (1, 0)) | F.pad(close, (0, 1))
        of_queries, of_targets = self.labels
        hits = of_targets.take(_index_of(keys)) == of_queries[rows, None]
        row, before = (close & (hits[:, 1:] != hits[:, :-1])).nonzero(as_tuple=True)
        # around neighbours of two kinds all that is within `room` of the farther of them has one of the other kind
        nearer, farther, room = values[row, before], values[row, before + 1], room[row, 0]
        of_row = torch.arange(len(keys), device=keys.device) << STEP_BITS
        steps = ((keys >> INDEX_BITS) + of_row[:, None]).flatten()  # ascending throughout
        first = torch.searchsorted(steps, _steps(farther - room) + of_row[row])
        last = torch.searchsorted(steps, _steps(nearer + room) + of_row[row], right=True)
        opened = steps.new_zeros(len(steps) + 1)
        opened.index_add_(0, first, torch.ones_like(first)).index_add_(0, last, -torch.ones_like(last))
        return (opened.cumsum(0)[:-1] > 0).view_as(keys)


def _searched_by_faiss(queries: Tensor, targets: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` least squared distances of each query and their targets, on as many threads as torch has."""
    import faiss  # here alone, and only when it is used: it brings an OpenMP runtime of its own

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(torch.get_num_threads())
    try:
        values, indices = faiss.knn(queries.numpy(), targets.numpy(), count)
    finally:
        faiss.omp_set_num_threads(threads)
    return torch.from_numpy(values), torch.from_numpy(indices)


def _least(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` least of each row, in no order, and where they are."""
    if count >= values.shape[1]:
        return values, torch.arange(values.shape[1], device=values.device).expand_as(values)
    if values.device.type == "cpu" and count > LONG:  # NumPy is several times as fast as torch there
        places = torch.from_numpy(np.argpartition(values.numpy(), count - 1, axis=1)[:, :count])
        return values.gather(1, places), places
    values, places = values.topk(count, largest=False, sorted=False)
    return values, places


def _products_are_float32() -> bool:
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # the newer settings differ by backend: assume that they are coarser
        return False


def _at_once(like: Tensor, on_cpu: int, each: int) -> int:
    """How many rows that need `each` numbers are computed at once; on a GPU a number takes about 32 bytes in all."""
    numbers = torch.cuda.get_device_properties(like.device).total_memory // 512 if like.is_cuda else on_cpu
    return max(1, numbers // each)


def _centered(points: Tensor, center: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """points less center (N, D) in dtype, and half their squared norms (N,) in float64."""
    result, half = torch.empty_like(points, dtype=dtype), points.new_empty(len(points))
    for some, into, of_some in zip(points.split(512), result.split(512), half.split(512)):
        moved = some - center
        into.copy_(moved)
        torch.sum(moved.square_(), 1, out=of_some).div_(2)
    return result, half


def _halves(points: Points, queries: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distances of pairs, given by their indices: of differences, so that no offset makes them err."""
    parts = []
    at_once = _at_once(points.targets, CPU_LISTS, points.targets.shape[1])
    for query, target in zip(queries.split(at_once), targets.split(at_once)):
        # index_select is several times as fast as brackets on a CPU
        apart = points.queries.index_select(0, query).sub_(points.targets.index_select(0, target))
        parts.append(apart.square_().sum(1).div_(2))
    return torch.cat(parts)


def _steps(half: Tensor) -> Tensor:
    """Half squared distances, float64 up to 2, as integers below 2^STEP_BITS in the same order: the 31 leading bits of
    the mantissa, rounded, below the exponent. What is below 2^-509 is 0."""
    bits = (half.clamp_min(0).contiguous().view(torch.int64) + 2**20) >> 21
    return (bits - LEAST_EXPONENT * 2**31).clamp_(0, 2**STEP_BITS - 1)


def _keys(half: Tensor, index: Tensor) -> Tensor:
    """One integer per pair that holds its distance in steps, then its index."""
    return (_steps(half) << INDEX_BITS) | index


def _index_of(keys: Tensor) -> Tensor:
    return keys & (2**INDEX_BITS - 1)


def _values(keys: Tensor) -> Tensor:
    """The half squared distances of keys, as `_steps` rounds them."""
    steps = keys >> INDEX_BITS
    return torch.where(steps > 0, ((steps + LEAST_EXPONENT * 2**31) << 21).view(torch.float64), 0.0)


def _ascending(keys: Tensor) -> Tensor:
    """Each row sorted: by NumPy, three times as fast as torch, but on one thread."""
    if keys.device.type == "cpu" and torch.get_num_threads() < 3:
        return torch.from_numpy(np.sort(keys.numpy(), axis=1))
    return keys.sort(1).values


def _own_places(
    points: Points, own_gallery: bool, query_ids: Tensor | ArrayLike | None, gallery_ids: Tensor | ArrayLike | None
) -> Tensor | None:
    """(N,) the place of each query in the gallery, -1 where it is not there; None if no query is."""
    if own_gallery:
        if query_ids is not None or gallery_ids is not None:
            raise ValueError("query_ids and gallery_ids go with a gallery; without one each query leaves itself out")
        return torch.arange(len(points.queries), device=points.queries.device)
    if (query_ids is None) != (gallery_ids is None):
        raise ValueError("query_ids and gallery_ids must be given together, one name of an image for each row")
    if query_ids is None:
        return None
    queries, targets = as_labels_alike(
        (query_ids, points.queries, "query_ids"), (gallery_ids, points.targets, "gallery_ids")
    )
    ordered, places = targets.sort(stable=True)
    twice = (ordered[1:] == ordered[:-1]).nonzero()[:, 0]
    if len(twice):
        first, second = sorted(places[twice[0] : twice[0] + 2].tolist())
        raise ValueError(f"gallery_ids must differ, rows {first} and {second} name one image; keep one of them")
    position = torch.searchsorted(ordered, queries).clamp_max(len(ordered) - 1)
    return torch.where(ordered[position] == queries, places[position], -1)


def as_points(values: Tensor | ArrayLike, name: str) -> Tensor:
    """values as a non-empty, finite float64 matrix; a memory-mapped array is read once, front to back."""
    given = values if isinstance(values, Tensor) else np.asarray(values)
    floating = given.is_floating_point() if isinstance(given, Tensor) else given.dtype.kind == "f"
    if given.ndim != 2 or 0 in given.shape or not floating:
        raise ValueError(
            f"{name} must be a non-empty floating-point matrix, got {given.dtype} of shape {tuple(given.shape)}"
        )
    if isinstance(given, np.ndarray):
        points = torch.from_numpy(np.array(given, dtype=np.float64))
    else:
        points = given.detach()
        points = (points.cpu() if points.device.type == "mps" else points).double()  # MPS has no float64
    if not (points.sum().isfinite() or points.isfinite().all()):  # a finite sum is the cheap proof
        row = int((~points.isfinite().all(1)).nonzero()[0])
        raise ValueError(f"{name} contain NaN or infinity, first in row {row}")
    return points


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


def as_labels(labels: Tensor | ArrayLike, points: Tensor, name: str) -> Tensor:
    """(N,) int64 on the device of points; strings are numbered in their order."""
    return as_labels_alike((labels, points, name))[0]


def as_labels_alike(*groups: tuple[Tensor | ArrayLike, Tensor, str]) -> list[Tensor]:
    """`as_labels` of several (labels, points, name), where equal strings get equal numbers."""
    arrays, kinds = [], set()
    for labels, points, name in groups:
        given = labels if isinstance(labels, Tensor) else np.asarray(labels)
        kind = "strings" if _are_strings(given) else "integers"
        if given.shape != points.shape[:1] or not (kind == "strings" or _are_integers(given)):
            raise ValueError(
                f"{name} must be {len(points)} integers or strings, one per row, got {given.dtype} of shape "
                f"{tuple(given.shape)}"
            )
        arrays.append(given)
        kinds.add(kind)
    if len(kinds) > 1:
        raise ValueError(f"{' and '.join(name for *_, name in groups)} must be integers both, or strings both")
    if kinds == {"strings"}:
        numbers = np.unique(np.concatenate(arrays), return_inverse=True)[1]
        arrays = np.split(numbers, np.cumsum([len(array) for array in arrays])[:-1])
    return [
        (array if isinstance(array, Tensor) else torch.from_numpy(array.astype(np.int64))).to(points.device).long()
        for array, (_, points, _) in zip(arrays, groups)
    ]


def _are_integers(values: Tensor | np.ndarray) -> bool:
    if isinstance(values, Tensor):
        return not (values.is_floating_point() or values.is_complex())
    return values.dtype.kind in "biu"


def _are_strings(values: Tensor | np.ndarray) -> bool:
    if isinstance(values, Tensor):
        return False
    return values.dtype.kind in "US" or (values.dtype.kind == "O" and all(isinstance(v, str) for v in values.flat))
