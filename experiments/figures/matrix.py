"""The verdicts of many claims at a glance: a row per claim, a column per place where it was tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.analysis.judging import DECIDED, Verdict
from experiments.figures.style import described, listed, panels, plain

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
ALWAYS = (*DECIDED, Verdict.INCONCLUSIVE, Verdict.NOT_INTERPRETABLE, Verdict.NOT_RUN)  # explained though none may occur


def verdict_matrix(blocks: Mapping[str, pd.DataFrame]) -> Figure:
    """Blocks side by side, one per title, and behind them what the marks mean.

    blocks: {title: verdicts (claims, places)}, a word of `judging.Verdict` in every cell; the index is shown.
    """
    tallest = max(len(block) for block in blocks.values())
    occurring = {word for block in blocks.values() for word in block.to_numpy().flat}
    with panels(len(blocks) + 1, 0.19 * tallest + 0.75, 10.5, most=3, grid=False) as (figure, axes):
        for axis, (title, block) in zip(axes, blocks.items()):
            _cells(axis, block)
            places: dict[str, Any] = {"rotation": 50, "ha": "left", "rotation_mode": "anchor", "fontsize": "x-small"}
            axis.set_xticks(axis.get_xticks(), block.columns, **places)
            axis.set_yticks(axis.get_yticks(), [plain(name) for name in block.index], fontsize="x-small")
            axis.tick_params(length=0, pad=3, bottom=False, labelbottom=False, top=False, labeltop=True)
            axis.set_title(title, fontsize="medium", fontweight="bold", loc="left")
        key, words = axes[len(blocks)], [word for word in SHADES if word in occurring.union(ALWAYS)]
        _cells(key, pd.DataFrame(words))
        for y, word in enumerate(words):
            key.text(1.3, y + 0.5, word, va="center", fontsize="small")
        key.text(0, len(words) + 1, "further: other images, or none", va="center", fontsize="small")
        key.set(xlim=(0, 7), ylim=(max(12, len(words) + 2), -1))
        key.axis("off")
    return described(figure, f"Marks of the verdicts of the claims ({listed(blocks)}) by the data they were tested on.")


def _cells(axis: Axes, words: pd.DataFrame) -> None:
    """A cell per verdict, in its colour and with its mark."""
    import seaborn

    ranks = words.map([*SHADES].index)
    how: dict[str, Any] = {"annot_kws": {"fontweight": "bold", "fontsize": "small"}, "fmt": "", "cbar": False}
    how |= {"cmap": seaborn.color_palette([*SHADES.values()], as_cmap=True), "vmin": 0, "vmax": len(SHADES) - 1}
    seaborn.heatmap(ranks, annot=words.map(MARKS.get), ax=axis, linewidths=0.6, linecolor="0.75", **how)
    axis.set(xlabel="", ylabel="")
