"""Chance-constrained metric learning (CCP): pair losses between samples and proxies, and what a projection needs.

Paper      Gürbüz, Can and Alatan, "Deep Metric Learning with Chance Constraints", arXiv 2209.09060 (2022).
Equations  5 and 8 (hinges between samples and proxies), 12 to 14 (projection), Algorithm 2 (greedy k-center),
           Sec. IV-D (clipping to the unit ball). Algorithm 1, the outer loop, is the training algorithm of this name.
Deviations `reduction` defaults to the released code's mean over violated pairs; Algorithm 1 prints the mean over all.
           C1's negative hinge is [s - margin]+, where the released code adds s itself if s > margin: the gradient is
           the same. Its slack of 1e-5 below similarity 1 is left out. Algorithm 1 prints lambda (theta* - theta) as
           gradient of the penalty, which pushes away from theta*; here it is that of Eq. 14, lambda (theta - theta*).

Every loss is called as loss(embeddings, labels, ref_emb=proxies, ref_labels=proxy_labels), or with the
proxies in third and fourth place; without proxies the pairs are those within the batch, a sample and itself left out.
Vectors of any norm are taken and clipped to the unit ball.
"""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dmlrepro.losses.checks import (
    check_batch,
    check_finite,
    check_positive,
    check_tensors,
    printed,
    values_are_known,
    whole_labels,
)
from dmlrepro.losses.recommended import rate_of_the_network

REDUCTIONS = ("nonzero", "mean", "per_sample")


def clip_to_unit_ball(vectors: Tensor) -> Tensor:
    """(..., D): a vector longer than 1 is scaled to length 1, others stay as they are (Sec. IV-D)."""
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(norms > 1, norms, 1)


@torch.no_grad()
def greedy_k_center(pool: Tensor, centers: Tensor, k: int) -> Tensor:
    """The k points of a pool, in order, each the farthest from the centers and the points before it (Algorithm 2).

    pool (P, D), centers (c, D) -> (k,) int64 positions in the pool, all different; or batched over classes, (C, P, D)
    and (C, c, D) -> (C, k). Of points equally far the first counts, so duplicates of picked points come last, in order.
    Euclidean distance, c >= 1; half precision is compared in float32.

    Raises ValueError for shapes that do not fit, k outside [1, P], or NaN or infinity.

    >>> greedy_k_center(torch.tensor([[0.0], [1.0], [5.0], [6.0]]), torch.tensor([[0.0]]), k=2)
    tensor([3, 1])
    """
    pool, centers = _compared(pool=pool, centers=centers)
    if not 1 <= k <= pool.shape[-2]:
        raise ValueError(f"k must lie in [1, {pool.shape[-2]}], the size of the pool, got {k}; give a larger pool")
    if pool.ndim == 2:
        return greedy_k_center(pool[None], centers[None], k)[0]
    distances = _distances(pool, centers).amin(2)
    picks = []
    for _ in range(k):
        pick = distances.argmax(1)
        picks.append(pick)
        picked = pool[torch.arange(len(pool), device=pool.device), pick]
        distances = torch.minimum(distances, _distances(pool, picked[:, None]).squeeze(2))
        distances.scatter_(1, torch.stack(picks, 1), -1.0)  # no point twice, even where all that are left are at 0
    return torch.stack(picks, 1)


@torch.no_grad()
def covering_radius(points: Tensor, centers: Tensor) -> Tensor:
    """Largest distance of a point to its nearest center: (N, D) and (c, D) -> (), or (C, N, D), (C, c, D) -> (C,).

    Half precision is computed in float32. Raises ValueError for shapes that do not fit, no point or no center, or NaN
    or infinity.
    """
    return _distances(*_compared(points=points, centers=centers)).amin(-1).amax(-1)


def _compared(**both: Tensor) -> tuple[Tensor, Tensor]:
    """Two sets of points that fit, by their names, in float32 or wider; ValueError names what does not fit."""
    check_tensors(**both)
    (first, a), (second, b) = both.items()
    if a.ndim not in (2, 3) or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"{first} and {second} must have shapes (P, D) and (c, D), or (C, P, D) and (C, c, D), "
            f"got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    for name, points in both.items():
        if not points.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {points.dtype}; pass {name}.float()")
        if points.shape[-2] == 0:
            raise ValueError(f"{name} must not be empty, got shape {tuple(points.shape)}; give at least one point")
        finite = points.isfinite().all(-1)
        if not finite.all():
            place = (~finite).nonzero()[0].tolist()
            value = next(x for x in points[tuple(place)].tolist() if not math.isfinite(x))
            raise ValueError(
                f"{name} must be finite, got {value} in row {', '.join(map(str, place))}; "
                "lower the learning rate or inspect the input images"
            )
    wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    return a.to(wide), b.to(wide)


def projection_penalty(parameters: Iterable[Tensor], anchors: Iterable[Tensor], weight: float) -> Tensor:
    """weight / 2 * ||theta - theta*||^2 over pairs of parameters and anchors of equal shapes (Eq. 14)."""
    pairs = [*zip(parameters, anchors, strict=True)]
    if other := next(((i, p.shape, a.shape) for i, (p, a) in enumerate(pairs) if p.shape != a.shape), None):
        raise ValueError("anchors[{}] must have the shape {} of its parameter, got {}".format(*map(str, other)))
    terms = [F.mse_loss(p, anchor, reduction="sum") for p, anchor in pairs]
    return weight / 2 * torch.stack(terms).sum()


class _ProxyPairLoss(nn.Module):
    """A loss of pairs: `of_pairs` is the equation."""

    parameter_groups = rate_of_the_network  # the proxies are the caller's, and learn as the network does

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | Tensor | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch, as a scalar.

        Args:
            embeddings, labels: (B, D) floats and (B,) integers.
            indices_tuple: the pairs that count, from a miner of pytorch-metric-learning, as rows of embeddings and of
                ref_emb: (anchors, positives, anchors, negatives), or triplets (anchors, positives, negatives), whose
                pairs count once each; None: all. A tensor in this place is the proxies, what follows their labels.
            ref_emb, ref_labels: proxies (P, D) and their classes (P,), or past embeddings; None: the batch itself, the
                plain loss. Proxies of classes that no label of the batch has are pushed away only.
        """
        if isinstance(indices_tuple, Tensor):
            ref_labels = ref_labels if ref_emb is None else ref_emb
            indices_tuple, ref_emb = None, indices_tuple
        a, b, same, other = self.pairs(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        with torch.autocast(a.device.type, enabled=False):
            return self.of_pairs(a, b, same, other)

    def pairs(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The arguments of `of_pairs` for those of the loss."""
        a, b, same, other = _pairs(embeddings, whole_labels(embeddings, labels), ref_emb, ref_labels)
        if indices_tuple is not None:
            same, other = _mined(indices_tuple, same, other)
        return a, b, same, other

    def of_pairs(self, a: Tensor, b: Tensor, same: Tensor, other: Tensor) -> Tensor:
        """The loss of both sides of the pairs, (B, D) and (N, D), and of masks (B, N) of those of one class and two."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return printed(self)


class ProxyContrastiveLoss(_ProxyPairLoss):
    """Contrastive loss between samples and proxies; without proxies in a call, the same within the batch.

    Args:
        form: "c2": [d - positive_margin]+ over pairs of one class and [negative_margin - d]+ over the others, d the
            Euclidean distance. "c1": [1 - positive_margin - s]+ and [s - negative_margin]+, s the inner product.
        negative_margin: None: 0.5 for c1, 0.3841 for c2, the paper's values on CUB.
        reduction: "nonzero" adds the means over the violated pairs of one class and over those of two (released code
            of C2), "mean" divides the sum by the number of all pairs (Algorithm 1), "per_sample" by that of samples
            (released code of C1).
    """

    def __init__(
        self,
        form: str = "c2",
        positive_margin: float = 0.0,
        negative_margin: float | None = None,
        reduction: str = "nonzero",
    ):
        super().__init__()
        if form not in ("c1", "c2"):
            raise ValueError(f'form must be "c1" or "c2", got {form!r}')
        if negative_margin is None:
            negative_margin = {"c1": 0.5, "c2": 0.3841}[form]
        check_finite(positive_margin=positive_margin, negative_margin=negative_margin)
        _check_reduction(reduction, REDUCTIONS)
        self.form, self.reduction = form, reduction
        self.positive_margin, self.negative_margin = positive_margin, negative_margin

    def per_pair(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The hinges (B, N) of all pairs, as if they were of one class, and as if of two."""
        apart = _distances(a, b) if self.form == "c2" else 1 - a @ b.T
        far = self.negative_margin if self.form == "c2" else 1 - self.negative_margin
        return F.relu(apart - self.positive_margin), F.relu(far - apart)

    def of_pairs(self, a: Tensor, b: Tensor, same: Tensor, other: Tensor) -> Tensor:
        near, far = self.per_pair(a, b)
        hinges = [near * same, far * other]
        if self.reduction == "nonzero":
            return sum(hinge.sum() / (hinge.detach() > 0).sum().clamp_min(1) for hinge in hinges)
        count = a.shape[0] if self.reduction == "per_sample" else (same | other).sum().clamp_min(1)
        return sum(hinge.sum() for hinge in hinges) / count


class ProxyTripletLoss(_ProxyPairLoss):
    """[d(a, p) - d(a, n) + margin]+ over all triplets of a sample, a proxy of its class and one of another; without
    proxies in a call, within the batch.

    d is the Euclidean distance. A sample with N proxies takes O(N log N) time and O(N) memory, not O(N^2): a positive's
    hinges come from the sum of the sorted negatives below its bound.

    Args:
        margin: the paper's value on CUB by default.
        reduction: "nonzero" averages over the violated triplets, "mean" over all.
    """

    def __init__(self, margin: float = 0.0961, reduction: str = "nonzero"):
        super().__init__()
        check_finite(margin=margin)
        _check_reduction(reduction, REDUCTIONS[:2])
        self.margin, self.reduction = margin, reduction

    def of_pairs(self, a: Tensor, b: Tensor, same: Tensor, other: Tensor) -> Tensor:
        distances = _distances(a, b)
        bounds = distances + self.margin
        negatives = distances.masked_fill(~other, torch.inf).sort(dim=1).values
        violating = torch.searchsorted(negatives.detach(), bounds.detach())  # how many negatives lie below a bound
        sums = F.pad(negatives.double().cumsum(1), (1, 0)).gather(1, violating)
        total = ((violating * bounds - sums) * same).sum().to(distances.dtype)
        counted = violating * same if self.reduction == "nonzero" else same.sum(1) * other.sum(1)
        return total / counted.sum().clamp_min(1)


class ProxyMultiSimilarityLoss(_ProxyPairLoss):
    """log(1 + sum exp(-alpha (s - base))) / alpha over the proxies of a sample's class, plus log(1 + sum
    exp(beta (s - base))) / beta over the others, averaged over the samples; s is the inner product.

    No pairs are mined unless the call does so: the paper gives no threshold for it. alpha, beta, base: its values on
    CUB by default.
    """

    def __init__(self, *, alpha: float = 2.0, beta: float = 40.0, base: float = 0.5):
        super().__init__()
        check_positive(alpha=alpha, beta=beta)
        check_finite(base=base)
        self.alpha, self.beta, self.base = alpha, beta, base

    def of_pairs(self, a: Tensor, b: Tensor, same: Tensor, other: Tensor) -> Tensor:
        return sum(terms.mean() / scale for terms, scale in self._terms(a, b, same, other))

    def per_sample(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ):
        """The terms (B,) whose mean the loss is."""
        a, b, same, other = self.pairs(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        with torch.autocast(a.device.type, enabled=False):
            return sum(terms / scale for terms, scale in self._terms(a, b, same, other))

    def _terms(self, a: Tensor, b: Tensor, same: Tensor, other: Tensor) -> list[tuple[Tensor, float]]:
        above = a @ b.T - self.base
        return [
            (_log_one_plus_sum_exp(scale * above, chosen), abs(scale))
            for scale, chosen in ((-self.alpha, same), (self.beta, other))
        ]


def _mined(indices_tuple: tuple, same: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The masks (B, N) of pairs of one class and of two, less the pairs that a miner did not choose."""
    if not isinstance(indices_tuple, tuple | list) or len(indices_tuple) not in (3, 4):
        raise ValueError(
            "indices_tuple must be a miner's pairs (anchors, positives, anchors, negatives) or triplets "
            f"(anchors, positives, negatives), got {indices_tuple!r:.80}"
        )
    sides = zip(indices_tuple, (0, 1, 0, 1) if len(indices_tuple) == 4 else (0, 1, 1))
    given = [(rows, same.shape[side]) for rows, side in sides if len(rows)] if values_are_known() else []
    if not all(0 <= rows.min() <= rows.max() < count for rows, count in given):
        raise ValueError(f"indices_tuple has rows beyond the pairs {tuple(same.shape)} of the batch; mine on it")
    anchors, positives, *_, negatives = indices_tuple
    near, far = torch.zeros_like(same), torch.zeros_like(other)
    near[anchors, positives] = far[indices_tuple[2] if len(indices_tuple) == 4 else anchors, negatives] = True
    return same & near, other & far


def _log_one_plus_sum_exp(logits: Tensor, chosen: Tensor) -> Tensor:
    """log(1 + sum of exp over the chosen entries of each row): (B, N) -> (B,), 0 where none is chosen."""
    return F.pad(logits.masked_fill(~chosen, -torch.inf), (1, 0)).logsumexp(1)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean, by subtraction: a matrix product would lose the small ones, and its gradient at 0 is not finite."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _pairs(
    embeddings: Tensor, labels: Tensor, proxies: Tensor | None, proxy_labels: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both sides of the pairs, clipped and in float32 or wider, and masks (B, N) of pairs of one class and of two."""
    most = torch.iinfo(torch.int64).max
    dim = embeddings.shape[-1] if embeddings.ndim else 0
    check_batch(embeddings, labels, most, dim, least_norm=0.0)
    wide = torch.promote_types(embeddings.dtype, torch.float32)
    a = clip_to_unit_ball(embeddings.to(wide))
    if proxies is None:
        if proxy_labels is not None:
            raise ValueError("ref_labels without ref_emb label nothing; pass both or neither")
        same = labels[:, None] == labels
        return a, a, same & ~torch.eye(labels.shape[0], dtype=torch.bool, device=labels.device), ~same
    check_tensors(ref_emb=proxies)
    if proxy_labels is not None:
        check_tensors(ref_labels=proxy_labels)
    if proxies.ndim != 2 or proxies.shape[1] != dim or len(proxies) == 0:
        raise ValueError(f"the proxies (ref_emb) must have shape (P, {dim}) with P >= 1, got {tuple(proxies.shape)}")
    if proxy_labels is None or proxy_labels.is_floating_point() or proxy_labels.shape != proxies.shape[:1]:
        got = None if proxy_labels is None else f"{proxy_labels.dtype} of shape {tuple(proxy_labels.shape)}"
        raise ValueError(
            f"proxy_labels (ref_labels) must be int64 of shape ({len(proxies)},), one per proxy, got {got}"
        )
    if values_are_known() and not proxies.detach().isfinite().all():
        raise ValueError("the proxies (ref_emb) contain NaN or infinity; lower their learning rate")
    same = labels[:, None] == proxy_labels.to(labels.device)
    return a, clip_to_unit_ball(proxies.to(wide)), same, ~same


def _check_reduction(reduction: str, known: tuple[str, ...]) -> None:
    if reduction not in known:
        raise ValueError(f"reduction must be one of {', '.join(known)}, got {reduction!r}")
