"""Potential field losses: every embedding and proxy attracts its own class and repels the others.

Paper      Bhatnagar and Ahuja, "Potential Field Based Deep Metric Learning", CVPR 2025.
Equations  1, 2 (pair potentials), 3-5 (class potential), 6 (total energy); Supp. 8 (CPML attraction).
Deviations - A point does not act on itself (Eqs. 4 and 6 include i = i, a constant without force).
           - Eq. 2 is singular at distance 0. Below `min_distance` the distance in the force law is floored, so that the
             force falls linearly to zero at coincidence, as inside a charged ball, and the energy stays finite.
           - Proxies are L2-normalised at the start and in the forward pass; the paper says "initialized with a normal
             distribution" and speaks of normalising the network's output only. See `proxy_norm`.
           - alpha = 0 makes Eqs. 1-2 constant, hence no force; the default there is the limit of (psi + 1) / alpha, the
             logarithmic potential. `alpha_zero="literal"` is the equation as printed.
           - CPML's repulsion is not defined in the paper: `repulsion` chooses between two readings.
Training   Clip the gradient values of PFML's proxies, e.g. at 0.01, where the optimiser has a second moment, as
           `parameter_groups` and recommended.py do. Else it remembers how strongly the proxies of a class drew one
           another together, and the far weaker pull of the samples, which comes next, moves them no more (notebook 12).

The sum over pairs is exact but sparse, see close_pairs.py.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dmlrepro.losses.checks import _WholeBatch, check_batch, check_directions, check_sizes, printed, values_are_known
from dmlrepro.losses.close_pairs import pair_energy
from dmlrepro.losses.recommended import PROXIES, groups

CLIP_VALUE = 0.01  # of the gradients of proxies; a tenth and ten times as much train PFML as well (notebook 12)


class Field(NamedTuple):
    """An attractive and a repulsive pair potential and the radii that bound them, as plain data; see `decaying_field`.

    Both potentials are counted from their least value, which all pairs have in a layout that nothing moves.
    """

    attract: str  # a key of POTENTIALS
    repel: str
    alpha: float
    delta: float
    delta_rep: float
    min_distance: float
    near: float  # the attractive potential within delta, its least
    far: float  # the repulsive potential beyond delta_rep, its least

    def attraction(self, squared: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 1 less `near`: 0 inside delta. At r = delta the outer branch holds, so the force is already there."""
        psi, weight = POTENTIALS[self.attract](squared.clamp_min(self.delta**2), -1.0, self)
        return psi.sub_(self.near), weight.masked_fill_(squared < self.delta**2, 0)

    def repulsion(self, squared: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 2 less `far`, hence zero from delta_rep on; the force law's distance is floored at min_distance."""
        floored = squared.clamp(self.min_distance**2, self.delta_rep**2)
        psi, weight = POTENTIALS[self.repel](floored, 1.0, self)
        weight = weight.masked_fill_(squared >= self.delta_rep**2, 0)
        return psi.sub_(self.far).addcmul_(weight, squared - floored, value=0.5), weight


# Squared distances and sign, 1 where the potential repels -> psi and psi'(r) / r, both elementwise.


def _power(squared: Tensor, sign: float, field: Field) -> tuple[Tensor, Tensor]:
    """psi = sign / r^alpha (Eqs. 1-2)."""
    psi = squared.pow(-field.alpha / 2).mul_(sign)
    return psi, (psi / squared).mul_(-field.alpha)


def _logarithm(squared: Tensor, sign: float, field: Field) -> tuple[Tensor, Tensor]:
    """psi = -sign * log r, the limit of sign * (1 / r^alpha - 1) / alpha as alpha -> 0."""
    return -sign / 2 * squared.log(), -sign / squared


def _square(squared: Tensor, sign: float, field: Field) -> tuple[Tensor, Tensor]:
    """psi = -sign * r^2 (Supp. Eq. 8)."""
    return -sign * squared, torch.full_like(squared, -2 * sign)


def _hinge(squared: Tensor, sign: float, field: Field) -> tuple[Tensor, Tensor]:
    """psi = (delta_rep - r)^2 for r <= delta_rep, the repulsion of the contrastive loss."""
    distance = squared.sqrt()
    gap = field.delta_rep - distance
    return gap.square(), -2 * gap / distance


POTENTIALS: dict[str, Callable[[Tensor, float, Field], tuple[Tensor, Tensor]]] = {
    "power": _power,
    "logarithm": _logarithm,
    "square": _square,
    "hinge": _hinge,
}


def decaying_field(
    alpha: float = 3.0,
    delta: float = 0.2,
    delta_rep: float | None = None,
    min_distance: float = 0.01,
    alpha_zero: str = "log",
) -> Field:
    """The potentials of PFML (Eqs. 1-2); arguments as in `potential_energy`."""
    radii = _radii(delta, delta_rep, min_distance)
    if alpha_zero not in ("log", "literal"):
        raise ValueError(f"alpha_zero must be 'log' or 'literal', got {alpha_zero!r}")
    if not 0 <= alpha < math.inf:
        raise ValueError(f"alpha must be a finite number >= 0, got {alpha}")
    if (alpha + 2) * -math.log10(min(min_distance, 1.0)) + math.log10(alpha + 1) > 30:
        raise ValueError(
            f"alpha={alpha} with min_distance={min_distance} gives forces above 1e30, too close to the end of float32; "
            "lower alpha or raise min_distance"
        )
    if alpha == 0 and alpha_zero == "log":
        return Field("logarithm", "logarithm", 0.0, *radii, near=math.log(radii[0]), far=-math.log(radii[1]))
    return Field("power", "power", float(alpha), *radii, near=-(radii[0] ** -alpha), far=radii[1] ** -alpha)


def contrastive_field(
    delta: float = 0.2, delta_rep: float | None = None, min_distance: float = 0.01, repulsion: str = "hinge"
) -> Field:
    """The potentials of CPML; arguments as in `contrastive_potential_energy`."""
    radii = _radii(delta, delta_rep, min_distance)
    if repulsion not in ("hinge", "capped"):
        raise ValueError(f"repulsion must be 'hinge' or 'capped', got {repulsion!r}")
    near = radii[0] ** 2
    if repulsion == "capped":
        return Field("square", "square", 0.0, *radii, near=near, far=-(radii[1] ** 2))
    return Field("square", "hinge", 0.0, *radii, near=near, far=0.0)


def _radii(delta: float, delta_rep: float | None, min_distance: float) -> tuple[float, float, float]:
    delta_rep = delta if delta_rep is None else delta_rep
    for name, radius in (("delta", delta), ("delta_rep", delta_rep), ("min_distance", min_distance)):
        if not 0 < radius < math.inf:
            raise ValueError(f"{name} must be a positive distance, got {radius}")
    if min_distance > min(delta, delta_rep):
        raise ValueError(
            f"min_distance must not exceed delta and delta_rep, got {min_distance} > {min(delta, delta_rep)}; "
            "it only bounds the repulsion of nearly coincident points"
        )
    return float(delta), float(delta_rep), float(min_distance)


def class_potential(locations: Tensor, points: Tensor, labels: Tensor, cls: int, field: Field) -> tuple[Tensor, Tensor]:
    """The potential of one class (Eq. 3) at some locations and the force there, minus its gradient.

    locations (L, D), points (N, D), labels (N,); returns (L,) and (L, D) in the dtype of locations, not differentiable.
    A point that lies on a location counts like any other.
    """
    with torch.no_grad():
        at, sources, own = locations.double(), points.double(), labels == cls
        squared = torch.cdist(at, sources, compute_mode="donot_use_mm_for_euclid_dist").square_()
        attraction, repulsion = field.attraction(squared), field.repulsion(squared)
        psi = torch.where(own, attraction[0] + field.near, repulsion[0] + field.far)
        weight = torch.where(own, attraction[1], repulsion[1])
        force = weight @ sources - weight.sum(1, keepdim=True) * at
        return psi.sum(1).to(locations.dtype), force.to(locations.dtype)


def _least_energy(labels: Tensor, field: Field) -> Tensor:
    """The energy of a layout that nothing moves: each class within delta, different ones beyond delta_rep."""
    sizes = labels.unique(return_counts=True)[1].double()
    same = (sizes * (sizes - 1)).sum()
    return field.near * same + field.far * (labels.shape[0] * (labels.shape[0] - 1) - same)


def _energy(
    points: Tensor, labels: Tensor, field: Field, detach_sources: bool, reduction: str, above_least: bool = False
) -> Tensor:
    """Eq. 6, less its least value where above_least."""
    if points.ndim != 2 or not points.is_floating_point():
        raise ValueError(f"points must be a floating point (N, D) tensor, got {points.dtype} {tuple(points.shape)}")
    if points.shape[0] == 0:
        raise ValueError("points is empty; a potential field needs at least one point")
    if labels.shape != points.shape[:1] or labels.is_floating_point():
        raise ValueError(f"labels must be ({len(points)},) integers, got {labels.dtype} {tuple(labels.shape)}")
    if reduction not in ("sum", "mean"):
        raise ValueError(f"reduction must be 'sum' or 'mean', got {reduction!r}")
    # NaN compares false; the search squares norms in float32
    kind = torch.promote_types(points.dtype, torch.float32)
    if values_are_known() and not torch.linalg.vector_norm(points.detach(), dim=1, dtype=kind).max() < 1e18:
        raise ValueError("points (embeddings, proxies) contain NaN, infinity or huge values; lower the learning rate")
    with torch.autocast(points.device.type, enabled=False):
        points = points if points.dtype == torch.float64 else points.float()
        scale = 1 / max(1, points.shape[0] * (points.shape[0] - 1)) if reduction == "mean" else 1.0
        energy = pair_energy(points, labels, field, scale)
        if not above_least:
            energy = energy + scale * _least_energy(labels, field)
        if detach_sources:  # every pair is met by both of its points: half the gradient, and the same value
            energy = energy.detach() + (energy - energy.detach()) / 2
        return energy.to(points.dtype)


def potential_energy(
    points: Tensor,
    labels: Tensor,
    *,
    alpha: float = 3.0,
    delta: float = 0.2,
    delta_rep: float | None = None,
    min_distance: float = 0.01,
    alpha_zero: str = "log",
    detach_sources: bool = False,
    reduction: str = "sum",
) -> Tensor:
    """Total potential energy U of a set of labelled points (Eq. 6), over all ordered pairs of distinct points.

    Args:
        points: (N, D) floating point, used as they are (not normalised); half precision is computed in float32.
        labels: (N,) integers.
        alpha: decay exponent. At 0 the printed potential is constant; see `alpha_zero`.
        delta: radius inside which a class does not attract itself, in units of distance.
        delta_rep: radius of the repulsion; None means delta.
        min_distance: floor of the distance in the force law. It leaves all pairs farther apart untouched. The default
            is 0.05 of the default delta: a force of 3e8 at alpha = 3 instead of infinity.
        alpha_zero: what alpha = 0 means: "log", the limit (log-distance potential), or "literal" (no force).
        detach_sources: differentiate a pair only by the point that feels the force (the paper's -grad Psi), not by the
            source; pairs being symmetric this is exactly half the gradient. The value is the same.
        reduction: "sum" (Eq. 6) or "mean" over the N (N - 1) ordered pairs.

    Returns:
        Scalar in the dtype of the computation (float32 or float64), differentiable twice; almost everywhere, because
        the force jumps at the radii.

    Raises:
        ValueError: on a wrong shape, dtype or option, a non-finite point, or forces that would leave float32.
    """
    field = decaying_field(alpha, delta, delta_rep, min_distance, alpha_zero)
    return _energy(points, labels, field, detach_sources, reduction)


def contrastive_potential_energy(
    points: Tensor,
    labels: Tensor,
    *,
    delta: float = 0.2,
    delta_rep: float | None = None,
    min_distance: float = 0.01,
    repulsion: str = "hinge",
    detach_sources: bool = False,
    reduction: str = "sum",
) -> Tensor:
    """Total energy (Eq. 6) under the potentials of CPML: the contrastive loss written as a potential field.

    Attraction is max(r, delta)^2 (Supp. Eq. 8). The paper gives no repulsion: `repulsion` is "hinge" for
    max(0, delta_rep - r)^2, as in the contrastive loss, or "capped" for -min(r, delta_rep)^2, the attraction's mirror
    image. Other arguments as in `potential_energy`.
    """
    field = contrastive_field(delta, delta_rep, min_distance, repulsion)
    return _energy(points, labels, field, detach_sources, reduction)


class _ProxyFieldLoss(_WholeBatch):
    """Energy of a batch together with all proxies, on the unit sphere."""

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        proxies_per_class: int,
        proxy_norm: float | None,
        field: Field,
        **options: torch.types.Any,
    ):
        super().__init__()
        check_sizes(num_classes=num_classes, embedding_size=embedding_size)
        check_sizes(least=0, proxies_per_class=proxies_per_class)
        if options["reduction"] not in ("sum", "mean"):
            raise ValueError(f"reduction must be 'sum' or 'mean', got {options['reduction']!r}")
        if proxy_norm is not None and not 0 < proxy_norm < math.inf:
            raise ValueError(f"proxy_norm must be a positive norm, or None for proxies as drawn, got {proxy_norm}")
        proxies = torch.randn(num_classes, proxies_per_class, embedding_size)
        self.proxies = nn.Parameter(proxies if proxy_norm is None else proxy_norm * F.normalize(proxies, dim=2))
        self.field, self.options, self.proxy_norm = field, options, proxy_norm

    def of_batch(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        num_classes, per_class, embedding_size = self.proxies.shape
        check_batch(embeddings, labels, num_classes, embedding_size)
        embeddings = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
        proxies = self.proxies.to(embeddings.dtype).flatten(0, 1)
        check_directions(proxies, "proxies")
        points = F.normalize(torch.cat([proxies, embeddings]), dim=1)
        classes = torch.arange(num_classes, device=labels.device).repeat_interleave(per_class)
        return _energy(points, torch.cat([classes, labels]), self.field, **self.options, above_least=True)

    def parameter_groups(self, lr: float) -> list[dict]:
        """Recommended groups for an optimiser, lr being the network's rate: proxies at 100 lr, clipped at CLIP_VALUE.

        Of a mean the bound is CLIP_VALUE over the pairs of proxies, which must far outnumber the batch. CPML wants the
        network clipped as well: give its group the same "clip_value".
        """
        count = self.proxies.shape[0] * self.proxies.shape[1]
        pairs = max(1, count * (count - 1)) if self.options["reduction"] == "mean" else 1
        return groups(self, {"proxies": PROXIES * lr}, CLIP_VALUE / pairs)

    def extra_repr(self) -> str:
        sizes = dict(zip(("num_classes", "proxies_per_class", "embedding_size"), self.proxies.shape))
        return printed(self, **sizes, **self.field._asdict(), **self.options)


class PotentialFieldLoss(_ProxyFieldLoss):
    """Potential energy of the batch and all proxies (PFML, Eq. 6), on L2-normalised vectors.

    The value is the energy above its least: 0 where every class lies within delta and all others are beyond delta_rep.
    Eq. 6 itself, `potential_energy`, is larger by a constant that hides what training changes: 3e8 with 1500 proxies.

    Args:
        num_classes: C, labels are integers in [0, C).
        embedding_size: D.
        proxies_per_class: M; the paper uses 15 (CUB, Cars) and 2 (SOP). With 0 only the batch acts, which then needs
            several samples per class (a class-balanced sampler), or there is nothing to attract.
        alpha, delta, delta_rep, min_distance, alpha_zero, detach_sources, reduction: see `potential_energy`. The sum
            is the paper's, and what Adam with clipped proxies takes; a positive factor leaves Adam's steps unchanged
            but for eps, coupled weight decay and clipping. Take "mean" under float16 autocast, where the forces of a
            sum, 1e5 and more, are infinite before a GradScaler has found its scale; with an optimiser whose steps grow
            with the gradient (SGD); and beside other losses in a sum.
        proxy_norm: norm at which every proxy starts. Only its direction counts, but a step of given length, such as
            Adam's, turns a long proxy less: None leaves proxies as drawn from N(0, 1), which turn sqrt(D) times more
            slowly than those of norm 1.

    Attributes:
        proxies: Parameter (C, M, D), drawn from N(0, 1), then scaled to `proxy_norm`.

    Raises:
        ValueError: on a bad option, a label outside [0, C), a wrong shape or a non-finite embedding or proxy.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        proxies_per_class: int = 15,
        alpha: float = 3.0,
        delta: float = 0.2,
        delta_rep: float | None = None,
        min_distance: float = 0.01,
        reduction: str = "sum",
        alpha_zero: str = "log",
        detach_sources: bool = False,
        proxy_norm: float | None = 1.0,
    ):
        field = decaying_field(alpha, delta, delta_rep, min_distance, alpha_zero)
        options = {"reduction": reduction, "detach_sources": detach_sources}
        super().__init__(num_classes, embedding_size, proxies_per_class, proxy_norm, field, **options)
        self.alpha, self.alpha_zero = alpha, alpha_zero


class ContrastivePotentialLoss(_ProxyFieldLoss):
    """CPML, the paper's control: the same field of samples and proxies with potentials that do not decay.

    Arguments as `PotentialFieldLoss` without alpha; `repulsion` as in `contrastive_potential_energy`.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        proxies_per_class: int = 15,
        delta: float = 0.2,
        delta_rep: float | None = None,
        min_distance: float = 0.01,
        reduction: str = "sum",
        repulsion: str = "hinge",
        detach_sources: bool = False,
        proxy_norm: float | None = 1.0,
    ):
        field = contrastive_field(delta, delta_rep, min_distance, repulsion)
        options = {"reduction": reduction, "detach_sources": detach_sources}
        super().__init__(num_classes, embedding_size, proxies_per_class, proxy_norm, field, **options)
        self.repulsion = repulsion
