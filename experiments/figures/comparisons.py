"""Charts that put many comparisons side by side: ratios, growth with size, pairs of methods, theirs against ours, gains
with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.figures.style import (
    MARKERS,
    PALETTE,
    PLAIN,
    WIDTH,
    Names,
    check,
    described,
    legend,
    listed,
    panels,
    plain,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def ratios(rows: pd.DataFrame, xlabel: str) -> Figure:
    """A dot per row on a logarithmic axis on which 1 is marked, in the order given; its number stands at the right.

    rows: columns label, kind (a marker and a colour each) and ratio, a positive number.
    """
    check(len(rows) > 0, "rows is empty")
    check((rows["ratio"] > 0).all(), "ratio must be positive")
    labels = list(dict.fromkeys(rows["label"]))
    shown = dict(zip(dict.fromkeys(rows["kind"]), zip(("#0072B2", "#D55E00", "#009E73"), MARKERS)))
    with panels(1, 0.21 * len(labels) + 1.3, width=WIDTH) as (figure, (axis,)):
        for kind, (shade, marker) in shown.items():
            some = rows[rows["kind"] == kind]
            places = [labels.index(label) for label in some["label"]]
            style: dict[str, Any] = {"facecolor": "none" if marker == "s" else shade, "edgecolor": shade}
            axis.scatter(some["ratio"], places, s=30, marker=marker, label=kind, zorder=3, **style)
        beside: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
        for y, label in enumerate(labels):
            own = rows[rows["label"] == label].sort_values("kind", key=lambda kinds: kinds.map([*shown].index))
            told = ", ".join(f"{ratio:.3g}" for ratio in own["ratio"])
            axis.annotate(told, (1, y), (4, 0), fontsize="small", **beside)
        axis.axvline(1, color="black", linewidth=1)
        axis.set(xscale="log", xlabel=xlabel, ylabel="what is compared")
        axis.set_yticks(range(len(labels)), [plain(label) for label in labels], fontsize="small")
        axis.invert_yaxis()
        legend(figure, axis)
    return described(figure, f"Dots on a logarithmic axis: {xlabel}.")


def growth(
    charts: Sequence[tuple[str, str, str, Mapping[str, tuple[np.ndarray, np.ndarray]]]], *, names: Names = PLAIN
) -> Figure:
    """Panels of what grows with a size, both axes logarithmic, with the fitted line, whose slope its legend has.

    charts: (title, axis title of the size, axis title of what grows, {name: (sizes, values)}).
    """
    check(len(charts) > 0, "charts is empty")
    with panels(len(charts), 3.1, WIDTH, most=2) as (figure, axes):
        for axis, (title, xlabel, ylabel, series) in zip(axes, charts):
            for i, (name, (sizes, values)) in enumerate(series.items()):
                shade = names.colors.get(name) or PALETTE[2 * i % len(PALETTE)]
                power, offset = np.polyfit(np.log(sizes), np.log(values), 1)
                text = f"{name}: slope {power:.2f}"
                axis.scatter(sizes, values, color=shade, marker=MARKERS[i % len(MARKERS)], s=26, label=plain(text))
                ends = np.array([min(sizes), max(sizes)])
                axis.plot(ends, np.exp(offset) * ends**power, color=shade, linewidth=1)
            axis.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
            axis.set_title(title, fontsize="medium")
            levels = sorted({float(size) for sizes, _ in series.values() for size in sizes})
            axis.set_xticks(levels, [f"{level:,.0f}" for level in levels], fontsize="small")
            axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
            low, high = axis.get_ylim()
            axis.set_ylim(low, high * (high / low) ** (0.09 * len(series)))  # what grows leaves the upper left free
            axis.legend(fontsize="small", loc="upper left")
    return described(figure, f"Growth with size on logarithmic axes: {listed(title for title, *_ in charts)}.")


def theirs_and_ours(points: pd.DataFrame, unit: str) -> Figure:
    """Published numbers against ours, each less the mean of its comparison, a panel per paper; on the line both agree.

    points: columns paper, own (whether the method is the paper's), theirs and ours.
    """
    check(len(points) > 0, "points is empty")
    papers = list(dict.fromkeys(points["paper"]))
    with panels(len(papers), 3.1, most=min(3, len(papers)), extra=0.4) as (figure, axes):
        for axis, paper in zip(axes, papers):
            some = points[points["paper"] == paper]
            kinds = {"baselines": (False, "#8A8A8A", "o"), "the paper's own": (True, "#D55E00", "D")}
            for kind, (own, shade, marker) in kinds.items():
                group = some[some["own"] == own]
                look: dict[str, Any] = {"s": 24, "facecolor": "none", "edgecolor": shade, "marker": marker}
                axis.scatter(group["theirs"], group["ours"], label=kind, **look)
            reach = [*axis.get_xlim(), *axis.get_ylim()]
            axis.plot([min(reach), max(reach)], [min(reach), max(reach)], color="black", linewidth=0.8, zorder=1)
            axis.axhline(0, color="0.7", linewidth=0.8, zorder=1)
            axis.axvline(0, color="0.7", linewidth=0.8, zorder=1)
            axis.set(xlabel=f"published less the mean ({unit})", ylabel=f"ours less the mean ({unit})", title=paper)
        legend(figure, axes[0])
    return described(figure, "Published numbers against ours, each less the mean of its comparison, a panel per paper.")


def gains(
    effects: Mapping[str, tuple[float, float, float]], against: str, measured: str, *, names: Names = PLAIN
) -> Figure:
    """Differences to a reference, the best above: filled where the whole interval lies above zero.

    effects: by candidate, named "METHOD (how)", (difference, low, high); infinite bounds leave the figure.
    against: the reference. measured: what the differences are of, and over how much, for the title.
    """
    check(len(effects) > 0, "effects: there is no candidate to draw")
    rows = list(effects.items())[::-1]
    with panels(1, 0.27 * len(rows) + 1.3, WIDTH) as (figure, (axis,)):
        for y, (name, (effect, low, high)) in enumerate(rows):
            shade = names.color(name.partition(" (")[0])
            axis.plot([max(low, -100), min(high, 100)], [y, y], color=shade, linewidth=1.8, zorder=2)
            axis.plot(effect, y, "o", color=shade, markerfacecolor=shade if low > 0 else "white", zorder=3)
        axis.axvline(0, color="black", linewidth=0.9, zorder=1)
        axis.set_yticks(range(len(rows)), [plain(name) for name, _ in rows])
        axis.set_ylim(-0.6, len(rows) - 0.4)
        axis.set_xlabel(f"difference to {against} (points)")
        axis.grid(False, axis="y")
        axis.set_title(measured)
    return described(figure, f"{measured}: differences to {against} with their intervals.")
