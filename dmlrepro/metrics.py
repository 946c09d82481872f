"""Retrieval, clustering and geometry measures of embeddings: pure functions of tensors, the same result on any device.

Every measure computes in float64 whatever the input type, but for the k-means of `nmi`. The retrieval scores live in
retrieval.py, and their sum over batches, `RetrievalMetric`, in retrieval_metric.py.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dmlrepro.extras import require
from dmlrepro.retrieval import as_labels, as_points, directions, nearest, retrieval, retrieval_per_query

__all__ = [
    "average_covering_radius",
    "class_diversity",
    "covering_radius",
    "feature_diversity",
    "label_purity",
    "nearest",
    "nmi",
    "proxy_wasserstein",
    "retrieval",
    "retrieval_per_query",
    "similarity_correlation",
]


def __getattr__(name: str) -> Any:
    """`RetrievalMetric` is imported when it is asked for: it needs torchmetrics."""
    if name != "RetrievalMetric":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dmlrepro.retrieval_metric import RetrievalMetric

    return RetrievalMetric


# Clustering and the quality of groups


def nmi(
    embeddings: Tensor, labels: Tensor, num_clusters: int | None = None, distance: str = "cosine", seed: int = 0
) -> float:
    """Normalised mutual information, arithmetic mean, of the labels with k-means clusters; in [0, 1].

    embeddings (N, D), unit vectors are clustered when distance is "cosine"; num_clusters defaults to the number of
    classes. k-means++ in float32 and at most 300 iterations of Lloyd from one start fixed by seed; a different number
    of threads may sum in a different order and end elsewhere.
    """
    require("scikit-learn", "sklearn")
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score

    points = as_points(embeddings, "embeddings")
    labels = as_labels(labels, points, "labels").cpu().numpy()
    if distance not in ("cosine", "euclidean"):
        raise ValueError(f'distance must be "cosine" or "euclidean", got {distance!r}')
    points = (directions(points, "embeddings") if distance == "cosine" else points).float().cpu().numpy()
    num_clusters = len(set(labels.tolist())) if num_clusters is None else num_clusters
    if not 1 <= num_clusters <= len(points):
        raise ValueError(f"num_clusters must lie in [1, {len(points)}], the number of embeddings, got {num_clusters}")
    clusters = KMeans(num_clusters, n_init=1, random_state=seed).fit_predict(points)
    return float(normalized_mutual_info_score(labels, clusters))


@torch.no_grad()
def label_purity(groups: Tensor, labels: Tensor) -> float:
    """Share of a group's majority label, averaged over the points that own the groups (PLM, Table 2).

    groups: cluster numbers (N,), each point owning its cluster, or a boolean mask (G, N), each row one group such as
    the linear neighbourhood of a point; a row must have a member. labels (N,), integers or strings.

    >>> label_purity(torch.tensor([0, 0, 1, 1]), torch.tensor([7, 7, 7, 8]))  # 2 of 2 and 1 of 2
    0.75
    """
    groups = torch.as_tensor(groups)
    if not len(labels):
        raise ValueError("labels are empty; give one for each point")
    fits = groups.shape[-1:] == (len(labels),) and len(groups) and groups.ndim <= 2
    if not fits or (groups.ndim == 2) != (groups.dtype == torch.bool):
        raise ValueError(
            f"groups must be cluster numbers ({len(labels)},) or a boolean mask (G, {len(labels)}), "
            f"got {groups.dtype} of shape {tuple(groups.shape)}"
        )
    labels = as_labels(labels, groups.movedim(-1, 0), "labels").unique(return_inverse=True)[1]
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
    similarity = as_points(similarity, "similarity")
    labels = as_labels(labels, similarity, "labels")
    if similarity.shape[0] != similarity.shape[1]:
        raise ValueError(f"similarity must be square, got {tuple(similarity.shape)}")
    num_pairs = len(labels) * (len(labels) - 1)
    mean = similarity.clone().fill_diagonal_(0).sum() / max(num_pairs, 1)
    same = (labels.unique(return_counts=True)[1].square().sum() - len(labels)).double() / max(num_pairs, 1)
    variance = covariance = 0.0
    for rows in torch.arange(len(labels), device=labels.device).split(max(1, 2**22 // len(labels))):
        centred = similarity[rows] - mean
        centred[torch.arange(len(rows)), rows] = 0
        variance += centred.square().sum() / num_pairs
        covariance += (centred * (labels[rows, None] == labels)).sum() / num_pairs
    if not variance > (1e-14 * mean).square() or not 0 < same < 1:  # below, it is what rounding makes of a constant
        raise ValueError("similarity_correlation is undefined: similarity or same-label is constant over the pairs")
    return (covariance / (variance * same * (1 - same)).sqrt()).item()


@torch.no_grad()
def proxy_wasserstein(
    proxies: Tensor, embeddings: Tensor, labels: Tensor, form: str = "assignment"
) -> tuple[float, Tensor]:
    """Distance between the proxies of a class and the samples they stand for, on unit vectors (PFML, Table 3).

    Each class's M proxies are matched with M different samples of the class (all of them, if there are fewer) at the
    least total cost:

        "assignment"  mean distance of the matched pairs: what PFML's supplement prints as W_2, in truth W_1
        "w2"          root of the least mean squared distance: the true W_2
        "nearest"     mean distance of a proxy to its nearest sample, repeats allowed

    proxies (C, M, D), embeddings (N, D), labels (N,) in [0, C). Returns the mean over the classes that have samples,
    and the value of each class (C,), NaN where it has none.
    """
    require("scipy")
    from scipy.optimize import linear_sum_assignment

    proxies = torch.as_tensor(proxies)
    points = directions(as_points(embeddings, "embeddings"), "embeddings")
    labels = as_labels(labels, points, "labels")
    if proxies.ndim != 3 or proxies.shape[1] < 1 or proxies.shape[2] != points.shape[1]:
        raise ValueError(f"proxies must be (C, M, {points.shape[1]}) with M >= 1, got {tuple(proxies.shape)}")
    if labels.min() < 0 or labels.max() >= len(proxies):
        raise ValueError(f"labels must lie in [0, {len(proxies)}), found {labels.min()} to {labels.max()}")
    if form not in ("assignment", "w2", "nearest"):
        raise ValueError(f'form must be "assignment", "w2" or "nearest", got {form!r}')
    proxies = directions(as_points(proxies.flatten(0, 1), "proxies").to(points.device), "proxies").view(proxies.shape)
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
    """Largest Euclidean distance from a point to its nearest center. points (N, D), centers (K, D), used as given.
    As a tensor, and of many classes at once: `losses.chance_constrained.covering_radius`.

    >>> covering_radius(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[0.0], [3.0]]))
    2.0
    """
    points, centers = as_points(points, "points"), as_points(centers, "centers")
    if centers.shape[1] != points.shape[1]:
        raise ValueError(
            f"centers must have {points.shape[1]} columns like points, got {centers.shape[1]}; give both in one space"
        )
    return max(_distances(some, centers).amin(1).max().item() for some in points.split(4096))


@torch.no_grad()
def average_covering_radius(embeddings: Tensor, labels: Tensor) -> float:
    """Radius at which k samples of a class cover it, averaged over k = 1..n, then over classes (CCP, Fig. 3).

    Centers are added greedily: first the sample with the smallest radius, then always the farthest from the centers.
    Euclidean distance of the embeddings as given; the paper leaves greedy or optimal and the space open.
    """
    points = as_points(embeddings, "embeddings")
    averages = []
    for _, members in _by_class(as_labels(labels, points, "labels")):
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
    uncentred as there, over all min(N, D) values. 1: all directions are used equally; near 0: many not at all.
    """
    singular = torch.linalg.svdvals(directions(as_points(embeddings, "embeddings"), "embeddings"))
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
    points = directions(as_points(embeddings, "embeddings"), "embeddings")
    groups = [points[members] for _, members in _by_class(as_labels(labels, points, "labels")) if len(members) > 1]
    if not groups:
        raise ValueError("labels must have a class of at least two samples")
    if form == "within":
        return torch.stack([F.pdist(group).var(correction=0) for group in groups]).mean().item()
    return torch.stack([F.pdist(group).mean() for group in groups]).var(correction=0).item()


# Shared helpers


def _by_class(labels: Tensor) -> list[tuple[int, Tensor]]:
    """(label, indices of its samples) for every label present, ascending."""
    present, counts = labels.unique(return_counts=True)
    return list(zip(present.tolist(), labels.argsort(stable=True).split(counts.tolist())))


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances by subtraction: a matrix product would lose the small ones."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
