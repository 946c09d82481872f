"""The figure of the idea of CCP, for notebook 40: covering circles that shrink."""

import torch
from matplotlib.figure import Figure

from dmlrepro.losses.chance_constrained import covering_radius, greedy_k_center
from experiments.figures.style import PALETTE, described, panels


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
