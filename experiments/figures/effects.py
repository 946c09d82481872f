"""What is said of claims and methods together: effects with their intervals, how many of each verdict, and ranks on
several data sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.figures.style import PLAIN, Names, check, described, legend, listed, panels, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tallies(counts: pd.DataFrame, shades: Mapping[str, str], xlabel: str) -> Figure:
    """How many of each kind: a stacked bar per row of `counts`, a piece per column; numbers stand in the pieces.

    shades: {column: colour}.
    """
    check(len(counts) > 0, "counts has no rows")
    check(set(counts) <= set(shades), f"shades has no colour for {[name for name in counts if name not in shades]}")
    with panels(1, 0.4 * len(counts) + 1.6, width=6.8, grid=False) as (figure, (axis,)):
        look: dict[str, Any] = {"color": dict(shades), "edgecolor": "0.4", "linewidth": 0.7, "width": 0.8}
        counts.plot.barh(stacked=True, ax=axis, legend=False, **look)
        pieces: Any = axis.containers
        for (_, column), bars in zip(counts.items(), pieces):
            axis.bar_label(bars, [str(count or "") for count in column], label_type="center", fontsize="small")
        axis.set_yticks(range(len(counts)), [plain(name) for name in counts.index])
        axis.set(xlabel=xlabel, ylabel=counts.index.name or "", xlim=(0, counts.sum(axis=1).max()))
        axis.invert_yaxis()
        legend(figure, axis)
    return described(figure, f"Stacked bars: {xlabel} by kind and {counts.index.name or 'row'}.")


def rankings(data: Mapping[str, pd.DataFrame], metric: str, *, names: Names = PLAIN) -> Figure:
    """A panel per data set, a dot per method with its interval over seeds, the highest mean on top.

    data: {title: columns method, mean, low, high, tuned, untrained}; low and high are NaN where seeds are too few.
    tuned: whether a search chose the method's settings; a hollow dot has default ones. untrained: of the
    features before training, in words below the panel and, where it lies among the methods, as a line.
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
