"""Figures of the plane: potentials with their forces, samples with their proxies."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.style import PALETTE, WIDTH, described, legend, listed, panels, plain


def field(
    x: np.ndarray,
    y: np.ndarray,
    potentials: Mapping[str, np.ndarray],
    forces: Mapping[str, np.ndarray],
    points: np.ndarray,
    titles: tuple[str, str, str],
) -> Figure:
    """Potentials {title: (H, W)} on a grid x (W,), y (H,), a panel each, with force arrows {title: (H, W, 2)} and the
    points (N, 2) that make them. Colours end at the 2 % and 98 % quantiles; the length of arrows grows with the
    logarithm of the force, which spans many orders. titles: of x, y and the colour bar."""
    import seaborn

    width = min(WIDTH, 4.5 * len(potentials))
    height = 1.2 + width / len(potentials) * np.ptp(y) / np.ptp(x)
    with panels(len(potentials), height, width, grid=False, sharey=True) as (figure, axes):
        pale = seaborn.light_palette("#2C7FB8", as_cmap=True, reverse=True)  # arrows stay visible on all of it
        for axis, (name, values) in zip(axes, potentials.items()):
            low, high = np.quantile(values, [0.02, 0.98])
            levels = np.linspace(low, high, 13)
            drawn = axis.contourf(x, y, values, levels=levels, cmap=pale, extend="both")
            ticks = levels[[0, 6, 12]]
            bar = figure.colorbar(drawn, ax=axis, location="bottom", label=titles[2], ticks=ticks, aspect=30)
            texts = [np.format_float_positional(tick, 3, fractional=False, trim="-") for tick in ticks]
            marks = bar.ax.set_xticks(ticks, texts)
            for tick, side in zip(marks, ("left", "center", "right")):
                tick.label1.set(horizontalalignment=side)  # centred labels at the ends would meet the neighbour's
            arrows(axis, x, y, forces[name])
            axis.scatter(points[:, 0], points[:, 1], color="white", edgecolor="black", s=46, zorder=3)
            axis.set(title=name, xlabel=titles[0], aspect="equal")
        axes[0].set_ylabel(titles[1])
    return described(figure, f"Maps of the {titles[2]} over {titles[0]} and {titles[1]}: {listed(potentials)}.")


def arrows(axis: Axes, x: np.ndarray, y: np.ndarray, force: np.ndarray) -> None:
    thin = slice((step := max(1, -(-max(len(x), len(y)) // 15))) // 2, None, step)
    force = force[thin, thin]
    size = np.linalg.norm(force, axis=-1, keepdims=True)
    if (largest := size.max()) == 0:
        return
    length = np.log1p(999 * size / largest) / np.log(1000)
    u, v = np.moveaxis(np.divide(force, size, out=np.zeros_like(force), where=size > 1e-9 * largest) * length, -1, 0)
    axis.quiver(x[thin], y[thin], u, v, color="black", scale=24, width=0.004, pivot="mid")


def proxy_maps(states: Mapping[str, Mapping]) -> Figure:
    """Samples (dots) and proxies, converged (squares) and of the next problem (circles), in the colours of classes, a
    panel per state: {title: points (N, 2), labels (N,) 0, 1, ..., converged and next (C, M, 2)}."""
    states = {title: {name: np.asarray(array) for name, array in state.items()} for title, state in states.items()}
    with panels(len(states), 3.4, 7.4, most=2, extra=0.4) as (figure, axes):
        for axis, (title, state) in zip(axes, states.items()):
            points, labels = state["points"], state["labels"]
            for number, shade in zip(range(len(state["converged"])), PALETTE):
                own = points[labels == number]
                axis.scatter(own[:, 0], own[:, 1], s=5, color=shade, alpha=0.35, linewidth=0)
                converged: dict[str, Any] = {"marker": "s", "s": 46, "facecolor": shade, "edgecolor": "black"}
                following: dict[str, Any] = {"marker": "o", "s": 60, "facecolor": "none", "edgecolor": shade}
                for name, look in (("converged", converged), ("next", following)):
                    label = f"{name} proxies" if not number else None
                    axis.scatter(*state[name][number].T, label=label, linewidth=1.5, **look)
            axis.set_title(plain(title))
            axis.set_aspect("equal", adjustable="datalim")
            axis.set(xlabel="coordinate 1 (no unit)", ylabel="coordinate 2 (no unit)")
        legend(figure, axes[0])
    return described(figure, f"Samples, converged and next proxies of each class, a panel per state: {listed(states)}.")
