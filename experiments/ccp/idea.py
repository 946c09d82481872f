"""Figures of the idea of CCP, for notebook 40: covering circles that shrink, and alternating projections."""

import torch
from matplotlib.figure import Figure
from torch import Tensor

from dmlrepro.losses.chance_constrained import covering_radius, greedy_k_center
from experiments.figures.style import PALETTE, described, legend, panels


def covering(rounds: int = 4, per_round: int = 2, seed: int = 0) -> Figure:
    """Two crescents and the proxies of so many rounds, which greedy k-center places at the samples that all proxies so
    far miss most; the first is the class mean. Circles have the covering radius of the class."""
    from matplotlib.patches import Circle
    from sklearn.datasets import make_moons

    points, labels = make_moons(240, noise=0.07, random_state=seed)
    classes = [torch.from_numpy(points[labels == cls]) for cls in (0, 1)]
    proxies = [own.mean(0, keepdim=True) for own in classes]
    with panels(rounds, 2.5, sharex=True, sharey=True) as (figure, axes):
        for number, axis in enumerate(axes, 1):
            radii = [covering_radius(own, near).item() for own, near in zip(classes, proxies)]
            for own, near, radius, color in zip(classes, proxies, radii, PALETTE[::2]):
                axis.scatter(own[:, 0], own[:, 1], s=4, color=color)
                axis.scatter(near[:, 0], near[:, 1], s=36, marker="s", color=color, edgecolor="black", zorder=3)
                for x, y in near.tolist():
                    axis.add_patch(Circle((x, y), radius, color=color, alpha=0.15, linewidth=0))
            axis.set(title=f"round {number}: mean radius {sum(radii) / 2:.2f}", xlabel="coordinate 1", aspect="equal")
            missed = [own[greedy_k_center(own, near, per_round)] for own, near in zip(classes, proxies)]
            proxies = [torch.cat(both) for both in zip(proxies, missed)]
        axes[0].set_ylabel("coordinate 2")
    return described(figure, "Proxies of two crescents and their covering circles, which shrink from round to round.")


def projections(steps: int = 8) -> Figure:
    """Alternating projections onto two convex sets, a disc and a half-plane, from a point that lies in neither."""
    from matplotlib.patches import Circle

    center, radius, slope = torch.tensor([0.0, 0.0]), 1.0, torch.tensor([0.35, 1.0])
    normal, bound = slope / slope.norm(), 0.97  # the half-plane <normal, x> >= bound cuts a thin cap off the disc

    def onto_disc(x: Tensor) -> Tensor:
        return center + (x - center) * (radius / (x - center).norm()).clamp_max(1)

    def onto_half_plane(x: Tensor) -> Tensor:
        return x + (bound - normal @ x).clamp_min(0) * normal

    path = [torch.tensor([1.3, 0.75])]
    for step in range(steps):
        path.append((onto_disc if step % 2 == 0 else onto_half_plane)(path[-1]))
    places = torch.stack(path)
    with panels(1, 3.6, width=5.5, grid=False) as (figure, (axis,)):
        axis.add_patch(Circle((0, 0), radius, color=PALETTE[3], alpha=0.35, linewidth=0, label="constraint A"))
        left = torch.tensor([0.0, 1.4])
        edge = (bound - normal[0] * left) / normal[1]
        axis.fill_between(left, edge, 1.2, color=PALETTE[1], alpha=0.35, linewidth=0, label="constraint B")
        axis.plot(*places.T, "o-", color="black", markersize=4, linewidth=1, label="iterates")
        axis.set(xlabel="coordinate 1", ylabel="coordinate 2", xlim=(0, 1.4), ylim=(0.4, 1.2), aspect="equal")
        legend(figure, axis)
    return described(figure, "A point that is projected in turn onto a disc and a half-plane approaches both.")
