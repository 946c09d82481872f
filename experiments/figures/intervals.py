"""Differences with their intervals, a row per candidate: who lies clearly above zero is seen at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.figures.style import PLAIN, WIDTH, Names, check, described, panels, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        axis.set_xlabel(f"difference to {against} (points)")
        axis.grid(False, axis="y")
        axis.set_title(measured)
    told = ", ".join(
        f"{name} {effect:+.1f} ({low:+.1f} to {high:+.1f})" for name, (effect, low, high) in effects.items()
    )
    return described(figure, f"Intervals. {measured}, differences to {against} in points: {told}.")
