"""The verdicts of many claims at a glance: a row per claim, a column per place where it was tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.analysis import judging
from experiments.figures.style import described, listed, panels, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHADES = {  # verdict -> its colour, for colour-blind readers; the order is that of figures and counts
    judging.AS_CLAIMED: "#009E73",
    judging.NO_DIFFERENCE: "#F0E442",
    judging.OTHER_WAY: "#D55E00",
    judging.IDENTITY: "#56B4E9",
    judging.COST: "#0072B2",
    judging.FAILURES: "#CC79A7",
    judging.UNCLEAR: "#BBBBBB",
    judging.UNTESTABLE: "#E8E8E8",
    judging.NOT_RUN: "#FFFFFF",
}
MARKS = {  # verdict -> the mark that says it without its colour
    judging.AS_CLAIMED: "+",
    judging.NO_DIFFERENCE: "=",
    judging.OTHER_WAY: "−",
    judging.IDENTITY: "i",
    judging.COST: "c",
    judging.FAILURES: "f",
    judging.UNCLEAR: "?",
    judging.UNTESTABLE: "x",
    judging.NOT_RUN: "·",
}
DARK = (judging.AS_CLAIMED, judging.OTHER_WAY, judging.COST)  # on which a mark is white

ALWAYS = (*judging.OUTCOMES, judging.UNCLEAR, judging.FAILURES, judging.NOT_RUN)  # explained though none may occur


def verdict_matrix(blocks: Mapping[str, pd.DataFrame], columns: int = 3) -> Figure:
    """Blocks side by side, one per title, and behind them what the marks mean.

    blocks: {title: verdicts (claims, places)}, a word of `judging.VERDICTS` in every cell; the index is shown.
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
