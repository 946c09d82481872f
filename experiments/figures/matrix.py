"""The verdicts of many claims at a glance: a square per claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from experiments.analysis.judging import DECIDED, Verdict
from experiments.figures.style import described, listed, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    corner = (x - side / 2, y - side / 2)
    axis.add_patch(Rectangle(corner, side, side, facecolor=SHADES[word], edgecolor="0.6", linewidth=0.6))
    if share:
        low = (x - side / 2, y + side / 2 - share * side)
        axis.add_patch(Rectangle(low, side, share * side, facecolor=SHADES[Verdict.SUPPORTED], linewidth=0))
    mark = axis.text(x, y, MARKS[word], ha="center", va="center", fontweight="bold", fontsize="small")
    mark.set_path_effects([withStroke(linewidth=2, foreground="white", alpha=0.8)])
