"""The energy of labelled points whose potentials act near one another only, and its derivatives: exact but sparse.

Attraction acts only within a class and repulsion only within `delta_rep`, the rest is a constant. Pairs of one class
are enumerated. Close pairs of different classes are found tile by tile with a matmul and a threshold wider than its
rounding error, then evaluated precisely. Energy and gradient come out of one pass, so nothing is kept per pair and
memory stays at a few copies of the points. The second derivative is found in the same way when it is asked for. Which
pairs are close depends on values, which a compiler does not follow: it sees both as operators.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

# A search tile has so many points per side, a temporary of the exact evaluation so many numbers: a CPU's cache holds
# them. Other devices take more, because every tile costs them launches and a wait, see `_sizes`.
_TILE = 256
_CHUNK = 2**17


class Potentials(Protocol):
    """An attraction and a repulsion: a named tuple of two strings, then numbers. Its module has its class by name.

    Both laws take squared distances and return psi, counted from its least value, and psi'(r) / r, elementwise.
    """

    @property
    def delta(self) -> float:
        """The distance within which a class does not attract itself."""

    @property
    def delta_rep(self) -> float:
        """The distance beyond which nothing repels."""

    @property
    def min_distance(self) -> float:
        """Smaller distances change no repulsion: their digits do not count."""

    def attraction(self, squared: Tensor) -> tuple[Tensor, Tensor]: ...

    def repulsion(self, squared: Tensor) -> tuple[Tensor, Tensor]: ...


def pair_energy(points: Tensor, labels: Tensor, field: Potentials, scale: float) -> Tensor:
    """scale times the energy of all ordered pairs of points (N, D) above its least; float64, differentiable twice."""
    return _Energy.apply(points, labels, field, scale, torch.is_grad_enabled() and points.requires_grad)[0]


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


def _add_attraction(points: Tensor, labels: Tensor, field: Potentials, gradient: Tensor | None) -> Tensor:
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


def _add_repulsion(points: Tensor, labels: Tensor, field: Potentials, gradient: Tensor | None) -> Tensor:
    """Energy of all ordered pairs of different classes; d energy / d points is added to gradient."""
    energy = points.new_zeros((), dtype=torch.float64)
    for rows, cols, close in _close_tiles(points, labels, field.delta_rep):
        count = close.count_nonzero().item()
        if count > close.numel() // 10:
            energy += _add_dense_tile(points, rows, cols, close, field, gradient)
        elif count:
            energy += _add_sparse_tile(points, rows, cols, close, field, gradient)
    return energy


def _add_sparse_tile(
    points: Tensor, rows: Tensor, cols: Tensor, close: Tensor, field: Potentials, gradient: Tensor | None
) -> Tensor:
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


def _add_dense_tile(
    points: Tensor, rows: Tensor, cols: Tensor, close: Tensor, field: Potentials, gradient: Tensor | None
) -> Tensor:
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


def _energy_and_gradient(
    points: Tensor, labels: Tensor, field: Potentials, differentiate: bool
) -> tuple[Tensor, Tensor]:
    """The energy above the least, in float64, and its derivative (N, D) by the points, empty unless it is wanted."""
    gradient = torch.zeros_like(points) if differentiate else None
    energy = _add_attraction(points, labels, field, gradient) + _add_repulsion(points, labels, field, gradient)
    return energy, points.new_empty(0) if gradient is None else gradient


def _curvature(points: Tensor, labels: Tensor, directions: Tensor, field: Potentials) -> Tensor:
    """The second derivative of the energy by the points, times directions (N, D): (N, D). Pairs are found as before."""
    product, directions = torch.zeros_like(points, dtype=torch.float64), directions.double()
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
            product[members[:, rows]] += change
    for rows, cols, close in _close_tiles(points, labels, field.delta_rep):
        if not close.any():
            continue
        some_rows, some_cols = (close.any(side).nonzero()[:, 0] for side in (1, 0))
        rows, cols, close = rows[some_rows], cols[some_cols], close[some_rows][:, some_cols]
        center = points[rows].double().mean(0)
        a, b, u, v = points[rows] - center, points[cols] - center, directions[rows], directions[cols]
        for at, pair in ((rows, (a, b, u, v, close)), (cols, (b, a, v, u, close.T))):
            product.index_add_(0, at, _change_of_force(field.repulsion, *pair, field.min_distance))
    return product.to(points.dtype)


def _change_of_force(
    law: torch.types.Any, a: Tensor, b: Tensor, u: Tensor, v: Tensor, counted: Tensor, smallest: float
) -> Tensor:
    """Derivative of 2 sum_j w(s_ij) (a_i - b_j), s = |a_i - b_j|^2, as a moves along u and b along v; (..., n, D)."""
    squared = _squared_distances(a, b, smallest)
    weight, slope = torch.func.jvp(lambda s: law(s)[1], (squared,), (torch.ones_like(squared),))
    stretch = torch.linalg.vecdot(a, u)[..., None] + torch.linalg.vecdot(b, v)[..., None, :] - a @ v.mT - u @ b.mT
    weight, turn = weight * counted, 2 * slope * stretch * counted
    return 2 * (weight.sum(-1, keepdim=True) * u - weight @ v + turn.sum(-1, keepdim=True) * a - turn @ b)


# A compiler can follow neither: how many pairs are close depends on values. To it each is one operator. Else they are
# called as they are, which spares the dispatch.


_POINTS, _FIELD = "Tensor points, Tensor labels", "str kind, str attract, str repel, float[] numbers"


@torch.library.custom_op(
    "dmlrepro::potential_energy",
    mutates_args=(),
    schema=f"({_POINTS}, bool differentiate, {_FIELD}) -> (Tensor, Tensor)",
)
def _energy_operator(points: Tensor, labels: Tensor, differentiate: bool, *packed: *tuple[str, str, str, list[float]]):
    return _energy_and_gradient(points, labels, _unpacked(*packed), differentiate)


@_energy_operator.register_fake
def _(points: Tensor, labels: Tensor, differentiate: bool, *packed: str | list[float]):
    gradient = torch.empty_like(points) if differentiate else points.new_empty(0)
    return points.new_empty((), dtype=torch.float64), gradient


def _keep(ctx: torch.types.Any, inputs: tuple, output: tuple[Tensor, Tensor]):
    points, labels, _, *ctx.packed = inputs
    ctx.save_for_backward(points, labels, output[1])


def _force(ctx: torch.types.Any, upstream: Tensor, _: Tensor | None):
    points, labels, gradient = ctx.saved_tensors
    if not gradient.numel():  # the points of what was exported need none, its callers' do
        gradient = _energy_operator(points, labels, True, *ctx.packed)[1]
    force = _Gradient.apply(points, labels, gradient, _unpacked(*ctx.packed), 1.0)
    return upstream.to(points.dtype) * force, *[None] * 6


# what torch.export writes down is the operator alone, without `_Energy` around it
_energy_operator.register_autograd(_force, setup_context=_keep)


@torch.library.custom_op(
    "dmlrepro::potential_curvature", mutates_args=(), schema=f"({_POINTS}, Tensor directions, {_FIELD}) -> Tensor"
)
def _curvature_operator(
    points: Tensor, labels: Tensor, directions: Tensor, *packed: *tuple[str, str, str, list[float]]
):
    return _curvature(points, labels, directions, _unpacked(*packed))


@_curvature_operator.register_fake
def _(points: Tensor, labels: Tensor, directions: Tensor, *packed: str | list[float]):
    return torch.empty_like(points)


def _packed(field: torch.types.Any) -> tuple[str, str, str, list[float]]:
    """A field as the last arguments of an operator, which takes strings and numbers only."""
    return f"{type(field).__module__}:{type(field).__name__}", *field[:2], list(field[2:])


def _unpacked(kind: str, attract: str, repel: str, numbers: list[float]) -> Potentials:
    module, _, name = kind.partition(":")
    return getattr(sys.modules[module], name)(attract, repel, *numbers)


class _Energy(torch.autograd.Function):
    """Value and gradient in one pass; the gradient is kept for backward."""

    @staticmethod
    def forward(points: Tensor, labels: Tensor, field: Potentials, scale: float, differentiate: bool):
        if torch.compiler.is_compiling():
            energy, gradient = _energy_operator(points, labels, differentiate, *_packed(field))
        else:
            energy, gradient = _energy_and_gradient(points, labels, field, differentiate)
        return scale * energy, gradient

    @staticmethod
    def setup_context(ctx: torch.types.Any, inputs: tuple, output: tuple[Tensor, Tensor]):
        points, labels, ctx.field, ctx.scale, _ = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(points, labels, output[1])

    @staticmethod
    def backward(ctx: torch.types.Any, upstream: Tensor, _: Tensor | None):
        points, labels, gradient = ctx.saved_tensors
        force = _Gradient.apply(points, labels, gradient, ctx.field, ctx.scale)
        return upstream.to(points.dtype) * force, None, None, None, None


class _Gradient(torch.autograd.Function):
    """The gradient that was found with the energy, as a function of the points: so it can be differentiated again."""

    @staticmethod
    def forward(points: Tensor, labels: Tensor, gradient: Tensor, field: Potentials, scale: float):
        return gradient * scale

    @staticmethod
    def setup_context(ctx: torch.types.Any, inputs: tuple, output: Tensor):
        points, labels, _, ctx.field, ctx.scale = inputs
        ctx.save_for_backward(points, labels)

    @staticmethod
    def backward(ctx: torch.types.Any, directions: Tensor):
        return _Curvature.apply(*ctx.saved_tensors, directions, ctx.field, ctx.scale), None, None, None, None


class _Curvature(torch.autograd.Function):
    """The second derivative times directions, and an error where a third is asked for."""

    @staticmethod
    def forward(points: Tensor, labels: Tensor, directions: Tensor, field: Potentials, scale: float):
        if torch.compiler.is_compiling():
            return scale * _curvature_operator(points, labels, directions, *_packed(field))
        return scale * _curvature(points, labels, directions, field)

    @staticmethod
    def setup_context(ctx: torch.types.Any, inputs: tuple, output: Tensor):
        pass

    @staticmethod
    def backward(ctx: torch.types.Any, *_: Tensor | None):
        raise RuntimeError("the potential energy can be differentiated twice, not three times")
