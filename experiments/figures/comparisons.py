"""Charts that put many comparisons side by side: theirs against ours, gains, ranks, all verdicts."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from experiments.analysis.judging import DECIDED, Verdict
from experiments.figures.style import PLAIN, WIDTH, Names, described, legend, listed, panels, plain


def theirs_and_ours(points: pd.DataFrame, unit: str) -> Figure:
    """Published numbers against ours, each less the mean of its comparison, a panel per paper; on the line both agree.
    points: columns paper, own (whether the method is the paper's), theirs and ours."""
    kinds = ((False, "baselines", "#8A8A8A", "o"), (True, "the paper's own", "#D55E00", "D"))
    papers = points.groupby("paper", sort=False)
    with panels(len(papers), 3.1, most=min(3, len(papers)), extra=0.4) as (figure, axes):
        for axis, (paper, some) in zip(axes, papers):
            for own, kind, shade, marker in kinds:
                group = some[some["own"] == own]
                look: dict[str, Any] = {"s": 24, "facecolor": "none", "edgecolor": shade, "marker": marker}
                axis.scatter(group["theirs"], group["ours"], label=kind, **look)
            reach = min(*axis.get_xlim(), *axis.get_ylim()), max(*axis.get_xlim(), *axis.get_ylim())
            axis.plot(reach, reach, color="black", linewidth=0.8, zorder=1)  # of equal ranges
            axis.axhline(0, color="0.7", linewidth=0.8, zorder=1)
            axis.axvline(0, color="0.7", linewidth=0.8, zorder=1)
            axis.set(xlabel=f"published less the mean ({unit})", ylabel=f"ours less the mean ({unit})", title=paper)
        legend(figure, axes[0])
    return described(figure, "Published numbers against ours, each less the mean of its comparison, a panel per paper.")


def gains(
    effects: Mapping[str, tuple[float, float, float]], against: str, measured: str, *, names: Names = PLAIN
) -> Figure:
    """Differences to a reference, the best above: filled where the whole interval lies above zero. effects: by
    candidate, named "METHOD (how)", (difference, low, high). measured: what they are of, for the title."""
    with panels(1, 0.27 * len(effects) + 1.3, WIDTH) as (figure, (axis,)):
        colors = [names.color(name.partition(" (")[0]) for name in effects]
        _intervals(axis, [(*of, shade, of[1] > 0) for of, shade in zip(effects.values(), colors)], list(effects))
        axis.axvline(0, color="black", linewidth=0.9, zorder=1)
        axis.set_xlabel(f"difference to {against} (points)")
        axis.grid(False, axis="y")
        axis.set_title(measured)
    return described(figure, f"{measured}: differences to {against} with their intervals.")


def _intervals(axis: Axes, rows: Sequence[tuple[float, float, float, str, bool]], names: Sequence[str]) -> None:
    """Rows of (value, low, high, colour, whether the dot is filled) with their names, from the top."""
    for y, (value, low, high, shade, filled) in enumerate(rows):
        axis.plot([max(low, -100), min(high, 100)], [y, y], color=shade, linewidth=1.8, zorder=2)
        fill = shade if filled else "white"
        axis.scatter(value, y, s=34, facecolor=fill, edgecolor=shade, linewidth=1.4, zorder=3)
    axis.set_yticks(range(len(rows)), [plain(name) for name in names], fontsize="small")
    axis.set_ylim(len(rows) - 0.4, -0.6)


def rankings(data: Mapping[str, pd.DataFrame], metric: str, *, names: Names = PLAIN) -> Figure:
    """A panel per data set, a dot per method with its interval over seeds, the highest mean on top; hollow where no
    search chose the settings.

    data: {title: columns method, mean, low, high, tuned, untrained}; low and high are NaN where seeds are too few,
    untrained is of the features before training, where it lies among the methods a line.
    """
    tallest = max(len(table) for table in data.values())
    with panels(len(data), 0.25 * tallest + 1.3, width=3.7 * len(data)) as (figure, axes):
        for axis, (title, table) in zip(axes, data.items()):
            table = table.sort_values("mean", ascending=False).assign(color=table["method"].map(names.color))
            shown = table[["mean", "low", "high", "color", "tuned"]].itertuples(index=False, name=None)
            _intervals(axis, list(shown), list(table["method"]))
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
ALWAYS = (*COUNTED, Verdict.NOT_INTERPRETABLE, Verdict.NOT_RUN)  # explained though none may occur


def verdict_squares(verdicts: pd.DataFrame) -> Figure:
    """A row of squares per paper, a square per claim: the mark of its verdict and, in green, the share of its
    comparisons that are supported, where these were judged. verdicts: columns paper, number, verdict, k and n."""
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
