"""The figure of the idea of PLM, for notebook 50: a piece that grows, and the similarity that it gives."""

import math

import torch
from matplotlib.figure import Figure

from dmlrepro.losses.piecewise_linear import directed_similarity, linear_neighborhoods
from experiments.figures.style import PALETTE, described, legend, panels


def piece(point: int = 9, k: int = 10, quality: float = 0.9, n_alpha: float = 4.0, n_beta: float = 0.5) -> Figure:
    """Left: the k nearest neighbours of a point of an eight by the order in which they are tried, those that its linear
    piece (m = 1) keeps filled, those it rejects crossed. Right: contours of the similarity to that point."""
    angles = 2 * math.pi * torch.arange(90, dtype=torch.float64) / 90
    noise = torch.randn(90, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    points = torch.stack([angles.cos(), angles.sin() * angles.cos()], dim=1) + 0.006 * noise
    bases, members = linear_neighborhoods(points, k, 1, quality)
    order = (points - points[point]).norm(dim=1).argsort()[1 : k + 1].tolist()
    kept = members[point]
    along = (points[kept] - points[point]) @ bases[point, 0]
    ends = points[point] + torch.stack([along.min(), along.max()])[:, None] * bases[point, 0]
    reach = 1.3 * (points[order] - points[point]).norm(dim=1).max().item()
    x, y = points[point].tolist()
    with panels(2, 4.0, grid=False) as (figure, (left, right)):
        for axis in (left, right):
            axis.scatter(points[:, 0], points[:, 1], s=10, color="0.7", linewidth=0)
            axis.set(xlim=(x - reach, x + reach), ylim=(y - reach, y + reach), aspect="equal", xlabel="coordinate 1")
        left.plot(*ends.T, color=PALETTE[2], linewidth=2, label="piece")
        for name, marker, shown in (("kept", "o", True), ("rejected", "x", False)):
            some = [neighbour for neighbour in order if bool(kept[neighbour]) == shown]
            xs, ys = points[some].T
            left.scatter(xs, ys, 36, PALETTE[2 if shown else 0], marker=marker, label=name, zorder=3)
        across = 13 * bases[point, 0].flip(0) * torch.tensor([-1.0, 1.0])  # in points
        for place, other in enumerate(order, 1):
            aside = tuple((across if place % 2 else -across).tolist())
            left.annotate(
                f"{place}", tuple(points[other].tolist()), aside, textcoords="offset points", ha="center", va="center"
            )
        axis_x, axis_y = (torch.linspace(at - reach, at + reach, 121, dtype=torch.float64) for at in (x, y))
        grid = torch.cartesian_prod(axis_y, axis_x).flip(1)
        similarity = directed_similarity(grid, points[point, None], bases[point, None], n_alpha, n_beta).view(121, 121)
        contours = right.contour(axis_x, axis_y, similarity, levels=[0.4, 0.5, 0.6, 0.7, 0.8, 0.9], cmap="viridis")
        right.clabel(contours, fontsize="small")
        for axis in (left, right):
            axis.scatter(x, y, s=80, marker="*", color="black", zorder=4, label="the point")
        left.set(title="which neighbours the piece keeps", ylabel="coordinate 2")
        right.set(title="similarity to the point")
        legend(figure, left)
    return described(figure, "The neighbours that a linear piece keeps or rejects, and contours of the similarity.")
