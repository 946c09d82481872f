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

Exact but sparse: attraction acts only within a class and repulsion only within `delta_rep`, the rest is a constant.
Pairs of one class are enumerated. Close pairs of different classes are found tile by tile with a matmul and a threshold
wider than its rounding error, then evaluated precisely. Energy and gradient come out of one pass, so nothing is kept
per pair and memory stays at a few copies of the points. The second derivative is found in the same way when it is asked
for. Which pairs are close depends on values, which a compiler does not follow: it sees both as operators.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dmlrepro.losses.checks import check_batch, check_unused, printed, values_are_known, whole_labels
from dmlrepro.losses.recommended import PROXIES, groups

# A search tile has so many points per side, a temporary of the exact evaluation so many numbers: a CPU's cache holds
# them. Other devices take more, because every tile costs them launches and a wait, see `_sizes`.
_TILE = 256
_CHUNK = 2**17

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


def _sizes(device: torch.device) -> tuple[int, int]:
    """Points per side of a tile and numbers of a temporary; a float64 temporary of a tile has at most a 64th of a GPU.

    With 34 GB a tile has 32 times as many points per side as on a CPU, and no more on a larger GPU.
    """
    if device.type == "cpu":
        return _TILE, _CHUNK
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 2**31
    factor = 2 ** min(5, max(0, int(math.log2(memory / (512 * _TILE**2)) / 2)))
    return factor * _TILE, factor**2 * _CHUNK


def _squared_distances(a: Tensor, b: Tensor, smallest: float | Tensor) -> Tensor:
    """(..., n, D), (..., m, D) in float64 -> (..., n, m), to a relative 1e-10 for distances from `smallest` upwards.

    By matmul where its rounding, relative to the norms, allows that; by subtraction otherwise.
    """
    a_norms, b_norms = torch.linalg.vecdot(a, a), torch.linalg.vecdot(b, b)
    if 8 * torch.finfo(a.dtype).eps * max(a_norms.max(), b_norms.max()) > 1e-10 * smallest**2:
        return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square_()
    return (a @ b.mT).mul_(-2).add_(a_norms[..., None]).add_(b_norms[..., None, :]).clamp_min_(0)


def _class_groups(labels: Tensor, width: int) -> Iterator[Tensor]:
    """Indices (k, n) of the members of k classes of equal size n >= 2, few enough for temporaries of that width."""
    chunk = _sizes(labels.device)[1]
    order = labels.argsort(stable=True)
    sizes = labels[order].unique_consecutive(return_counts=True)[1]
    starts = (sizes.cumsum(0) - sizes)[sizes.argsort(stable=True)]
    different, counts = torch.stack(sizes.unique(return_counts=True)).tolist()
    for size, alike in zip(different, starts.split(counts)):
        if size > 1:
            offsets = torch.arange(size, device=labels.device)
            for some in alike.split(max(1, chunk // (size * max(width, size)))):
                yield order[some[:, None] + offsets]


def _add_attraction(points: Tensor, labels: Tensor, field: Field, gradient: Tensor | None) -> Tensor:
    """Energy of all ordered same-class pairs; d energy / d points is added to gradient."""
    energy = points.new_zeros((), dtype=torch.float64)
    tile = _sizes(points.device)[0]
    for members in _class_groups(labels, points.shape[1]):
        group = points[members].double()
        group -= group.mean(1, keepdim=True)
        for start in range(0, group.shape[1], tile):  # one step unless a class is huge
            rows = slice(start, start + tile)
            psi, weight = field.attraction(_squared_distances(group[:, rows], group, field.delta))
            psi.diagonal(start, 1, 2).zero_()
            energy += psi.sum()
            if gradient is not None:  # the factor 2: an ordered pair moves both of its points
                force = weight.sum(2, keepdim=True) * group[:, rows] - weight @ group
                gradient[members[:, rows]] += (2 * force).to(gradient.dtype)
    return energy


def _matmul_precision() -> str | None:
    """Torch's name for the rounding of float32 factors, None where the newer settings differ by backend."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _matmul_rounding(terms: int) -> float:
    """Bound on the rounding error of a float32 dot product of so many terms, relative to the norms."""
    unit = {"highest": 2.0**-24, "high": 2.0**-10}.get(_matmul_precision() or "", 2.0**-8)  # else assume the coarsest
    return 2 * unit + terms * 2.0**-24


@contextmanager
def _tf32(device: torch.device) -> Iterator[None]:
    """Products of float32 matrices take TF32 on a GPU within the block: the search, whose threshold has room for it."""
    narrow = device.type == "cuda" and _matmul_precision() == "highest"
    if narrow:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if narrow:
            torch.set_float32_matmul_precision("highest")


def _cells(points: Tensor, half: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """Group points (N, D) into at most 256 cells; which cells may have points within reach of one another.

    Every point goes to the nearest of some of the points, the pivots, where a pivot within reach of an earlier one is
    merged with it. Cells are apart if, by the triangle inequality, their balls are. Returns (N,) and (cells, cells).
    """
    pivots = torch.arange(0, len(points), 1 + (len(points) - 1) // 256, device=points.device)
    between = _squared_distances(points[pivots].double(), points[pivots].double(), reach).sqrt_()
    merged = (between < reach).int().argmax(1)
    cell = merged[torch.addmm(-half[pivots], points, points[pivots].T).argmax(1)]
    radius = torch.linalg.vector_norm(points - points[pivots[cell]], dim=1)
    radii = torch.zeros_like(between[0]).scatter_reduce_(0, cell, radius.double(), "amax")
    return cell, between < 1.001 * (radii[:, None] + radii + reach)


def _close_tiles(points: Tensor, labels: Tensor, reach: float) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Tiles that hold unordered pairs of different classes closer than reach: row indices, column indices, mask.

    Together the masks have every such pair once, and possibly a few that are slightly farther.
    """
    tile = _sizes(points.device)[0]
    points = (points - points.mean(0)).float()
    half = points.square().sum(1) / 2
    # |x_i - x_j| < reach is <x_i, x_j> - |x_j|^2 / 2 > |x_i|^2 / 2 - reach^2 / 2; the reach gets room for rounding
    with _tf32(points.device):
        rounding = _matmul_rounding(points.shape[1] + 4)
    reach = (reach**2 + 16 * rounding * half.max()).sqrt()
    order, reachable = labels.argsort(stable=True), None
    if len(points) > 8 * tile:  # neighbours come to lie side by side, so that close pairs fill few tiles
        cell, near = _cells(points, half, reach)
        order = order[cell[order].argsort(stable=True)]
        members = torch.zeros(-(-len(points) // tile), len(near), device=points.device)
        members[torch.arange(len(points), device=points.device) // tile, cell[order]] = 1
        reachable = (members @ near.float() @ members.T).bool().tolist()
    points, half, labels = points[order], half[order], labels[order]
    bound = half - reach**2 / 2
    for i, top in enumerate(range(0, len(points), tile)):
        rows = slice(top, top + tile)
        for j, left in enumerate(range(top, len(points), tile), i):
            if reachable and not reachable[i][j]:
                continue
            cols = slice(left, left + tile)
            with _tf32(points.device):
                score = torch.addmm(-half[cols], points[rows], points[cols].T)
            if not (score.amax(1) > bound[rows]).any():
                continue
            close = (score > bound[rows, None]) & (labels[rows, None] != labels[cols])
            if left == top:
                close.triu_()
            yield order[rows], order[cols], close


def _add_repulsion(points: Tensor, labels: Tensor, field: Field, gradient: Tensor | None) -> Tensor:
    """Energy of all ordered pairs of different classes; d energy / d points is added to gradient."""
    energy = points.new_zeros((), dtype=torch.float64)
    for rows, cols, close in _close_tiles(points, labels, field.delta_rep):
        count = close.count_nonzero().item()
        if count > close.numel() // 10:
            energy += _add_dense_tile(points, rows, cols, close, field, gradient)
        elif count:
            energy += _add_sparse_tile(points, rows, cols, close, field, gradient)
    return energy


def _add_sparse_tile(points, rows, cols, close, field, gradient) -> Tensor:
    """The close pairs of a tile one by one, distances by subtraction."""
    energy = points.new_zeros((), dtype=torch.float64)
    step = max(1, _sizes(points.device)[1] // points.shape[1])
    first, second = close.nonzero(as_tuple=True)
    for i, j in zip(rows[first].split(step), cols[second].split(step)):
        difference = points.index_select(0, i).sub_(points.index_select(0, j))
        psi, weight = field.repulsion(torch.linalg.vecdot(difference, difference).double())
        energy += 2 * psi.sum()
        if gradient is not None:
            difference *= (2 * weight).to(difference.dtype)[:, None]
            gradient.index_add_(0, i, difference).index_add_(0, j, difference, alpha=-1)
    return energy


def _add_dense_tile(points, rows, cols, close, field, gradient) -> Tensor:
    """The close pairs of a tile where they are many, by matmuls in float64.

    The gradient is summed in the points' own dtype if the tile is so compact that cancellation costs few digits.
    """
    some_rows, some_cols = (close.any(side).nonzero()[:, 0] for side in (1, 0))
    rows, cols, close = rows[some_rows], cols[some_cols], close[some_rows][:, some_cols]
    a, b = points[rows].double(), points[cols].double()
    center = a.mean(0)
    a -= center
    b -= center
    psi, weight = field.repulsion(_squared_distances(a, b, field.min_distance))
    if gradient is not None:
        compact = torch.linalg.vector_norm(a, dim=1).max() + field.delta_rep < 50 * field.min_distance
        weight, a, b = (x.to(points.dtype if compact else torch.float64) for x in (weight.mul_(close), a, b))
        for own, other, pull, at in ((a, b, weight, rows), (b, a, weight.T, cols)):
            force = pull.sum(1, keepdim=True) * own - pull @ other
            gradient.index_add_(0, at, force.to(gradient.dtype), alpha=2)
    return 2 * psi.mul_(close).sum()


def _least_energy(labels: Tensor, field: Field) -> Tensor:
    """The energy of a layout that nothing moves: each class within delta, different ones beyond delta_rep."""
    sizes = labels.unique(return_counts=True)[1].double()
    same = (sizes * (sizes - 1)).sum()
    return field.near * same + field.far * (len(labels) * (len(labels) - 1) - same)


def _energy_and_gradient(points: Tensor, labels: Tensor, field: Field, differentiate: bool) -> tuple[Tensor, Tensor]:
    """The energy above the least, in float64, and its derivative (N, D) by the points, empty unless it is wanted."""
    gradient = torch.zeros_like(points) if differentiate else None
    energy = _add_attraction(points, labels, field, gradient) + _add_repulsion(points, labels, field, gradient)
    return energy, points.new_empty(0) if gradient is None else gradient


def _curvature(points: Tensor, labels: Tensor, directions: Tensor, field: Field) -> Tensor:
    """The second derivative of the energy by the points, times directions (N, D): (N, D). Pairs are found as before."""
    found, directions = torch.zeros_like(points, dtype=torch.float64), directions.double()
    tile = _sizes(points.device)[0]
    for members in _class_groups(labels, points.shape[1]):
        group, moved = points[members].double(), directions[members]
        group -= group.mean(1, keepdim=True)
        for start in range(0, group.shape[1], tile):
            rows = slice(start, start + tile)
            others = torch.ones(group[0, rows].shape[0], group.shape[1], dtype=torch.bool, device=points.device)
            others.diagonal(start).zero_()
            change = _change_of_force(
                field.attraction, group[:, rows], group, moved[:, rows], moved, others, field.delta
            )
            found[members[:, rows]] += change
    for rows, cols, close in _close_tiles(points, labels, field.delta_rep):
        if not close.any():
            continue
        some_rows, some_cols = (close.any(side).nonzero()[:, 0] for side in (1, 0))
        rows, cols, close = rows[some_rows], cols[some_cols], close[some_rows][:, some_cols]
        center = points[rows].double().mean(0)
        a, b, u, v = points[rows] - center, points[cols] - center, directions[rows], directions[cols]
        for at, pair in ((rows, (a, b, u, v, close)), (cols, (b, a, v, u, close.T))):
            found.index_add_(0, at, _change_of_force(field.repulsion, *pair, field.min_distance))
    return found.to(points.dtype)


def _change_of_force(law, a, b, u, v, counted, smallest) -> Tensor:
    """Derivative of 2 sum_j w(s_ij) (a_i - b_j), s = |a_i - b_j|^2, as a moves along u and b along v; (..., n, D)."""
    squared = _squared_distances(a, b, smallest)
    weight, slope = torch.func.jvp(lambda s: law(s)[1], (squared,), (torch.ones_like(squared),))
    stretch = torch.linalg.vecdot(a, u)[..., None] + torch.linalg.vecdot(b, v)[..., None, :] - a @ v.mT - u @ b.mT
    weight, turn = weight * counted, 2 * slope * stretch * counted
    return 2 * (weight.sum(-1, keepdim=True) * u - weight @ v + turn.sum(-1, keepdim=True) * a - turn @ b)


# A compiler can follow neither: how many pairs are close depends on values. To it each is one operator. Else they are
# called as they are, which spares the dispatch.


_POINTS, _FIELD = "Tensor points, Tensor labels", "str attract, str repel, float[] numbers"


@torch.library.custom_op(
    "dmlrepro::potential_energy",
    mutates_args=(),
    schema=f"({_POINTS}, bool differentiate, {_FIELD}) -> (Tensor, Tensor)",
)
def _energy_operator(points, labels, differentiate, attract, repel, numbers):
    return _energy_and_gradient(points, labels, Field(attract, repel, *numbers), differentiate)


@_energy_operator.register_fake
def _(points, labels, differentiate, attract, repel, numbers):
    gradient = torch.empty_like(points) if differentiate else points.new_empty(0)
    return points.new_empty((), dtype=torch.float64), gradient


def _keep(ctx, inputs, output):
    points, labels, _, *ctx.field = inputs
    ctx.save_for_backward(points, labels, output[1])


def _force(ctx, upstream, _):
    points, labels, gradient = ctx.saved_tensors
    if not gradient.numel():  # the points of what was exported need none, its callers' do
        gradient = _energy_operator(points, labels, True, *ctx.field)[1]
    attract, repel, numbers = ctx.field
    force = _Gradient.apply(points, labels, gradient, Field(attract, repel, *numbers), 1.0)
    return upstream.to(points.dtype) * force, *[None] * 5


# what torch.export writes down is the operator alone, without `_Energy` around it
_energy_operator.register_autograd(_force, setup_context=_keep)


@torch.library.custom_op(
    "dmlrepro::potential_curvature", mutates_args=(), schema=f"({_POINTS}, Tensor directions, {_FIELD}) -> Tensor"
)
def _curvature_operator(points, labels, directions, attract, repel, numbers):
    return _curvature(points, labels, directions, Field(attract, repel, *numbers))


@_curvature_operator.register_fake
def _(points, labels, directions, attract, repel, numbers):
    return torch.empty_like(points)


def _packed(field: Field) -> tuple[str, str, list[float]]:
    """A field as the last three arguments of an operator."""
    return field.attract, field.repel, list(field[2:])


class _Energy(torch.autograd.Function):
    """Value and gradient in one pass; the gradient is kept for backward."""

    @staticmethod
    def forward(points, labels, field, scale, differentiate):
        if torch.compiler.is_compiling():
            energy, gradient = _energy_operator(points, labels, differentiate, *_packed(field))
        else:
            energy, gradient = _energy_and_gradient(points, labels, field, differentiate)
        return scale * energy, gradient

    @staticmethod
    def setup_context(ctx, inputs, output):
        points, labels, ctx.field, ctx.scale, _ = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(points, labels, output[1])

    @staticmethod
    def backward(ctx, upstream, _):
        points, labels, gradient = ctx.saved_tensors
        force = _Gradient.apply(points, labels, gradient, ctx.field, ctx.scale)
        return upstream.to(points.dtype) * force, None, None, None, None


class _Gradient(torch.autograd.Function):
    """The gradient that was found with the energy, as a function of the points: so it can be differentiated again."""

    @staticmethod
    def forward(points, labels, gradient, field, scale):
        return gradient * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        points, labels, _, ctx.field, ctx.scale = inputs
        ctx.save_for_backward(points, labels)

    @staticmethod
    def backward(ctx, directions):
        return _Curvature.apply(*ctx.saved_tensors, directions, ctx.field, ctx.scale), None, None, None, None


class _Curvature(torch.autograd.Function):
    """The second derivative times directions, and an error where a third is asked for."""

    @staticmethod
    def forward(points, labels, directions, field, scale):
        if torch.compiler.is_compiling():
            return scale * _curvature_operator(points, labels, directions, *_packed(field))
        return scale * _curvature(points, labels, directions, field)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError("the potential energy can be differentiated twice, not three times")


def _energy(
    points: Tensor, labels: Tensor, field: Field, detach_sources: bool, reduction: str, above_least: bool = False
) -> Tensor:
    """Eq. 6, less its least value where above_least."""
    if points.ndim != 2 or not points.is_floating_point():
        raise ValueError(f"points must be a floating point (N, D) tensor, got {points.dtype} {tuple(points.shape)}")
    if len(points) == 0:
        raise ValueError("points is empty; a potential field needs at least one point")
    if labels.shape != points.shape[:1] or labels.is_floating_point():
        raise ValueError(f"labels must be ({len(points)},) integers, got {labels.dtype} {tuple(labels.shape)}")
    if reduction not in ("sum", "mean"):
        raise ValueError(f"reduction must be 'sum' or 'mean', got {reduction!r}")
    # NaN compares false; the search squares in float32
    if values_are_known() and not points.detach().abs().max() < 1e18:
        raise ValueError("points (embeddings, proxies) contain NaN, infinity or huge values; lower the learning rate")
    with torch.autocast(points.device.type, enabled=False):
        points = points if points.dtype == torch.float64 else points.float()
        scale = 1 / max(1, len(points) * (len(points) - 1)) if reduction == "mean" else 1.0
        differentiate = torch.is_grad_enabled() and points.requires_grad
        energy = _Energy.apply(points, labels, field, scale, differentiate)[0]
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


class _ProxyFieldLoss(nn.Module):
    """Energy of a batch together with all proxies, on the unit sphere."""

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        proxies_per_class: int,
        proxy_norm: float | None,
        field: Field,
        **options,
    ):
        super().__init__()
        for name, value, least in (
            ("num_classes", num_classes, 1),
            ("embedding_size", embedding_size, 1),
            ("proxies_per_class", proxies_per_class, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if options["reduction"] not in ("sum", "mean"):
            raise ValueError(f"reduction must be 'sum' or 'mean', got {options['reduction']!r}")
        if proxy_norm is not None and not 0 < proxy_norm < math.inf:
            raise ValueError(f"proxy_norm must be a positive norm, or None for proxies as drawn, got {proxy_norm}")
        proxies = torch.randn(num_classes, proxies_per_class, embedding_size)
        self.proxies = nn.Parameter(proxies if proxy_norm is None else proxy_norm * F.normalize(proxies, dim=2))
        self.field, self.options, self.proxy_norm = field, options, proxy_norm

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple=None, ref_emb=None, ref_labels=None) -> Tensor:
        check_unused(self, indices_tuple=indices_tuple, ref_emb=ref_emb, ref_labels=ref_labels)
        labels = whole_labels(embeddings, labels)
        num_classes, per_class, embedding_size = self.proxies.shape
        check_batch(embeddings, labels, num_classes, embedding_size)
        embeddings = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
        proxies = self.proxies.to(embeddings.dtype).flatten(0, 1)
        points = F.normalize(torch.cat([proxies, embeddings]), dim=1)
        classes = torch.arange(num_classes, device=labels.device).repeat_interleave(per_class)
        return _energy(points, torch.cat([classes, labels]), self.field, **self.options, above_least=True)

    def parameter_groups(self, lr: float) -> list[dict]:
        """Recommended groups for an optimiser, lr being the network's rate: proxies at 100 lr, clipped at CLIP_VALUE.

        Of a mean the bound is CLIP_VALUE over the number of pairs of proxies. CPML wants the network clipped as well:
        give its group the same "clip_value".
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
    Eq. 6 itself, which `potential_energy` returns, is larger by a constant that hides what training changes: 1e7 or so.

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
