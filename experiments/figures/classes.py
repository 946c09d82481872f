"""Two methods class by class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.figures.style import PLAIN, Names, check, described, panels, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def against(rates: pd.DataFrame, title: str = "", *, names: Names = PLAIN) -> Figure:
    """R@1 of two methods, a point per test class; the classes that differ most are named.

    rates: a row per class, its first two columns the methods, in percent.
    """
    check(rates.shape[1] >= 2 and len(rates) > 0, f"rates needs two methods and a class, got {rates.shape}")
    mine, other = rates.columns[:2]
    gap = (rates[mine] - rates[other]).sort_values(kind="stable")
    with panels(1, 4.4, width=6.5) as (figure, (axis,)):
        axis.scatter(rates[other], rates[mine], s=22, color=names.color(mine), alpha=0.6, linewidth=0, zorder=3)
        low, high = rates[[mine, other]].min().min(), 102.0
        axis.plot([low, high], [low, high], color="0.5", linewidth=1, zorder=1)
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": "x-small"}
        for label in [*gap.index[:3], *gap.index[::-1][:3]]:
            side, align = (-5, "right") if gap[label] > 0 else (5, "left")
            at = (rates.loc[label, other], rates.loc[label, mine])
            axis.annotate(plain(str(label)[:28]), at, (side, 0), ha=align, **beside)
        room = 0.45 * (high - low)  # for the names
        axis.set(xlim=(low - room, high + room), ylim=(low - 2, high))
        axis.set_xticks([tick for tick in axis.get_xticks() if low - 2 <= tick <= 100])
        axis.set(xlabel=f"{plain(other)}: recall@1 of a class (%)", ylabel=f"{plain(mine)}: recall@1 of a class (%)")
        axis.set_title(title, fontsize="medium")
    return described(figure, f"{title} Recall@1 of {len(gap)} test classes, {mine} against {other}.")
