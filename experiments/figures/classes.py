"""Two methods class by class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.figures.style import PLAIN, Names, check, described, panels, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NAMED = 3  # classes on either side that are written out


def against(rates: pd.DataFrame, title: str = "", *, names: Names = PLAIN) -> Figure:
    """R@1 of two methods, a point per test class; the classes that differ most are named.

    rates: a row per class, its first two columns the methods, in percent.
    """
    check(rates.shape[1] >= 2 and len(rates) > 0, f"rates needs two methods and a class, got {rates.shape}")
    mine, other = rates.columns[:2]
    gap = (rates[mine] - rates[other]).sort_values(kind="stable")
    with panels(1, 4.4, width=6.5) as (figure, (axis,)):
        axis.scatter(rates[other], rates[mine], s=22, color=names.color(mine), alpha=0.6, linewidth=0, zorder=3)
        low, high = min(rates[mine].min(), rates[other].min()), 102.0
        axis.plot([low, high], [low, high], color="0.5", linewidth=1, zorder=1)
        for label in [*gap.index[:NAMED], *gap.index[::-1][:NAMED]]:
            above = gap[label] > 0
            axis.annotate(
                plain(str(label)[:28]),
                (rates.loc[label, other], rates.loc[label, mine]),
                xytext=(-5 if above else 5, 0),
                textcoords="offset points",
                ha="right" if above else "left",
                va="center",
                fontsize="x-small",
            )
        room = 0.45 * (high - low)  # for the names
        axis.set(xlim=(low - room, high + room), ylim=(low - 2, high))
        axis.set_xticks([tick for tick in axis.get_xticks() if low - 2 <= tick <= 100])
        axis.set(xlabel=f"{plain(other)}: recall@1 of a class (%)", ylabel=f"{plain(mine)}: recall@1 of a class (%)")
        axis.set_title(title, fontsize="medium")
    ends = [*gap.index[::-1][:NAMED], *gap.index[:NAMED]]
    told = ", ".join(f"{label} {gap[label]:+.0f}" for label in ends)
    above, below = int((gap > 0).sum()), int((gap < 0).sum())
    text = f"Recall@1 of {len(gap)} test classes, {mine} against {other}: higher in {above}, lower in {below}. {told}."
    return described(figure, f"{title} {text}".strip())
