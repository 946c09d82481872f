"""Figures of the idea of PFML, for notebooks 10 and 12: who pulls, and where points slide to."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from torch import Tensor

from dmlrepro.losses.potential_field import Field, class_potential, contrastive_field, decaying_field
from experiments.figures import planes
from experiments.figures.style import PALETTE, described, legend, panels

LAWS: Mapping[str, Callable[..., Field]] = {"PFML": decaying_field, "CPML": contrastive_field}


def force_at(distances: Tensor, field: Field, *, same_class: bool = True) -> Tensor:
    """Size of the force between two points at distances (N,), N positive numbers."""
    at = torch.stack([distances, torch.zeros_like(distances)], 1)
    origin, label = torch.zeros(1, 2, dtype=at.dtype), torch.tensor([0 if same_class else 1])
    return class_potential(at, origin, label, 0, field)[1].norm(dim=1)


def pull_at_rim(field: Field) -> Tensor:
    """At r = delta: (1,)."""
    return force_at(torch.tensor([field.delta], dtype=torch.float64), field)


def who_pulls(alphas: Sequence[float] = (3.0, 0.14), deltas: Sequence[float] = (0.2, 0.27)) -> Figure:
    """Pull of the own class and push of another against distance, relative to the pull at the rim, r = delta, of the
    same loss: of PFML at each (alpha, delta), of CPML, and of a contrastive loss with the margins 0 and 0.5."""
    fields = {
        f"PFML, α = {alpha:g}, δ = {delta:g}": decaying_field(alpha, delta) for alpha, delta in zip(alphas, deltas)
    }
    fields[f"CPML, no decay, δ = {deltas[0]:g}"] = contrastive_field(deltas[0])
    distances = torch.logspace(-2, np.log10(2), 400, dtype=torch.float64)
    with panels(2, 3.4, sharex=True, sharey=True) as (figure, axes):
        for axis, same_class, reach in zip(axes, (True, False), (2.0, 0.5)):
            for (name, field), color, style in zip(fields.items(), PALETTE[::2], ("-", ":", "--")):
                force = force_at(distances, field, same_class=same_class) / pull_at_rim(field)
                axis.plot(distances, force.where(force > 0, torch.nan), style, color=color, linewidth=2, label=name)
            axis.plot([0.01, reach], [1, 1], "-.", color="0.3", linewidth=1.5, label="contrastive, margin 0.5")
            axis.axvline(2**0.5, color="0.6", linewidth=1)
            axis.text(2**0.5, 2e4, " right angle", rotation=90, va="top", ha="right", fontsize="small", color="0.4")
            title = "pull of the own class" if same_class else "push of another class"
            axis.set(title=title, xlabel="distance r on the unit sphere", xscale="log", yscale="log")
            axis.set_xticks([0.01, 0.1, 0.2, 1.0], ["0.01", "0.1", "0.2", "1"])
            axis.minorticks_off()
        axes[0].set_ylabel("force / own pull at r = δ")
        legend(figure, axes[0])
    return described(figure, "Force against distance under PFML, CPML and a contrastive loss, logarithmic axes.")


def picture(method: str, delta: float = 0.2, cells: int = 120) -> tuple[Tensor, ...]:
    """Fig. 2, the field of class 1 of two in the plane under "PFML" or "CPML": axis (cells,), potential (cells, cells),
    force (cells, cells, 2), points (N, 2), labels (N,). The distance in the force law is floored at 0.6 delta, or
    PFML's repulsion would leave nothing else visible."""
    first = [(-0.85, 0.6), (-0.7, 0.75), (-0.6, 0.55), (0.6, -0.75), (0.75, -0.6), (0.45, 0.1)]
    second = [(-0.75, -0.65), (-0.6, -0.5), (-0.5, -0.75), (0.7, 0.7), (0.85, 0.55), (0.3, 0.25)]
    points, labels = torch.tensor(first + second, dtype=torch.float64), torch.tensor([1, 2]).repeat_interleave(6)
    axis = torch.linspace(-1.15, 1.15, cells, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis).flip(1)  # rows of the grid are y
    field = LAWS[method](delta=delta, min_distance=0.6 * delta)
    potential, force = class_potential(grid, points, labels, 1, field)
    return axis, potential.view(cells, cells), force.view(cells, cells, 2), points, labels


def field_map(delta: float = 0.2) -> Figure:
    """Fig. 2: the potential of a class in the plane under PFML and under CPML, with the force on a point of the class.
    Zero is the median, the unit the pull at the rim, r = delta, times delta; colours are logarithmic beyond a unit."""
    with panels(2, 4.4, grid=False, sharey=True) as (figure, axes):
        for axis, (method, law) in zip(axes, LAWS.items()):
            coordinates, potential, force, points, labels = (tensor.numpy() for tensor in picture(method, delta))
            centred = (potential - np.median(potential)) / (pull_at_rim(law(delta=delta)).item() * delta)
            norm = SymLogNorm(1, vmin=-100, vmax=100)
            image = axis.pcolormesh(coordinates, coordinates, centred, norm=norm, cmap="RdBu_r")
            planes.arrows(axis, coordinates, coordinates, force)
            for cls, marker in ((1, "o"), (2, "s")):
                x, y = points[labels == cls].T
                axis.scatter(x, y, 46, "white", marker=marker, edgecolor="black", zorder=3, label=f"class {cls}")
            axis.set(title=f"{method}, potential of class 1", xlabel="coordinate 1", aspect="equal")
        axes[0].set_ylabel("coordinate 2")
        figure.colorbar(image, ax=axes, label="(potential − median) / (pull at δ × δ)", shrink=0.8)
        legend(figure, axes[0])
    return described(figure, "Potential of a class under PFML and CPML, with arrows of the force, in the same colours.")


def slide(alpha: float = 3.0, delta: float = 0.2, steps: int = 300, mislabelled: int = 1) -> Figure:
    """Thirty points of three classes that move with the force on them: snapshots under PFML above, under CPML below.
    Class 0 begins as two clusters; the last `mislabelled` of its points (crosses) lie in the cluster of class 2. A step
    is 0.002 long where the force is the pull at the rim, and at most 0.05, because PFML's push has no such bound."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.tensor([[-0.7, 0.5], [0.7, 0.4], [-0.5, -0.6], [0.6, -0.6]], dtype=torch.float64)
    start = centers.repeat_interleave(8, 0)[:30] + 0.12 * torch.randn(30, 2, dtype=torch.float64, generator=generator)
    wrong = torch.arange(30) >= 30 - mislabelled
    labels = torch.tensor([0] * 16 + [1] * 8 + [2] * 6).masked_fill(wrong, 0)
    start[wrong] = centers[3] + 0.4 * (start[wrong] - centers[3])
    shown = (0, steps // 20, steps // 5, steps)
    fields = {f"PFML, α = {alpha:g}": decaying_field(alpha, delta, min_distance=delta / 10)}
    fields["CPML"] = contrastive_field(delta, min_distance=delta / 10)
    with panels(2 * len(shown), 2.5, most=len(shown), sharex=True, sharey=True) as (figure, axes):
        free = iter(axes)
        for name, field in fields.items():
            points = start.clone()
            for step in range(steps + 1):
                if step in shown:
                    axis = next(free)
                    for cls, marker in enumerate("osD"):
                        x, y = points[(labels == cls) & ~wrong].T
                        axis.scatter(x, y, s=22, color=PALETTE[2 * cls], marker=marker, label=f"class {cls}")
                    x, y = points[wrong].T
                    axis.scatter(x, y, s=60, color="black", marker="x", label="labelled 0, lies in class 2")
                    axis.set(title=f"{name}, step {step}", aspect="equal")
                force = torch.zeros_like(points)
                for cls in range(3):
                    force[labels == cls] = class_potential(points[labels == cls], points, labels, cls, field)[1]
                move = 0.002 * force / pull_at_rim(field)
                points = points + move * (0.05 / move.norm(dim=1, keepdim=True).clamp_min(0.05))
        for axis in axes[len(shown) :]:
            axis.set_xlabel("coordinate 1")
        for axis in axes[:: len(shown)]:
            axis.set_ylabel("coordinate 2")
        legend(figure, axes[0])
    return described(figure, "Points of three classes at four steps, under PFML and under CPML.")
