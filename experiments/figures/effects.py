"""What is said of claims and methods together: effects with their intervals, how many of each verdict, and ranks on
several data sets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from experiments.analysis import claims
from experiments.figures.style import PLAIN, Names, check, described, legend, listed, panels, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLACED = {"birds": ("o", "#0072B2"), "cars": ("s", "#D55E00"), "letters": ("^", "#009E73"), "further": ("X", "#7A5C1E")}
PLACED |= {"paper scale": ("D", "#000000")}
WIDE = 3.0  # times as wide as all marks of a panel lie apart: such an interval is cut


def forest(rows: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Effects of claims with their intervals by place, and what was published of them.

    rows: columns claim (shown, in a line or several), place (of PLACED), metric, effect, low, high, zero, unit; low and
        high are NaN where there is no interval. Metrics of retrieval share an axis of points; every other measure of a
        claim is scaled to its own widest end, and its numbers stand beside it. An interval of points that would squeeze
        all marks together is cut, with arrows at its ends.
    published: columns claim, value, in points of a metric of retrieval, alike: of the comparison that the mark shows.
    """
    check(len(rows) + len(published) > 0, "rows: nothing was measured and nothing published")
    in_points = rows["metric"].str.startswith(claims.RETRIEVAL) & (rows["unit"] == "")
    points, others = rows[in_points], rows[~in_points]
    left, right = sorted({*points["claim"], *published["claim"]}), sorted({*others["claim"]})
    parts = [(left, points), (right, others)] if right else [(left, points)]
    tallest = max(sum(0.2 + 0.14 * len(label.splitlines()) for label in labels) for labels, _ in parts)
    with panels(len(parts), tallest + 1.5, width=6.2 * len(parts)) as (figure, axes):
        for axis, (labels, _) in zip(axes, parts):
            axis.axvline(0, color="grey", linewidth=0.8, zorder=1)
            axis.set_yticks(range(len(labels)), [plain(name) for name in labels], fontsize="x-small")
            axis.set_ylim(max(len(labels), 1) - 0.5, -0.5)
            axis.grid(False, axis="y")
        limits = _limits(points, published["value"])
        _intervals(axes[0], points.assign(scale=1.0), left, limits)
        for alike, known in published.groupby("alike", sort=False):
            edge, name = ("black", "published, another network") if alike else ("0.6", "published, another comparison")
            hollow: dict[str, Any] = {"facecolor": "none", "edgecolor": edge, "marker": "D", "s": 26, "zorder": 4}
            axes[0].scatter(known["value"], [left.index(claim) for claim in known["claim"]], label=name, **hollow)
        axes[0].set(xlabel="effect (points)", title="retrieval")
        if right:
            ends = (others[["effect", "low", "high"]].sub(others["zero"], axis=0)).abs().max(axis=1)
            widest = ends.groupby([others["claim"], others["metric"]]).transform("max").replace(0, 1)
            _intervals(axes[1], others.assign(scale=widest), right)
            for claim, own in others.groupby("claim"):
                where: Any = {"xycoords": ("axes fraction", "data"), "xytext": (4, 0), "textcoords": "offset points"}
                firsts = own.drop_duplicates("metric").itertuples()
                note = "\n".join(f"{plain(PLAIN.label(row.metric))} {row.effect:.3g}{row.unit}" for row in firsts)
                axes[1].annotate(note, (1, right.index(claim)), va="center", fontsize="x-small", **where)
            axes[1].set(
                xlabel="effect less the claim's bound, each on its own scale",
                title="other measures",
                xlim=(-1.15, 1.15),
            )
        legend(figure, *axes)
    return described(figure, "Forest plot of the effects of claims with their intervals, and of published effects.")


def _limits(rows: pd.DataFrame, further: pd.Series) -> tuple[float, float]:
    """What an axis spans: all marks, and intervals but those more than WIDE times as wide as the marks lie apart."""
    marks = pd.concat([rows["effect"] - rows["zero"], further, pd.Series([0.0])])
    ends = rows[["low", "high"]].sub(rows["zero"], axis=0)
    wide = ends["high"] - ends["low"] > WIDE * (marks.max() - marks.min())
    if not wide.any():
        return -math.inf, math.inf
    shown = pd.concat([marks, ends.loc[~wide, "low"], ends.loc[~wide, "high"]])
    margin = 0.1 * (shown.max() - shown.min())
    return shown.min() - margin, shown.max() + margin


def _intervals(
    axis: Axes, rows: pd.DataFrame, labels: list[str], limits: tuple[float, float] = (-math.inf, math.inf)
) -> None:
    """A mark and an interval per row, those of one claim a little apart around its height; limits: what is shown."""
    held = rows.groupby("claim")["place"].agg(lambda of: [place for place in PLACED if place in set(of)])
    for place, own in rows.groupby("place", sort=False):
        marker, color = PLACED[str(place)]
        axis.scatter([], [], s=30, marker=marker, color=color, label=str(place))
        for row in own.itertuples():
            places = held[row.claim]
            y = labels.index(row.claim) + 0.26 * (places.index(str(place)) - (len(places) - 1) / 2)
            x, low, high = ((value - row.zero) / row.scale for value in (row.effect, row.low, row.high))
            axis.plot(np.clip([low, high], *limits), [y, y], color=color, linewidth=1.6, zorder=2)
            for beyond, end, arrow in ((low < limits[0], limits[0], "<"), (high > limits[1], limits[1], ">")):
                if beyond:
                    axis.scatter(end, y, s=30, marker=arrow, color=color, zorder=3)
            # no interval: single seeds, or the same value in all
            fill = "white" if math.isnan(row.low) else color
            axis.scatter(x, y, s=30, marker=marker, facecolor=fill, edgecolor=color, zorder=3)


def tallies(counts: pd.DataFrame, shades: Mapping[str, str], xlabel: str) -> Figure:
    """How many of each kind: a stacked bar per row of `counts`, a piece per column; numbers stand in the pieces.

    shades: {column: colour}; white pieces are told apart by their hatching.
    """
    check(len(counts) > 0, "counts has no rows")
    check(set(counts) <= set(shades), f"shades has no colour for {[name for name in counts if name not in shades]}")
    hatches = itertools.cycle(("", "///", "..."))
    with panels(1, 0.4 * len(counts) + 1.6, width=6.8, grid=False) as (figure, (axis,)):
        look: dict[str, Any] = {"color": dict(shades), "edgecolor": "0.4", "linewidth": 0.7, "width": 0.8}
        counts.plot.barh(stacked=True, ax=axis, legend=False, **look)
        pieces: Any = axis.containers
        for (name, column), bars in zip(counts.items(), pieces):
            if shades[name].upper() == "#FFFFFF":
                hatch = next(hatches)
                for bar in bars:
                    bar.set_hatch(hatch)
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
            written = [str(count) if count else "" for count in column]
            for text in axis.bar_label(bars, written, label_type="center", fontsize="small"):
                text.set_bbox(box if text.get_text() else None)
        axis.set_yticks(range(len(counts)), [plain(name) for name in counts.index])
        axis.set(xlabel=xlabel, ylabel=counts.index.name or "", xlim=(0, counts.sum(axis=1).max()))
        axis.invert_yaxis()
        legend(figure, axis)
    return described(figure, f"Stacked bars: {xlabel} by kind and {counts.index.name or 'row'}.")


def rankings(data: Mapping[str, pd.DataFrame], metric: str, *, names: Names = PLAIN) -> Figure:
    """A panel per data set, a dot per method with its interval over seeds, the highest mean on top.

    data: {title: columns method, mean, low, high, tuned, untrained}; low and high are NaN where seeds are too few.
    tuned: whether a search chose the method's settings; a hollow dot has default ones. untrained: of the features as
    they are, in words below the panel.
    """
    check(len(data) > 0, "data has no data set")
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
            axis.set(xlabel=f"{names.label(metric)}\nuntrained: {table['untrained'].iloc[0]:.1f}")
            axis.set_title(title, fontsize="small")
        dots: dict[str, Any] = {"s": 34, "edgecolor": "0.2", "linewidth": 1.4}
        axes[0].scatter([], [], facecolor="0.2", label="settings found by an equal search", **dots)
        axes[0].scatter([], [], facecolor="white", label="default settings", **dots)
        legend(figure, axes[0])
    return described(figure, f"Ranking of methods by {metric}, a panel per data set: {listed(data)}.")
