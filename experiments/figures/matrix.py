"""The verdicts of many claims at a glance: a row per claim, a column per place where it was tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.analysis.judging import DECIDED, Verdict
from experiments.figures.style import described, listed, panels, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHADES: dict[str, str] = {  # verdict -> its colour, for colour-blind readers; the order is that of figures and counts
    Verdict.SUPPORTED: "#009E73",
    Verdict.IN_PART: "#8FD4B9",
    Verdict.MIXED: "#E69F00",
    Verdict.EQUIVALENT: "#F0E442",
    Verdict.CONTRADICTED: "#D55E00",
    Verdict.INCONCLUSIVE: "#BBBBBB",
    Verdict.NOT_INTERPRETABLE: "#CC79A7",
    Verdict.BY_DEFINITION: "#56B4E9",
    Verdict.MEASURED: "#0072B2",
    Verdict.NOT_TESTABLE: "#E8E8E8",
    Verdict.NOT_RUN: "#FFFFFF",
}
MARKS: dict[str, str] = {  # verdict -> the mark that says it without its colour
    Verdict.SUPPORTED: "+",
    Verdict.IN_PART: "(+)",
    Verdict.MIXED: "±",
    Verdict.EQUIVALENT: "=",
    Verdict.CONTRADICTED: "−",
    Verdict.INCONCLUSIVE: "?",
    Verdict.NOT_INTERPRETABLE: "n",
    Verdict.BY_DEFINITION: "d",
    Verdict.MEASURED: "m",
    Verdict.NOT_TESTABLE: "x",
    Verdict.NOT_RUN: "·",
}
DARK = (Verdict.SUPPORTED, Verdict.CONTRADICTED, Verdict.MEASURED)  # on which a mark is white

ALWAYS = (*DECIDED, Verdict.INCONCLUSIVE, Verdict.NOT_INTERPRETABLE, Verdict.NOT_RUN)  # explained though none may occur


def verdict_matrix(blocks: Mapping[str, pd.DataFrame], columns: int = 3) -> Figure:
    """Blocks side by side, one per title, and behind them what the marks mean.

    blocks: {title: verdicts (claims, places)}, a word of `judging.Verdict` in every cell; the index is shown.
    """
    tallest = max(len(block) for block in blocks.values())
    occurring = {word for block in blocks.values() for word in block.to_numpy().flat}
    with panels(len(blocks) + 1, 0.19 * tallest + 0.75, 3.5 * columns, most=columns, grid=False) as (figure, axes):
        for axis, (title, block) in zip(axes, blocks.items()):
            _block(axis, title, block)
        _key(axes[len(blocks)], [word for word in SHADES if word in occurring.union(ALWAYS)])
    return described(figure, f"Marks of the verdicts of the claims ({listed(blocks)}) by the data they were tested on.")


def _block(axis: Axes, title: str, block: pd.DataFrame) -> None:
    for y, row in enumerate(block.to_numpy()):
        for x, word in enumerate(row):
            _cell(axis, x, y, word)
    axis.set(xlim=(0, block.shape[1]), ylim=(len(block), 0))
    places: dict[str, Any] = {"rotation": 50, "ha": "left", "rotation_mode": "anchor", "fontsize": "x-small"}
    axis.set_xticks([x + 0.5 for x in range(block.shape[1])], block.columns, **places)
    axis.set_yticks([y + 0.5 for y in range(len(block))], [plain(name) for name in block.index], fontsize="x-small")
    axis.tick_params(length=0, pad=3, bottom=False, labelbottom=False, top=False, labeltop=True)
    axis.set_title(title, fontsize="medium", fontweight="bold", loc="left")


def _cell(axis: Axes, x: float, y: float, word: str) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((x, y), 1, 1, facecolor=SHADES[word], edgecolor="0.75", linewidth=0.6))
    how: dict[str, Any] = {"color": "white" if word in DARK else "black", "fontweight": "bold", "fontsize": "small"}
    axis.text(x + 0.5, y + 0.52, MARKS[word], ha="center", va="center", **how)


def _key(axis: Axes, words: list[str]) -> None:
    """What shades and marks mean."""
    for y, word in enumerate(words):
        _cell(axis, 0, y * 1.25, word)
        axis.text(1.3, y * 1.25 + 0.52, word, va="center", fontsize="small")
    axis.text(0, len(words) * 1.25 + 0.6, "further: other images, or none", va="center", fontsize="small")
    axis.set(xlim=(0, 7), ylim=(max(12, 1.25 * len(words) + 2), -1))
    axis.axis("off")
