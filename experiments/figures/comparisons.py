"""Charts that put many comparisons side by side: ratios, growth with size, theirs against ours, gains with their
intervals, ranks on several data sets, the verdicts of all claims."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from experiments.analysis.judging import DECIDED, Verdict
from experiments.figures.style import MARKERS, PALETTE, PLAIN, WIDTH, Names, described, legend, listed, panels, plain


def ratios(rows: pd.DataFrame, xlabel: str) -> Figure:
    """A dot per row on a logarithmic axis on which 1 is marked, in the order given; its number stands at the right.

    rows: columns label, kind (a marker and a colour each) and ratio, a positive number.
    """
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


def rankings(data: Mapping[str, pd.DataFrame], metric: str, *, names: Names = PLAIN) -> Figure:
    """A panel per data set, a dot per method with its interval over seeds, the highest mean on top.

    data: {title: columns method, mean, low, high, tuned, untrained}; low and high are NaN where seeds are too few.
    tuned: whether a search chose the method's settings; a hollow dot has default ones. untrained: of the
    features before training, in words below the panel and, where it lies among the methods, as a line.
    """
    data = {title: table.sort_values("mean", ascending=False, ignore_index=True) for title, table in data.items()}
    tallest = max(len(table) for table in data.values())
    with panels(len(data), 0.25 * tallest + 1.3, width=3.7 * len(data)) as (figure, axes):
        for axis, (title, table) in zip(axes, data.items()):
            for y, row in enumerate(table.itertuples()):
                color = names.color(row.method)
                axis.plot([row.low, row.high], [y, y], color=color, linewidth=1.8, zorder=2)
                fill = color if row.tuned else "white"
                axis.scatter(row.mean, y, s=34, facecolor=fill, edgecolor=color, linewidth=1.4, zorder=3)
            axis.set_yticks(range(len(table)), [plain(name) for name in table["method"]], fontsize="small")
            axis.invert_yaxis()
            before = table["untrained"].iloc[0]
            if among := table["mean"].min() <= before <= table["mean"].max():
                axis.axvline(before, color="0.4", linestyle="--", linewidth=1.2, zorder=1)
            dashed = " (dashed)" * bool(among)
            axis.set(xlabel=f"{names.label(metric)}\nfeatures before training{dashed}: {before:.1f}")
            axis.set_title(title, fontsize="small")
        dots: dict[str, Any] = {"s": 34, "edgecolor": "0.2", "linewidth": 1.4}
        axes[0].scatter([], [], facecolor="0.2", label="settings found by an equal search", **dots)
        axes[0].scatter([], [], facecolor="white", label="default settings", **dots)
        legend(figure, axes[0])
    return described(figure, f"Ranking of methods by {metric}, a panel per data set: {listed(data)}.")


# --- verdicts ---------------------------------------------------------------------------------------------------------

_LOOKS: dict[str, tuple[str, str]] = {  # verdict -> its colour, for colour-blind readers, and the mark that says it too
    Verdict.SUPPORTED: ("#009E73", "+"),
    Verdict.IN_PART: ("#8FD4B9", "(+)"),
    Verdict.MIXED: ("#E69F00", "±"),
    Verdict.EQUIVALENT: ("#F0E442", "="),
    Verdict.CONTRADICTED: ("#D55E00", "−"),
    Verdict.INCONCLUSIVE: ("#BBBBBB", "?"),
    Verdict.NOT_INTERPRETABLE: ("#CC79A7", "n"),
    Verdict.BY_DEFINITION: ("#56B4E9", "d"),
    Verdict.MEASURED: ("#0072B2", "m"),
    Verdict.NOT_TESTABLE: ("#E8E8E8", "x"),
    Verdict.NOT_RUN: ("#FFFFFF", "·"),
}
SHADES = {word: shade for word, (shade, _) in _LOOKS.items()}  # in the order of figures and counts
MARKS = {word: mark for word, (_, mark) in _LOOKS.items()}
COUNTED = (*DECIDED, Verdict.INCONCLUSIVE)  # whose comparisons have outcomes that mean something
ALWAYS = (*DECIDED, Verdict.INCONCLUSIVE, Verdict.NOT_INTERPRETABLE, Verdict.NOT_RUN)  # explained though none may occur


def verdict_squares(verdicts: pd.DataFrame) -> Figure:
    """A row of squares per paper, a square per claim: the mark of its verdict and, in green, the share of its
    comparisons that are supported, where these were judged; below them what the marks mean.

    verdicts: a row per claim, with paper, number, verdict (a word of `judging.Verdict`), k and n.
    """
    names = [*dict.fromkeys(verdicts["paper"])]
    words = [word for word in SHADES if word in {*verdicts["verdict"], *ALWAYS}]
    with panels(1, 0.5 * len(names) + 1.5, 9, grid=False) as (figure, (axis,)):
        for claim in verdicts.itertuples():
            x, y = claim.number, names.index(claim.paper)
            counted = claim.verdict in COUNTED and claim.n
            _square(axis, x, y, claim.verdict, claim.k / claim.n if counted else 0)
        below = len(names) + 0.4
        for place, word in enumerate(words):
            x, y = 1 + 4 * (place % 4), below + 0.75 * (place // 4)
            _square(axis, x, y, word, word == Verdict.SUPPORTED, side=0.6)
            axis.text(x + 0.45, y, word, va="center", fontsize="small")
        axis.set(xlim=(0.4, verdicts["number"].max() + 0.6), ylim=(below + 0.75 * (-(-len(words) // 4)) - 0.3, -0.6))
        axis.set_aspect("equal")
        axis.set_yticks(range(len(names)), names)
        axis.set_xticks(sorted(set(verdicts["number"])))
        axis.set_xlabel("number of the claim in its paper")
        axis.tick_params(length=0, bottom=False, labelbottom=False, top=False, labeltop=True)
        axis.xaxis.set_label_position("top")
        for side in axis.spines.values():
            side.set_visible(False)
    return described(figure, f"The verdict of every claim of {listed(names)}, with the share of supported comparisons.")


def _square(axis: Axes, x: float, y: float, word: str, share: float, side: float = 0.92) -> None:
    """A square around (x, y): its lowest part, `share` of it, is green, the rest has the colour of the verdict."""
    corner = (x - side / 2, y - side / 2)
    axis.add_patch(Rectangle(corner, side, side, facecolor=SHADES[word], edgecolor="0.6", linewidth=0.6))
    if share:
        low = (x - side / 2, y + side / 2 - share * side)
        axis.add_patch(Rectangle(low, side, share * side, facecolor=SHADES[Verdict.SUPPORTED], linewidth=0))
    mark = axis.text(x, y, MARKS[word], ha="center", va="center", fontweight="bold", fontsize="small")
    mark.set_path_effects([withStroke(linewidth=2, foreground="white", alpha=0.8)])
