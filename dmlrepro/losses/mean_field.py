"""Mean field losses: samples interact with one learned mean field per class instead of with one another.

Paper      Furusawa, "Mean Field Theory in Deep Metric Learning", ICLR 2024.
Equations  6 (class-balanced Contrastive), 8 (MeanFieldContrastive), 9 (ClassWiseMultiSimilarity), 10
           (MeanFieldClassWiseMultiSimilarity), 21 (MeanFieldNCA).
Deviations - The distance is 1 - cos, as in the released code; the paper leaves d open. So only the direction of a mean
             field counts, and its norm sets how far an optimiser step of given size turns it.
           - delta is a cosine, as in the released code: Eqs. 9 and 10 have d - (1 - delta) where they print
             d - delta.
           - Eq. 8 prints M_c in its second hinge where the derivation (Eq. 15) and the code have M_c'.
           - The numerator of Eq. 21 sums over the positives x_j; it prints x_i. The sums over all subsets P and N,
             which cannot be enumerated, are one term: all positives and all negatives of the batch.
           - The sums over classes run over those of the batch, see `averaging`. A pair of classes with one in the batch
             keeps that class's half of Eq. 10.
           - The released regulariser of Eq. 10 is the printed one over beta^2; ours is the printed one.

Exact and small: an absent class has no samples, so only the |C_batch| x |C| pairs that have one are computed, and all
exponentials stay in logarithms. The regularisers need all |C|^2 pairs; they are computed in blocks, twice, and never
kept.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dmlrepro.losses.checks import (
    _WholeBatch,
    check_batch,
    check_directions,
    check_finite,
    check_positive,
    check_sizes,
    printed,
    whole_labels,
)
from dmlrepro.losses.recommended import groups, rate_of_the_network
from dmlrepro.vmf import at_least_float32

_BLOCK = 2**21  # so many pairs of mean fields are in memory at a time
FIELD_LR = 0.2  # of mean fields at the norm sqrt(D) that they are drawn with (Sec. 4)
_NEVER = -1e30  # the logarithm of what does not count; finite, so that no difference of two of them is NaN


class Groups(NamedTuple):
    """The samples of a batch by class: the classes present (p,), ascending; each sample's place among them (B,); how
    many samples each class has (p,); and p.

    A compiler needs lengths that do not depend on values. For it every sample has a group, empty where an earlier
    sample has its class: of an empty group a logarithm is _NEVER.
    """

    classes: Tensor
    place: Tensor
    counts: Tensor
    number: int | Tensor

    @classmethod
    def of(cls, labels: Tensor) -> "Groups":
        if not torch.compiler.is_compiling():
            classes, place, counts = labels.unique(return_inverse=True, return_counts=True)
            return cls(classes, place, counts, classes.shape[0])
        place = (labels[:, None] == labels).int().argmax(1)
        counts = torch.zeros_like(labels).index_add(0, place, torch.ones_like(labels))
        return cls(labels, place, counts, (counts > 0).sum())

    def without_empty(self, x: Tensor, value: float) -> Tensor:
        """x (..., p) with a value in the place of empty groups."""
        return x.masked_fill(self.counts == 0, value) if torch.compiler.is_compiling() else x


def field_cosines(embeddings: Tensor, mean_fields: Tensor) -> Tensor:
    """Cosines (B, C) of embeddings (B, D) and mean fields (C, D), neither of which may be zero.

    >>> field_cosines(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0], [-1.0, 0.0]]))
    tensor([[ 1.,  0., -1.]])
    """
    # the norms divide the product: normalising the fields themselves would cost passes over C x D numbers
    return F.normalize(embeddings, dim=1) @ mean_fields.T / torch.linalg.vector_norm(mean_fields, dim=1)


def _softplus(x: Tensor) -> Tensor:
    return -F.logsigmoid(-x)  # exact everywhere; F.softplus gives up digits from 20 on


def _log_mean_exp(x: Tensor, groups: Groups) -> Tensor:
    """Logarithm of the mean of exp(x) over the samples of each class: (B, K) -> (p, K)."""
    sizes = (groups.classes.shape[0], x.shape[1])
    peak = torch.full(sizes, _NEVER, dtype=x.dtype, device=x.device)
    peak.scatter_reduce_(0, groups.place[:, None].expand_as(x), x.detach(), "amax")
    total = torch.zeros_like(peak).index_add(0, groups.place, (x - peak[groups.place]).exp())
    if torch.compiler.is_compiling():
        total = total.masked_fill(groups.counts[:, None] == 0, 1.0)  # a clamp would take a lone sample's gradient
    return total.log() + (peak - groups.counts.clamp_min(1).to(x.dtype).log()[:, None])


def class_balanced_contrastive(
    embeddings: Tensor, labels: Tensor, positive_margin: float, negative_margin: float
) -> Tensor:
    """Eq. 6 over the classes of the batch; embeddings (B, D), labels (B,)."""
    groups = Groups.of(labels)
    unit = F.normalize(embeddings, dim=1)
    distance = 1 - unit @ unit.T
    same = labels[:, None] == labels
    terms = torch.where(same, distance - positive_margin, negative_margin - distance).relu()
    share = 1 / groups.counts[groups.place].to(terms.dtype)
    return share @ terms @ share / (2 * groups.number)


def mean_field_contrastive(
    embeddings: Tensor,
    labels: Tensor,
    mean_fields: Tensor,
    positive_margin: float,
    negative_margin: float,
    averaging: str = "released",
) -> Tensor:
    """Eq. 8 without its regulariser; embeddings (B, D), labels (B,), mean_fields (C, D).

    averaging "none" gives the terms (B,) that "released" averages, and "each" those of "paper".
    """
    cosines = field_cosines(embeddings, mean_fields)
    own = labels[:, None]
    attraction = (1 - positive_margin - cosines.gather(1, own)).relu()[:, 0]
    repulsion = (cosines - (1 - negative_margin)).scatter(1, own, 0).relu().sum(1)
    return _average(attraction + repulsion, labels, len(mean_fields), averaging)


def class_wise_multi_similarity(
    embeddings: Tensor, labels: Tensor, alpha: float, beta: float, delta: float, averaging: str = "released"
) -> Tensor:
    """Eq. 9 over the classes of the batch; embeddings (B, D), labels (B,)."""
    _check_averaging(averaging)
    groups = Groups.of(labels)
    unit = F.normalize(embeddings, dim=1)
    cosines = unit @ unit.T

    def between_classes(exponents: Tensor) -> Tensor:
        """Logarithm (p, p) of the mean of exp over all pairs of samples of two classes."""
        return _log_mean_exp(_log_mean_exp(exponents, groups).T, groups)

    attraction = alpha * (delta - cosines)
    if averaging == "paper":
        attraction = attraction.masked_fill(torch.eye(labels.shape[0], dtype=torch.bool, device=labels.device), _NEVER)
    positive = _softplus(between_classes(attraction).diagonal() - math.log(2)).sum() / alpha
    negative = _softplus(between_classes(beta * (cosines - delta)))
    return (positive + (negative.sum() - negative.diagonal().sum()) / (2 * beta)) / groups.number


def mean_field_class_wise_multi_similarity(
    embeddings: Tensor,
    labels: Tensor,
    mean_fields: Tensor,
    alpha: float,
    beta: float,
    delta: float,
    averaging: str = "released",
) -> Tensor:
    """Eq. 10 without its regulariser; embeddings (B, D), labels (B,), mean_fields (C, D)."""
    _check_averaging(averaging)
    groups = Groups.of(labels)
    cosines = field_cosines(embeddings, mean_fields)
    attraction = _log_mean_exp(alpha * (delta - cosines.gather(1, labels[:, None])), groups)
    repulsion = _log_mean_exp(beta * (cosines - delta), groups)  # (p, C), of a class's samples and any mean field
    # A pair with an absent class has one half of Eq. 10 and is met once for both of its orders; a pair of two classes
    # of the batch has both halves and is met in both orders.
    orders = torch.full_like(mean_fields[:, 0], 2.0).index_fill(0, groups.classes, 0.0)
    absent = (_softplus(repulsion) @ orders).sum()
    among = groups.without_empty(repulsion[:, groups.classes], _NEVER)
    itself = torch.eye(among.shape[0], dtype=torch.bool, device=among.device)
    present = _softplus(torch.logaddexp(among, among.T).masked_fill(itself, _NEVER)).sum()
    classes = len(mean_fields) if averaging == "paper" else groups.number
    return (_softplus(attraction).sum() / alpha + (absent + present) / (2 * beta)) / classes


def mean_field_nca(
    embeddings: Tensor, labels: Tensor, mean_fields: Tensor, alpha: float, averaging: str = "released"
) -> Tensor:
    """Eq. 21; embeddings (B, D), labels (B,), mean_fields (C, D). Its first term alone is ProxyNCA++."""
    _check_averaging(averaging)
    groups = Groups.of(labels)
    exponents = alpha * field_cosines(embeddings, mean_fields)
    samples = F.cross_entropy(exponents, labels, reduction="none")
    to_fields = exponents[:, groups.classes]
    positive = to_fields.masked_fill(labels[:, None] != groups.classes, -torch.inf)
    fields = groups.without_empty(to_fields.logsumexp(0) - positive.logsumexp(0), 0.0)
    classes = len(mean_fields) if averaging == "paper" else groups.number
    return _average(samples, labels, len(mean_fields), averaging) + fields.sum() / classes


def _average(terms: Tensor, labels: Tensor, num_classes: int, averaging: str) -> Tensor:
    """Of a term per sample (B,): over the samples, or as printed over those of a class and then over all classes."""
    if averaging in ("released", "none"):
        return terms if averaging == "none" else terms.mean()
    _check_averaging(averaging if averaging != "each" else "paper")
    terms = terms / (labels[:, None] == labels).sum(1) / num_classes
    return terms.shape[0] * terms if averaging == "each" else terms.sum()


def contrastive_regularizer(mean_fields: Tensor, negative_margin: float) -> Tensor:
    """The last sum of Eq. 8 over |C|, without lambda: mean fields (C, D) that are closer than the negative margin."""
    return _sum_over_pairs(mean_fields, lambda cosines: (cosines - (1 - negative_margin)).relu().square())


def class_wise_regularizer(mean_fields: Tensor, beta: float, delta: float) -> Tensor:
    """The last sum of Eq. 10 over |C|, without lambda; mean_fields (C, D)."""
    return _sum_over_pairs(mean_fields, lambda cosines: _softplus(beta * (cosines - delta)).square())


def _sum_over_pairs(mean_fields: Tensor, term: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum over ordered pairs of different mean fields of a term of their cosine, over |C|."""
    unit = F.normalize(mean_fields, dim=1)

    def block(start: int, stop: int) -> Tensor:
        cosines = unit[start:stop] @ unit.T
        itself = torch.ones_like(cosines, dtype=torch.bool).triu_(start).tril_(start)
        return term(cosines).masked_fill(itself, 0).sum()  # taken off the sum it would leave nothing but its rounding

    step = max(1, _BLOCK // len(unit))
    if step >= len(unit):  # nothing is worth computing twice
        return block(0, step) / len(unit)
    starts = range(0, len(unit), step)
    blocks = [checkpoint(block, i, i + step, use_reentrant=False, preserve_rng_state=False) for i in starts]
    return torch.stack(blocks).sum() / len(unit)


AVERAGINGS = ("released", "paper")


class _PairLoss(_WholeBatch):
    """A loss of the samples of a batch among one another, without parameters."""

    def __init__(
        self, num_classes: int, embedding_size: int, function: Callable[..., Tensor], **options: torch.types.Any
    ):
        super().__init__()
        _check_options(num_classes, embedding_size, options)
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.function, self.options = function, options

    parameter_groups = rate_of_the_network

    def of_batch(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_batch(embeddings, labels, self.num_classes, self.embedding_size)
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.function(at_least_float32(embeddings, embeddings), labels, **self.options)

    def extra_repr(self) -> str:
        return printed(self, **self.options)


class _MeanFieldLoss(_WholeBatch):
    """A loss of samples and mean fields, and of the mean fields among one another where there is a regulariser."""

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        function: Callable[..., Tensor],
        regularization: float = 0.0,
        **options: torch.types.Any,
    ):
        super().__init__()
        _check_options(num_classes, embedding_size, options)
        check_finite(regularization=regularization)
        if regularization < 0:
            raise ValueError(f"regularization must be at least 0, got {regularization}")
        self.function, self.options, self.regularization = function, options, regularization
        self.mean_fields = nn.Parameter(torch.randn(num_classes, embedding_size))

    @property
    def proxies(self) -> Tensor:
        """The mean fields, by the name that class vectors have in all losses; states keep the paper's name."""
        return self.mean_fields

    def parameter_groups(self, lr: float) -> list[dict]:
        """Recommended groups for an optimiser such as AdamW: FIELD_LR for mean fields, whatever the network's lr is."""
        return groups(self, {"mean_fields": FIELD_LR})

    def regularizer(self) -> Tensor:
        """The regulariser without its factor lambda, also where that is 0; of an equation that has none, 0."""
        with torch.autocast(self.mean_fields.device.type, enabled=False):
            return self.among_fields(at_least_float32(self.mean_fields, self.mean_fields))

    def among_fields(self, fields: Tensor) -> Tensor:
        """The regulariser of mean fields in the precision of the loss."""
        return fields.new_zeros(())

    def of_batch(self, embeddings: Tensor, labels: Tensor, **others: str) -> Tensor:
        check_batch(embeddings, labels, *self.mean_fields.shape)
        with torch.autocast(embeddings.device.type, enabled=False):
            embeddings = at_least_float32(embeddings, embeddings)
            fields = self.mean_fields.to(embeddings.dtype)
            check_directions(fields, "mean_fields")
            value = self.function(embeddings, labels, fields, **self.options | others)
            return value + self.regularization * self.among_fields(fields) if self.regularization else value

    def extra_repr(self) -> str:
        return printed(self, **dict(zip(("num_classes", "embedding_size"), self.mean_fields.shape)), **self.options)


class MeanFieldContrastiveLoss(_MeanFieldLoss):
    """MFCont. (Eq. 8): a sample is drawn to its own mean field and pushed from all others, by hinges.

    Args:
        num_classes: C, labels are integers in [0, C).
        embedding_size: D.
        positive_margin: m_P, a cosine distance within which the own mean field does not attract.
        negative_margin: m_N, a cosine distance beyond which another does not repel.
        regularization: lambda_MF >= 0, the weight of the constraint that mean fields are m_N apart. The paper has 0,
            and finds no difference up to 100.
        averaging: "released", the mean over the samples of the batch as in the code; "paper", the mean over those of a
            class, summed over the batch's classes and divided by C as Eq. 8 prints. In balanced batches they differ by
            a factor, which AdamW hardly feels, and the weight of the regulariser.

    Attributes:
        mean_fields: Parameter (C, D), initially N(0, 1) as in the released code, whose learning rate of 0.2 belongs to
            the norm sqrt(D) that they have so.

    Raises:
        ValueError: on a bad option, a bad batch (see `check_batch`), or a mean field without a direction.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        positive_margin: float = 0.02,
        negative_margin: float = 0.3,
        regularization: float = 0.0,
        averaging: str = "released",
    ):
        super().__init__(
            num_classes,
            embedding_size,
            mean_field_contrastive,
            regularization,
            positive_margin=positive_margin,
            negative_margin=negative_margin,
            averaging=averaging,
        )

    def among_fields(self, fields: Tensor) -> Tensor:
        return contrastive_regularizer(fields, self.options["negative_margin"])

    def per_sample(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The terms (B,) whose mean is the loss, each with the regulariser."""
        terms = "none" if self.options["averaging"] == "released" else "each"
        return self.of_batch(embeddings, whole_labels(embeddings, labels), averaging=terms)


class MeanFieldClassWiseMultiSimilarityLoss(_MeanFieldLoss):
    """MFCWMS (Eq. 10): as MFCont., with interactions weighed within a class of the batch and within a pair of classes.

    Args:
        num_classes, embedding_size, regularization: as in `MeanFieldContrastiveLoss`.
        alpha, beta: how sharply far positives and near negatives count; the paper has 0.01 and 80, 20 for alpha with
            ViT-B/16.
        delta: a cosine in [-1, 1] below which a sample is pulled to its mean field and above which it is pushed from
            another.
        averaging: "released", over the classes of the batch; "paper", over all C, as Eq. 10 prints: |C_batch| / C times
            as much.

    Attributes and errors as in `MeanFieldContrastiveLoss`.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        alpha: float = 0.01,
        beta: float = 80.0,
        delta: float = 0.8,
        regularization: float = 0.0,
        averaging: str = "released",
    ):
        super().__init__(
            num_classes,
            embedding_size,
            mean_field_class_wise_multi_similarity,
            regularization,
            alpha=alpha,
            beta=beta,
            delta=delta,
            averaging=averaging,
        )

    def among_fields(self, fields: Tensor) -> Tensor:
        return class_wise_regularizer(fields, self.options["beta"], self.options["delta"])


class MeanFieldNCALoss(_MeanFieldLoss):
    """MFNCA (Eq. 21): ProxyNCA++ of samples against mean fields, and the same of mean fields against samples.

    Args:
        num_classes, embedding_size, averaging: as in `MeanFieldContrastiveLoss`.
        alpha: scale of the distance. The paper does not print its value; 18 gives the first term the temperature of
            ProxyNCA++, 1/9 of squared distances.

    Attributes and errors as in `MeanFieldContrastiveLoss`.
    """

    def __init__(self, num_classes: int, embedding_size: int, alpha: float = 18.0, averaging: str = "released"):
        super().__init__(num_classes, embedding_size, mean_field_nca, alpha=alpha, averaging=averaging)


class ClassBalancedContrastiveLoss(_PairLoss):
    """Cont. (Eq. 6), from which MFCont. comes: hinges of all pairs of the batch, every class with equal weight.

    Arguments and errors as in `MeanFieldContrastiveLoss`; the batch needs several samples of a class.
    """

    def __init__(
        self, num_classes: int, embedding_size: int, positive_margin: float = 0.02, negative_margin: float = 0.3
    ):
        super().__init__(
            num_classes,
            embedding_size,
            class_balanced_contrastive,
            positive_margin=positive_margin,
            negative_margin=negative_margin,
        )


class ClassWiseMultiSimilarityLoss(_PairLoss):
    """CWMS (Eq. 9), from which MFCWMS comes; the batch needs several samples of a class.

    Arguments and errors as in `MeanFieldClassWiseMultiSimilarityLoss`, but for averaging: "released" counts a sample's
    pair with itself in the average of its class, a constant within the logarithm, "paper" leaves it out.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        alpha: float = 0.01,
        beta: float = 80.0,
        delta: float = 0.8,
        averaging: str = "released",
    ):
        super().__init__(
            num_classes,
            embedding_size,
            class_wise_multi_similarity,
            alpha=alpha,
            beta=beta,
            delta=delta,
            averaging=averaging,
        )


def _check_options(num_classes: int, embedding_size: int, options: dict) -> None:
    check_sizes(num_classes=num_classes, embedding_size=embedding_size)
    _check_averaging(options.get("averaging", "paper"))
    numbers = {name: value for name, value in options.items() if name != "averaging"}
    check_finite(**numbers)
    check_positive(**{name: value for name, value in numbers.items() if name in ("alpha", "beta")})
    if not -1 <= options.get("delta", 0) <= 1:
        raise ValueError(f"delta is a cosine and must lie in [-1, 1], got {options['delta']}")


def _check_averaging(averaging: str) -> None:
    if averaging not in AVERAGINGS:
        raise ValueError(f"averaging must be one of {', '.join(AVERAGINGS)}, got {averaging!r}")
