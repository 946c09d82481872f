"""The matrix of verdicts, the forest plot and the rankings: what is drawn, marked and said."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from experiments.analysis.judging import Verdict
from experiments.figures import effects
from experiments.figures.matrix import MARKS, SHADES, verdict_squares


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def texts(axis) -> list[str]:
    return [text.get_text() for text in axis.texts]


def luminance(color: str) -> float:
    return float(np.dot(matplotlib.colors.to_rgb(color), (0.299, 0.587, 0.114)))


def test_every_claim_has_a_square_with_the_mark_of_its_verdict_and_green_for_what_is_supported():
    claims = pd.DataFrame(
        [("one", 1, "supported", 2, 2), ("one", 2, "mixed", 1, 4), ("two", 1, "not interpretable", 3, 4)],
        columns=["paper", "number", "verdict", "k", "n"],
    )
    (axis,) = verdict_squares(claims).axes
    assert texts(axis)[:3] == [MARKS[word] for word in claims["verdict"]]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["one", "two"]
    green = [patch for patch in axis.patches if patch.get_linewidth() == 0]
    assert [patch.get_height() / patch.get_width() for patch in green[:2]] == [1, 0.25]
    assert len(green) == 3, "the third is that of the legend: what is not interpretable counts nothing"
    assert {"supported", "not interpretable"} <= set(texts(axis)) and "measured" not in texts(axis)


def test_verdicts_are_told_apart_in_grey_by_shade_or_mark():
    assert set(SHADES) == set(MARKS) == set(Verdict) and len(set(MARKS.values())) == len(MARKS)
    marked = [word for word in Verdict if word not in (Verdict.NOT_RUN, Verdict.NOT_TESTABLE)]
    light = [luminance(SHADES[word]) for word in marked]
    assert max(light) < luminance(SHADES[Verdict.NOT_RUN]) - 0.05, "what was run stands out from what was not"


def test_rankings_have_the_highest_mean_on_top_and_hollow_dots_where_nothing_was_tuned():
    table = pd.DataFrame(
        {"method": ["A", "B"], "mean": [1.0, 2.0], "low": [0.5, np.nan], "high": [1.5, np.nan], "tuned": [True, False]}
    )
    figure = effects.rankings(
        {"birds": table.assign(untrained=1.25), "cars": table.head(1).assign(untrained=0.5)}, "R@1"
    )
    first = figure.axes[0]
    assert ["dashed" in axis.get_xlabel() for axis in figure.axes[:2]] == [True, False]
    assert [*first.lines[-1].get_xdata()] == [1.25, 1.25]
    assert [label.get_text() for label in first.get_yticklabels()] == ["B", "A"] and first.yaxis_inverted()
    hollow, filled = (dots.get_facecolor()[0] for dots in first.collections[:2])
    assert tuple(hollow) == (1, 1, 1, 1) and tuple(filled) != (1, 1, 1, 1)
    with pytest.raises(ValueError, match="no data set"):
        effects.rankings({}, "R@1")
