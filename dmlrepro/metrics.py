"""Retrieval, clustering and geometry measures of embeddings: pure functions of tensors, the same result on any device.

Every measure computes in float64 whatever the input type. Retrieval compares distances in steps of 2^-32 of their
range and breaks ties by gallery index, so neither the rounding of a matrix product nor the block size reorders equal
embeddings.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

# Retrieval


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
        block: queries compared at once, by default what keeps the block's distances below 2^21. Memory is
            O(block x G) and two float64 copies of the vectors, never N x G; the result does not depend on it.

    Returns:
        R@K for each K, P@1, RP, MAP@R, mAP@1000 and mAP@1000/class_size, and `excluded`, the number of queries without
        a relevant gallery item (a class of one item); they count in no average.

    Raises:
        ValueError: a wrong shape or type, NaN or infinity, or no query with a relevant item.
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
    queries = _points(embeddings, "embeddings")
    targets = queries if own_gallery else _points(gallery, "gallery")
    labels = _labels(labels, queries, "labels")
    if own_gallery != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels must be given together")
    target_labels = labels if own_gallery else _labels(gallery_labels, targets, "gallery_labels")

    class_ids, target_classes = target_labels.unique(return_inverse=True)
    position = torch.searchsorted(class_ids, labels).clamp_max(len(class_ids) - 1)
    class_size = target_classes.bincount()[position] * (class_ids[position] == labels)
    relevant = class_size - int(own_gallery)

    depth = min(max(*ks, 1000, int(relevant.max())), len(targets) - int(own_gallery))
    if depth < 1:
        raise ValueError("embeddings must hold at least two items to search each other")
    ranks = torch.arange(1, depth + 1, device=queries.device, dtype=torch.float64)
    columns: dict[str, list[Tensor]] = {}
    for rows, nearest in _nearest_blocks(queries, targets, depth, distance, own_gallery, block):
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
    queries = _points(embeddings, "embeddings")
    targets = queries if gallery is None else _points(gallery, "gallery")
    available = len(targets) - int(gallery is None)
    if not 1 <= k <= available:
        raise ValueError(f"k must lie in [1, {available}], the number of items to choose from, got {k}")
    blocks = _nearest_blocks(queries, targets, k, distance, gallery is None, block)
    return torch.cat([indices for _, indices in blocks])


def _nearest_blocks(
    queries: Tensor, targets: Tensor, k: int, distance: str, leave_self_out: bool, block: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (rows, indices of their k nearest targets). One integer key per pair holds distance, then index."""
    if queries.shape[1] != targets.shape[1]:
        raise ValueError(f"gallery must have {queries.shape[1]} columns as embeddings has, got {targets.shape[1]}")
    if distance == "cosine":
        unit = F.normalize(queries, dim=1)
        queries, targets = unit, unit if targets is queries else F.normalize(targets, dim=1)
        half_squares = queries.new_ones(len(queries), 1), targets.new_zeros(len(targets))  # half |q - t|^2 = 1 - cos
    elif distance == "euclidean":
        radius = max(queries.norm(dim=1).max(), targets.norm(dim=1).max()).clamp_min(torch.finfo(torch.float64).tiny)
        queries, targets = queries / radius, targets / radius
        half_squares = queries.square().sum(1, keepdim=True) / 2, targets.square().sum(1) / 2
    else:
        raise ValueError(f'distance must be "cosine" or "euclidean", got {distance!r}')
    index_bits = 29  # half squared distances lie in [0, 2]: 34 bits of steps, 63 with the index
    index = torch.arange(len(targets), device=targets.device)
    for rows in torch.arange(len(queries), device=queries.device).split(block or max(1, 2**21 // len(targets))):
        half = torch.addmm(half_squares[1], queries[rows], targets.T, alpha=-1).add_(half_squares[0][rows])
        keys = half.mul_(2**32).round_().clamp_min_(0).long()
        keys = keys.bitwise_left_shift_(index_bits).bitwise_or_(index)
        if leave_self_out:
            keys[torch.arange(len(rows), device=rows.device), rows] = torch.iinfo(torch.int64).max
        yield rows, keys.topk(k, largest=False, sorted=True).values.bitwise_and_(2**index_bits - 1)


# Clustering and the quality of groups


def nmi(
    embeddings: Tensor,
    labels: Tensor,
    num_clusters: int | None = None,
    distance: str = "cosine",
    seed: int = 0,
) -> float:
    """Normalised mutual information, arithmetic mean, of the labels with k-means clusters; in [0, 1].

    embeddings (N, D), unit vectors are clustered when distance is "cosine"; num_clusters defaults to the number of
    classes. k-means++ and at most 300 iterations of Lloyd from one start fixed by seed; a different number of threads
    may sum in a different order and end elsewhere.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score

    points = _points(embeddings, "embeddings")
    labels = _labels(labels, points, "labels").cpu().numpy()
    if distance not in ("cosine", "euclidean"):
        raise ValueError(f'distance must be "cosine" or "euclidean", got {distance!r}')
    points = (F.normalize(points, dim=1) if distance == "cosine" else points).float().cpu().numpy()
    num_clusters = num_clusters or len(set(labels.tolist()))
    clusters = KMeans(num_clusters, n_init=1, random_state=seed).fit_predict(points)
    return float(normalized_mutual_info_score(labels, clusters))


@torch.no_grad()
def label_purity(groups: Tensor, labels: Tensor) -> float:
    """Share of a group's majority label, averaged over the points that own the groups (PLM, Table 2).

    groups: cluster numbers (N,), each point owning its cluster, or a boolean mask (G, N), each row one group such as
    the linear neighbourhood of a point; a row must have a member. labels (N,).
    """
    groups = torch.as_tensor(groups)
    labels = torch.as_tensor(labels, device=groups.device).unique(return_inverse=True)[1]
    if groups.shape[-1:] != labels.shape or groups.ndim > 2 or (groups.ndim == 2) != (groups.dtype == torch.bool):
        raise ValueError(
            f"groups must be cluster numbers ({len(labels)},) or a boolean mask (G, {len(labels)}), "
            f"got {groups.dtype} of shape {tuple(groups.shape)}"
        )
    classes = int(labels.max()) + 1
    if groups.ndim == 1:
        clusters = groups.unique(return_inverse=True)[1]
        counts = (clusters * classes + labels).bincount(minlength=classes * (int(clusters.max()) + 1))
        return counts.view(-1, classes).amax(1).sum().item() / len(labels)
    if not groups.any(1).all():
        raise ValueError(f"groups must have members, row {int((~groups.any(1)).nonzero()[0])} is empty")
    shares = []
    for mask in groups.split(max(1, 2**22 // len(labels))):
        counts = labels.new_zeros(len(mask), classes).index_add_(1, labels, mask.long())
        shares.append(counts.amax(1) / mask.sum(1).double())
    return torch.cat(shares).mean().item()


@torch.no_grad()
def similarity_correlation(similarity: Tensor, labels: Tensor) -> float:
    """Pearson correlation of similarity (N, N) with "same label" (1 or 0) over all ordered pairs i != j (PLM, Table 2).

    Raises ValueError where it is undefined: a constant similarity, or labels all equal or all different.
    """
    similarity = _points(similarity, "similarity")
    labels = _labels(labels, similarity, "labels")
    if similarity.shape[0] != similarity.shape[1]:
        raise ValueError(f"similarity must be square, got {tuple(similarity.shape)}")
    num_pairs = len(labels) * (len(labels) - 1)
    mean = (similarity.sum() - similarity.trace()) / max(num_pairs, 1)
    same = (labels.unique(return_counts=True)[1].square().sum() - len(labels)).double() / max(num_pairs, 1)
    variance = covariance = 0.0
    for rows in torch.arange(len(labels), device=labels.device).split(max(1, 2**22 // len(labels))):
        centred = similarity[rows] - mean
        centred[torch.arange(len(rows)), rows] = 0
        variance += centred.square().sum() / num_pairs
        covariance += (centred * (labels[rows, None] == labels)).sum() / num_pairs
    if not variance or not 0 < same < 1:
        raise ValueError("similarity_correlation is undefined: similarity or same-label is constant over the pairs")
    return (covariance / (variance * same * (1 - same)).sqrt()).item()


# Geometry


@torch.no_grad()
def proxy_wasserstein(
    proxies: Tensor, embeddings: Tensor, labels: Tensor, form: str = "assignment"
) -> tuple[float, Tensor]:
    """Distance between the proxies of a class and the samples they stand for, on unit vectors (PFML, Table 3).

    Each class's M proxies are matched with M different samples of the class (all of them, if there are fewer) at the
    least total cost:

        "assignment"  mean distance of the matched pairs: what PFML's supplement prints as W_2, in truth W_1
        "w2"          root of the least mean squared distance: the true W_2
        "nearest"     mean distance of a proxy to its nearest sample, repeats allowed: a lower bound of "assignment"

    proxies (C, M, D), embeddings (N, D), labels (N,) in [0, C). Returns the mean over the classes that have samples,
    and the value of each class (C,), NaN where it has none.
    """
    from scipy.optimize import linear_sum_assignment

    points = F.normalize(_points(embeddings, "embeddings"), dim=1)
    labels = _labels(labels, points, "labels")
    if proxies.ndim != 3 or proxies.shape[1] < 1 or proxies.shape[2] != points.shape[1]:
        raise ValueError(f"proxies must be (C, M, {points.shape[1]}) with M >= 1, got {tuple(proxies.shape)}")
    if labels.min() < 0 or labels.max() >= len(proxies):
        raise ValueError(f"labels must lie in [0, {len(proxies)}), found {labels.min()} to {labels.max()}")
    if form not in ("assignment", "w2", "nearest"):
        raise ValueError(f'form must be "assignment", "w2" or "nearest", got {form!r}')
    proxies = F.normalize(_points(proxies.flatten(0, 1), "proxies").to(points.device), dim=1).view(proxies.shape)
    values = points.new_full((len(proxies),), torch.nan)
    for label, members in _by_class(labels):
        costs = _distances(proxies[label], points[members])
        if form == "nearest":
            values[label] = costs.amin(1).mean()
            continue
        costs = costs.square() if form == "w2" else costs
        matched = costs.cpu().numpy()[linear_sum_assignment(costs.cpu().numpy())].mean()
        values[label] = matched**0.5 if form == "w2" else matched
    return values.nanmean().item(), values


@torch.no_grad()
def covering_radius(points: Tensor, centers: Tensor) -> float:
    """Largest Euclidean distance from a point to its nearest center. points (N, D), centers (K, D), used as given."""
    points, centers = _points(points, "points"), _points(centers, "centers")
    return max(_distances(some, centers).amin(1).max().item() for some in points.split(4096))


@torch.no_grad()
def average_covering_radius(embeddings: Tensor, labels: Tensor) -> float:
    """Radius at which k samples of a class cover it, averaged over k = 1..n, then over classes (CCP, Fig. 3).

    Centers are added greedily: first the sample with the smallest radius, then always the farthest from the centers.
    Euclidean distance of the embeddings as given; the paper leaves greedy or optimal and the space open.
    """
    points = _points(embeddings, "embeddings")
    averages = []
    for _, members in _by_class(_labels(labels, points, "labels")):
        between = _distances(points[members], points[members])
        to_centers = between[between.amax(1).argmin()]
        radii = []
        for _ in members:
            radius, farthest = to_centers.max(0)
            radii.append(radius)
            to_centers = torch.minimum(to_centers, between[farthest])
        averages.append(torch.stack(radii).mean())
    return torch.stack(averages).mean().item()


@torch.no_grad()
def feature_diversity(embeddings: Tensor) -> float:
    """Uniformity of the singular values of the unit embeddings, their geometric over their arithmetic mean; in [0, 1].

    It is exp(-rho) of the spectral decay rho = KL(uniform || normalised singular values) of Roth et al. (ICML 2020),
    uncentred as there, over all min(N, D) values. 1: all directions are used equally; 0: some direction not at all.
    """
    singular = torch.linalg.svdvals(F.normalize(_points(embeddings, "embeddings"), dim=1))
    return (singular.log().mean().exp() / singular.mean()).item()


@torch.no_grad()
def class_diversity(embeddings: Tensor, labels: Tensor, form: str = "within") -> float:
    """Variance of the distances between unit embeddings of a class (nivMF, Table 5 "cluster diversity").

    The paper does not say whether the variance is taken

        "within"   over the pairs of a class, then averaged over classes: are the samples of a class unevenly spread?
        "across"   over classes, of a class's mean distance: do classes differ in extent?

    Population variances; classes of one sample have no distance and are left out. embeddings (N, D), labels (N,).
    """
    if form not in ("within", "across"):
        raise ValueError(f'form must be "within" or "across", got {form!r}')
    points = F.normalize(_points(embeddings, "embeddings"), dim=1)
    groups = [points[members] for _, members in _by_class(_labels(labels, points, "labels")) if len(members) > 1]
    if not groups:
        raise ValueError("labels must have a class of at least two samples")
    distances = [F.pdist(group) for group in groups]
    if form == "within":
        return torch.stack([d.var(correction=0) for d in distances]).mean().item()
    return torch.stack([d.mean() for d in distances]).var(correction=0).item()


# Shared checks and helpers


def _points(values: Tensor, name: str) -> Tensor:
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


def _labels(labels: Tensor, points: Tensor, name: str) -> Tensor:
    labels = torch.as_tensor(labels, device=points.device)
    if labels.shape != points.shape[:1] or labels.is_floating_point():
        raise ValueError(
            f"{name} must be {len(points)} integers, one per row, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    return labels.long()


def _by_class(labels: Tensor) -> list[tuple[int, Tensor]]:
    """(label, indices of its samples) for every label present, ascending."""
    present, counts = labels.unique(return_counts=True)
    return list(zip(present.tolist(), labels.argsort(stable=True).split(counts.tolist())))


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances by subtraction: a matrix product would lose the small ones."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
