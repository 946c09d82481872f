"""Ranking by distance: who is near whom, and the retrieval scores that follow. What training needs of the metrics.

Distances are those of float64 whatever the input type, compared in steps of 2^-32 of their range, and ties are broken
by gallery index, so neither the rounding of a matrix product nor the block size reorders equal embeddings.

A large gallery is searched in float32 first. What that finds is ranked in float64, and a query whose list the rounding
of float32 leaves open is searched in float64 after all, so that lists and measures are those of float64.

Vectors may be tensors, NumPy arrays, memory-mapped ones too, or what NumPy makes an array of; labels and ids are
integers or strings. On a terminal, work of more than ten seconds shows a bar on stderr (TQDM_DISABLE=1: none).
"""

import math
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

INDEX_BITS = 29  # half squared distances lie in [0, 2]: 34 bits of steps, 63 with the index
SPARE = 8  # the search in float32 keeps so many candidates beyond those asked for, and one more for every 24
SMALLEST_SEARCH = 2**10  # a smaller gallery is ranked in float64 at once, which takes no longer,
LONGEST_LIST = 1 / 10  # and so is one whose lists are a larger part of it
CPU_BLOCK, CPU_LISTS = 2**21, 2**18  # numbers of a block of distances, of the candidates' vectors: a CPU's caches
CPU_SEARCH, NARROWEST = 2**24, 2**14  # numbers of a block of the search, 64 MB, and of a row: up to 1,024 rows,
CPU_SELECTION = 2**22  # of which so many are selected from at once
PRODUCT = 64  # dimensions of one of the products that the search adds up: the fewer, the less their sum can err
ALIGNED = 64  # a product whose rows begin at a multiple of so many numbers is faster, on some processors by a fifth
LEAST_NORM = 1e-12  # a shorter vector is taken to have no direction
BAR_AFTER = 10  # seconds
TO_R, TO_1000 = ("RP", "MAP@R"), ("mAP@1000", "mAP@1000/class_size")  # as deep as their lists are
MEASURES = ("P@1", *TO_R, *TO_1000)


def retrieval(
    embeddings: Tensor | ArrayLike,
    labels: Tensor | ArrayLike,
    ks: Sequence[int] = (1, 2, 4, 8),
    gallery: Tensor | ArrayLike | None = None,
    gallery_labels: Tensor | ArrayLike | None = None,
    distance: str = "cosine",
    block: int | None = None,
    *,
    measures: Collection[str] = MEASURES,
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
        measures: which of P@1, RP, MAP@R, mAP@1000 and mAP@1000/class_size there are besides R@K. Lists are ranked as
            deep as the measures need: R@K to K, RP and MAP@R to the size of the largest class, the last two to 1000.
        query_ids, gallery_ids: (N,) and (G,) integers or strings that name the images of a gallery which holds
            queries: an image never finds itself.

    Returns:
        R@K for each K, the measures in the order above, and `excluded`, the number of queries without a relevant
        gallery item (a class of one item); they count in no average.

    Raises:
        ValueError: a wrong shape or type, NaN or infinity, a vector without direction if the distance is "cosine",
            or no query with a relevant item.

    Warns:
        UserWarning: there are no ids and every query has an item at distance zero: itself, most likely.
    """
    return averages(
        retrieval_per_query(
            embeddings,
            labels,
            ks,
            gallery,
            gallery_labels,
            distance,
            block,
            measures=measures,
            query_ids=query_ids,
            gallery_ids=gallery_ids,
        )
    )


def averages(values: dict[str, Tensor]) -> dict[str, float]:
    """The means of `retrieval_per_query` over the queries that have something to find, and how many have not."""
    kept = values["relevant"] > 0
    if not kept.any():
        raise ValueError("labels give no query a relevant gallery item: every class has one item, nothing to evaluate")
    means = {name: value[kept].mean().item() for name, value in values.items() if name != "relevant"}
    return means | {"excluded": float((~kept).sum())}


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
    measures: Collection[str] = MEASURES,
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
    ks = [ks] if isinstance(ks, int) else list(ks)
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
        twins_first = twins_first and not _steps(_half_squares(points, rows, nearest[:, 0])).any()
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
        values["MAP@R"] = F.pad(gains * within_r, missing).sum(1) / relevant.clamp_min(1)
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
    """Queries (N, D) and targets (G, D) in float64, and what makes half |q - t|^2 of -<q, t>: (N, 1) and (G,)."""

    queries: Tensor
    targets: Tensor
    of_queries: Tensor
    of_targets: Tensor


def _points(embeddings: Tensor | ArrayLike, gallery: Tensor | ArrayLike | None, distance: str) -> Points:
    queries = as_points(embeddings, "embeddings")
    targets = queries if gallery is None else as_points(gallery, "gallery").to(queries.device)
    if queries.shape[1] != targets.shape[1]:
        raise ValueError(f"gallery must have {queries.shape[1]} columns as embeddings has, got {targets.shape[1]}")
    if distance == "cosine":
        unit = directions(queries, "embeddings")
        targets = unit if targets is queries else directions(targets, "gallery")
        return Points(unit, targets, unit.new_ones(len(unit), 1), unit.new_zeros(len(targets)))  # half of 2 - 2 cos
    if distance == "euclidean":
        radius = max(queries.norm(dim=1).max(), targets.norm(dim=1).max()).clamp_min(torch.finfo(torch.float64).tiny)
        if not radius.isfinite():
            raise ValueError("embeddings or gallery are too long for float64 to square; the ranking would be by index")
        scaled = queries / radius
        targets = scaled if targets is queries else targets / radius
        return Points(scaled, targets, scaled.square().sum(1, keepdim=True) / 2, targets.square().sum(1) / 2)
    raise ValueError(f'distance must be "cosine" or "euclidean", got {distance!r}')


def _nearest_blocks(
    points: Points, k: int, own: Tensor | None, block: int | None, labels: tuple[Tensor, Tensor] | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (rows, indices of their k nearest targets).

    own: (N,) the target that a query leaves out, -1 for none.
    labels: of queries and targets, where the order among a query's relevant items, and among the others, is free.
    """
    search = _Search(points, k, own, labels) if _searches_first(points, k) else None
    size = len(points.targets)
    on_cpu, each = (CPU_SEARCH, max(size, NARROWEST)) if search else (CPU_BLOCK, size)
    rows_at_once = block or _at_once(points.targets, on_cpu, each)
    for rows in _shown(torch.arange(len(points.queries), device=points.targets.device).split(rows_at_once)):
        if search:
            yield from search(rows)
        else:
            yield rows, _ranked(points, rows, k, own)


def _shown(blocks: Sequence[Tensor]) -> Iterable[Tensor]:
    """The blocks, with a bar on a terminal if they take long."""
    if not getattr(sys.stderr, "isatty", bool)():
        return blocks
    try:
        from tqdm import tqdm
    except ImportError:
        return blocks
    return tqdm(blocks, "ranking", delay=BAR_AFTER, leave=False, unit="block")


def _at_once(like: Tensor, on_cpu: int, each: int) -> int:
    """How many rows that need `each` numbers are computed at once; on a GPU a number takes about 32 bytes in all."""
    numbers = torch.cuda.get_device_properties(like.device).total_memory // 512 if like.is_cuda else on_cpu
    return max(1, numbers // each)


def _ranked(points: Points, rows: Tensor, k: int, own: Tensor | None) -> Tensor:
    """Indices (len(rows), k) of the nearest targets, all compared in float64."""
    half = torch.addmm(points.of_targets, points.queries[rows], points.targets.T, alpha=-1)
    half.add_(points.of_queries[rows])
    _leave_out(half, rows, own)
    keys = _keys(half, torch.arange(len(points.targets), device=rows.device))
    return _index_of(_ascending(keys.topk(k, largest=False, sorted=False).values))


def _leave_out(half: Tensor, rows: Tensor, own: Tensor | None) -> None:
    """Put the target that a row leaves out behind all others."""
    if own is not None:
        leaving = (own[rows] >= 0).nonzero()[:, 0]
        half[leaving, own[rows[leaving]]] = torch.inf


def _half_squares(points: Points, queries: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distances of pairs, given by their indices, in float64."""
    parts = []
    at_once = _at_once(points.targets, CPU_LISTS, points.targets.shape[1])
    for query, target in zip(queries.split(at_once), targets.split(at_once)):
        # index_select and take are several times as fast as brackets on a CPU
        products = torch.linalg.vecdot(points.queries.index_select(0, query), points.targets.index_select(0, target))
        parts.append((points.of_targets[target] - products).add_(points.of_queries[query, 0]))
    return torch.cat(parts)


def _steps(half: Tensor) -> Tensor:
    """Distances in steps; `half` is overwritten. No distance is beyond 2, and what is left out is put at 3."""
    return half.mul_(2**32).round_().clamp_(0, 3 * 2**32).long()


def _keys(half: Tensor, index: Tensor) -> Tensor:
    """One integer per pair that holds its distance in steps, then its index; `half` is overwritten."""
    return _steps(half).bitwise_left_shift_(INDEX_BITS).bitwise_or_(index)


def _index_of(keys: Tensor) -> Tensor:
    return keys & (2**INDEX_BITS - 1)


def _ascending(keys: Tensor) -> Tensor:
    """Each row sorted: by NumPy, three times as fast as torch, but on one thread."""
    if keys.device.type == "cpu" and torch.get_num_threads() < 3:
        return torch.from_numpy(np.sort(keys.numpy(), axis=1))
    return keys.sort(1).values


def _searches_first(points: Points, k: int) -> bool:
    """Whether a search in float32 pays, and its products are not rounded further (TF32, bfloat16)."""
    size = len(points.targets)
    return size >= SMALLEST_SEARCH and _candidates(k) <= LONGEST_LIST * size and _products_are_float32()


def _candidates(k: int) -> int:
    """How many the search keeps for a list of k: some to spare, so that what is no candidate lies beyond the list."""
    return k + SPARE + k // 24


def _products_are_float32() -> bool:
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # the newer settings differ by backend: assume that they are coarser
        return False


class _Search:
    """The nearest targets by a search in float32, with the distances in float64 that decide the lists.

    The search takes vectors less the mean of the targets, because distances are then no smaller beside the norms than
    they have to be, with what half the square of a target lies above the mean of these as a further term. Half a
    squared distance errs by at most `error`: products of PRODUCT dimensions, each summed by itself before it is added,
    by as many roundings of the largest norm squared and the largest further term as a product has dimensions, then by
    one per product, what was rounded before and after by eight, and 1 % is for what is of second order.

    A list is right if its last item is nearer than any target that is no candidate can be; else the query is ranked in
    float64. With labels, only the order of relevant and other items counts, so only candidates that the error may place
    on either side of one of the other kind get a distance in float64, usually a few of a thousand.

    The candidates lie in those columns whose least value is smallest: the targets are seen as a matrix of `columns`,
    so that the best of a row come from selecting among about sqrt(G k) numbers twice instead of G once. The product is
    one of each row of that matrix, narrow enough for caches: on some processors 1.4 times as fast as one with all.
    """

    def __init__(self, points: Points, k: int, own: Tensor | None, labels: tuple[Tensor, Tensor] | None):
        self.points, self.k, self.own, self.labels = points, k, own, labels
        self.candidates = _candidates(k)
        size = len(points.targets)
        height = max(1, round(math.sqrt(size / (2 * self.candidates))))  # twice, as the second selection is the dearer
        self.columns = -(-size // (height * ALIGNED)) * ALIGNED
        height = -(-size // self.columns)
        center = points.targets.mean(0)
        same = points.queries is points.targets
        of_targets = _half_norms(points.targets, center)
        of_queries = of_targets if same else _half_norms(points.queries, center)
        shift = of_targets.mean()
        self.of_queries = (of_queries + shift)[:, None].float()
        self.targets = _less(points.targets, center, height * self.columns)
        self.parts = self.targets.view(height, self.columns, -1).transpose(1, 2)
        self.of_targets = self.targets.new_full((height, 1, self.columns), torch.inf)  # what fills the matrix is last
        self.of_targets.view(-1)[:size] = of_targets - shift
        self.queries = self.targets[:size] if same else _less(points.queries, center, len(points.queries))
        largest = 2 * max(of_targets.max(), of_queries.max()) + (of_targets - shift).abs().max()
        dim = points.targets.shape[1]
        error = 1.01 * (min(dim, PRODUCT) + -(-dim // PRODUCT) + 8) * 2.0**-24 * largest
        self.room = int(2 * error * 2**32) + 4  # two distances this far apart are in the right order, in steps
        self.half = self.targets.new_empty(0)

    def __call__(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (some of the rows, indices of their k nearest targets)."""
        if self.half.shape[1:] != (len(rows), self.columns):
            self.half = self.targets.new_empty(len(self.parts), len(rows), self.columns)  # kept: as dear as the product
        queries = self.queries[rows].expand(len(self.parts), -1, -1)
        half = self.of_targets
        for some, theirs in zip(queries.split(PRODUCT, 2), self.parts.split(PRODUCT, 1)):
            half = torch.baddbmm(half, some, theirs, alpha=-1, out=self.half)
        at_once = _at_once(self.points.targets, CPU_SELECTION, len(self.targets))
        for some, products in zip(rows.split(at_once), half.split(at_once, dim=1)):
            yield some, self._lists(some, products)

    def _lists(self, rows: Tensor, half: Tensor) -> Tensor:
        keys = self._nearest(rows, half)
        farthest = keys[:, -1] >> INDEX_BITS
        query, place = self._undecided(rows, keys).nonzero(as_tuple=True)
        targets = _index_of(keys[query, place])
        exact = _keys(_half_squares(self.points, rows[query], targets), targets)
        order = exact.argsort()
        keys[query, place] = exact[order[query[order].argsort(stable=True)]]  # each row's own, ascending
        keys = keys[:, : self.k]
        open_lists = ((keys[:, -1] >> INDEX_BITS) + self.room >= farthest).nonzero()[:, 0]
        found = _index_of(keys)
        at_once = _at_once(self.points.targets, CPU_BLOCK, len(self.points.targets))
        for some in open_lists.split(at_once) if len(open_lists) else ():
            found[some] = _ranked(self.points, rows[some], self.k, self.own)
        return found

    def _nearest(self, rows: Tensor, half: Tensor) -> Tensor:
        """Keys (B, candidates) of the nearest targets as float32 has them, ascending; half is (height, B, columns)."""
        if self.own is not None:
            leaving = (self.own[rows] >= 0).nonzero()[:, 0]
            left = self.own[rows[leaving]]
            half[left // self.columns, leaving, left % self.columns] = torch.inf
        columns = _least(half.amin(0).add_(self.of_queries[rows]), self.candidates)[1]
        few = half.gather(2, columns.expand(len(half), -1, -1)).transpose(0, 1).flatten(1)
        values, places = _least(few.add_(self.of_queries[rows]), self.candidates)
        indices = columns.gather(1, places % self.candidates).add_(places // self.candidates * self.columns)
        return _ascending(_keys(values, indices))

    def _undecided(self, rows: Tensor, keys: Tensor) -> Tensor:
        """Which candidates (B, candidates) need a distance in float64: those that have one of the other kind, a hit or
        another, so near that the error may have put them in the wrong order."""
        if self.labels is None:
            return torch.ones_like(keys, dtype=torch.bool)
        of_queries, of_targets = self.labels
        hits = of_targets.take(_index_of(keys)) == of_queries[rows, None]
        steps = keys >> INDEX_BITS
        # around neighbours of two kinds all that is within `room` of the farther of them has one of the other kind
        close = (hits[:, 1:] != hits[:, :-1]) & (steps[:, 1:] - steps[:, :-1] <= self.room)
        row, before = close.nonzero(as_tuple=True)
        steps = (steps + (torch.arange(len(keys), device=keys.device)[:, None] << 36)).flatten()  # ascending throughout
        place = row * keys.shape[1] + before
        first = torch.searchsorted(steps, steps[place + 1] - self.room)
        last = torch.searchsorted(steps, steps[place] + self.room, right=True)
        opened = steps.new_zeros(len(steps) + 1)
        opened.index_add_(0, first, torch.ones_like(first)).index_add_(0, last, -torch.ones_like(last))
        return (opened.cumsum(0)[:-1] > 0).view_as(keys)


def _least(half: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k least of each row in float32, and where they are; `half` is overwritten.

    Without its sign the bits of a number are an integer in the same order, and integers are selected from faster, as
    none can be NaN. What rounding has put below zero is no further from the truth at zero.
    """
    bits, places = half.clamp_min_(0).view(torch.int32).topk(k, largest=False, sorted=False)
    return bits.view(torch.float32), places


def _half_norms(points: Tensor, center: Tensor) -> Tensor:
    """Half the squared distances (N,) of points from a center, in float64."""
    return torch.cat([(some - center).square_().sum(1) / 2 for some in points.split(512)])


def _less(points: Tensor, center: Tensor, rows: int) -> Tensor:
    """points less center in float32, filled up with zeros to so many rows; without another float64 copy."""
    result = points.new_zeros(rows, points.shape[1], dtype=torch.float32)
    for some, into in zip(points.split(512), result.split(512)):
        into[: len(some)] = some - center
    return result


def _own_places(
    points: Points,
    own_gallery: bool,
    query_ids: Tensor | ArrayLike | None,
    gallery_ids: Tensor | ArrayLike | None,
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


# Input


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
        points = given.detach().double()
    if not points.isfinite().all():
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
