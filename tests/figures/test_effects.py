"""The matrix of verdicts, the forest plot and the rankings: what is drawn, marked and said."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from experiments.analysis.judging import Verdict
from experiments.figures import effects
from experiments.figures.matrix import MARKS, SHADES, verdict_matrix


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def texts(axis) -> list[str]:
    return [text.get_text() for text in axis.texts]


def luminance(color: str) -> float:
    return float(np.dot(matplotlib.colors.to_rgb(color), (0.299, 0.587, 0.114)))


def test_every_cell_of_the_matrix_has_the_mark_of_its_verdict_and_the_key_explains_it():
    block = pd.DataFrame([["supported", "not run"], ["inconclusive", "contradicted"]], ["01 a", "02 b"], ["x", "y"])
    figure = verdict_matrix({"one": block, "two": block.iloc[:1]})
    first, second, key = figure.axes
    assert texts(first) == [MARKS[word] for word in block.to_numpy().flat] and len(texts(second)) == 2
    assert [label.get_text() for label in first.get_yticklabels()] == ["01 a", "02 b"]
    assert {"supported", "not interpretable"} <= set(texts(key)) and "measured" not in texts(key)


def test_verdicts_are_told_apart_in_grey_by_shade_or_mark():
    assert set(SHADES) == set(MARKS) == set(Verdict) and len(set(MARKS.values())) == len(MARKS)
    marked = [word for word in Verdict if word not in (Verdict.NOT_RUN, Verdict.NOT_TESTABLE)]
    light = [luminance(SHADES[word]) for word in marked]
    assert max(light) < luminance(SHADES[Verdict.NOT_RUN]) - 0.05, "what was run stands out from what was not"


ROWS = pd.DataFrame(
    [
        ("01 a", "birds", "R@1", 2.0, 1.0, 3.0, 0.0, ""),
        ("01 a", "cars", "R@1", -1.0, np.nan, np.nan, 0.0, ""),
        ("02 b", "further", "time_ratio", 1.2, 1.1, 1.4, 1.0, ""),
        ("02 b", "birds", "W2", 30.0, 20.0, 40.0, 0.0, "%"),
    ],
    columns=["claim", "place", "metric", "effect", "low", "high", "zero", "unit"],
)
PUBLISHED = pd.DataFrame({"claim": ["01 a", "03 c"], "value": [5.0, -2.0], "alike": [True, False]})


def test_the_forest_has_a_mark_per_effect_a_diamond_per_published_one_and_scales_the_others():
    figure = effects.forest(ROWS, PUBLISHED)
    points, others = figure.axes
    offsets = np.concatenate([collection.get_offsets() for collection in points.collections])
    assert sorted(offsets[:, 0]) == [-2, -1, 2, 5]
    assert [label.get_text() for label in points.get_yticklabels()] == ["01 a", "03 c"]
    ends = [line.get_xdata() for line in others.lines if len(set(line.get_ydata())) == 1]
    assert np.allclose(ends, [[0.25, 1.0], [0.5, 1.0]]), "of 0.1 to 0.4 beyond one, in units of 0.4; of 20 to 40 %"
    assert [note.get_text() for note in others.texts] == ["time ratio 1.2\nW2 30%"]


def test_an_interval_that_would_squeeze_the_others_is_cut_with_arrows():
    points = effects.forest(pd.concat([ROWS, ROWS.head(1).assign(low=-90.0, high=95.0)]), PUBLISHED).axes[0]
    low, high = points.get_xlim()
    assert -10 < low < -2 and 5 < high < 15
    lines = [line.get_xdata() for line in points.lines if len(set(line.get_ydata())) == 1]
    assert min(map(min, lines)) > -10 and max(map(max, lines)) < 15
    offsets = np.concatenate([collection.get_offsets() for collection in points.collections])
    assert {-2, -1, 2, 5} <= set(offsets[:, 0])


def test_a_forest_of_published_effects_alone_is_drawn_and_of_nothing_refused():
    assert len(effects.forest(ROWS.head(0), PUBLISHED).axes) == 1
    with pytest.raises(ValueError, match="nothing was measured and nothing published"):
        effects.forest(ROWS.head(0), PUBLISHED.head(0))


def test_rankings_have_the_highest_mean_on_top_and_hollow_dots_where_nothing_was_tuned():
    table = pd.DataFrame(
        {"method": ["A", "B"], "mean": [1.0, 2.0], "low": [0.5, np.nan], "high": [1.5, np.nan], "tuned": [True, False]}
    ).assign(untrained=0.5)
    figure = effects.rankings({"birds": table, "cars": table.head(1)}, "R@1")
    first = figure.axes[0]
    assert [label.get_text() for label in first.get_yticklabels()] == ["B", "A"] and first.yaxis_inverted()
    hollow, filled = (dots.get_facecolor()[0] for dots in first.collections[:2])
    assert tuple(hollow) == (1, 1, 1, 1) and tuple(filled) != (1, 1, 1, 1)
    with pytest.raises(ValueError, match="no data set"):
        effects.rankings({}, "R@1")
