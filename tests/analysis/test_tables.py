"""The grammar of results tables on made tables of known effects."""

import math

import numpy as np
import pandas as pd
import pytest
from made_for_claims import hits_of, rows, spread

from experiments.analysis import tables
from experiments.analysis.tables import Cell, Expression


def table(*cells):
    return pd.DataFrame([row for cell in cells for row in cell])


def difference(data, subject, baseline, metric="R@1", relative=False):
    return of(tables.cells_of(tables.final_rows(data)), subject, baseline, metric, relative)


def of(cells, subject, baseline, metric, relative=False):
    return tables.effects(cells, Expression.read(subject), Expression.read(baseline), metric, relative)


def test_differences_are_paired_by_seed_and_a_relative_one_is_the_logarithm_of_a_ratio():
    one = spread(72, seed=2)
    logarithms = difference(table(rows("A", one), rows("B", one / 1.5)), "A", "B", relative=True)
    assert logarithms == pytest.approx([math.log(1.5)] * 5)
    assert np.isnan(difference(table(rows("A", one), rows("B", -one)), "A", "B", relative=True)).all()
    shuffled = rows("B", spread(70, sd=5))[::-1][:-1]  # seed 0 is missing
    assert difference(table(rows("A", spread(71, sd=5)), shuffled), "A", "B") == pytest.approx([1, 1, 1, 1])


def test_a_setting_that_is_not_named_has_its_default_value():
    data = table(rows("A", spread(75)), rows("A", spread(70, seed=1), "label_noise=0.2"), rows("A", [0] * 5, "alpha=1"))
    for subject in ("A", "A;label_noise=0", "A;label_noise=0..0.1", "A;retrieval=cosine"):
        assert difference(data, subject, "A;label_noise=0.2").mean() == pytest.approx(5)
    with pytest.raises(LookupError, match="A;retrieval=euclidean"):
        difference(data, "A", "A;retrieval=euclidean")


def test_a_slope_is_the_fitted_change_over_the_range():
    levels = {0.2: 0.0, 0.3: -1.0, 0.4: -2.0, 0.6: -4.0}
    cells = [rows("PFML", spread(80 + change, seed=7), f"delta_rep={x}") for x, change in levels.items()]
    still = [rows("PFML", [80 / 3] * 5, f"delta_rep={x}") for x in levels]

    def slope(cells, end=0.6):
        data = tables.cells_of(tables.final_rows(table(*cells)))
        return tables.slope(data, Cell.read(f"PFML;delta_rep=0.2..{end}"), "R@1")

    assert slope(cells) == pytest.approx([-4] * 5) and slope(cells[:3], 0.4) == pytest.approx([-2] * 5)
    assert slope(still).tolist() == [0.0] * 5, "not what rounding leaves, which is other on each machine"
    with pytest.raises(tables.MissingRows, match="second level"):
        slope(cells[:1])


def test_resampling_classes_covers_and_pairs_the_classes():
    gain = np.random.default_rng(0).normal(0.05, 0.1, size=200)
    hits = hits_of({"PFML": 0.6 + gain, "CPML": np.full(200, 0.6)})
    cells = tables.resampled_cells(hits)
    draws = of(cells, "PFML", "CPML", "P@1").mean(axis=0)
    assert draws.mean() == pytest.approx(100 * gain.mean(), abs=0.1)
    assert draws.std() == pytest.approx(100 * gain.std() / math.sqrt(200), rel=0.1)
    assert not of(cells, "PFML", "PFML", "R@1").any()


def test_the_step_that_validated_best_is_chosen_and_the_last_where_nothing_validates():
    best = table(rows("A", [75.0], selection="val_best", step=40))
    data = pd.concat([table(rows("A", [70.0]), rows("A", [3.0], metric="W2")), best])
    cells = tables.cells_of(tables.final_rows(data))
    assert cells["A", "R@1"] == {Cell("A"): {0: 75.0}} and cells["A", "W2"] == {Cell("A"): {0: 3.0}}


@pytest.mark.parametrize(
    ("text", "cell", "said"),
    [
        ("PFML", Cell("PFML"), "PFML"),
        ("PFML;alpha=3..6", Cell("PFML", {"alpha": (3.0, 6.0)}), "PFML at alpha = 3 to 6"),
        ("C2;chosen=k-center;M=4", Cell("C2", {"chosen": "k-center", "M": 4.0}), "C2 at chosen = k-center, M = 4"),
        ("A;w=1e-05;C=1000000", Cell("A", {"w": 1e-5, "C": 1e6}), "A at w = 1e-05, C = 1000000"),
        ("PFML;curve", Cell("PFML", {"curve": ""}), "PFML at curve"),
    ],
)
def test_a_cell_is_a_method_and_settings(text, cell, said):
    assert Cell.read(text) == cell and str(cell) == text and cell.said == said
    assert f"{cell.method};{cell.setting}".rstrip(";") == text


def test_an_expression_is_a_difference_of_cells_or_a_constant_and_a_level_the_only_number_of_a_setting():
    gap, bound = Expression.read("A;x=1..2 - B"), Expression.read("0.5")
    assert gap == Expression((Cell("A", {"x": (1.0, 2.0)}), Cell("B"))) and bound == Expression(constant=0.5)
    assert (str(gap), gap.said, gap.methods) == ("A;x=1..2 - B", "A at x = 1 to 2 minus B", {"A", "B"})
    assert (str(bound), bound.said, bound.methods) == ("0.5", "0.5", set())
    assert (gap.is_constant, gap.zero) == (False, 0.0) and (bound.is_constant, bound.zero) == (True, 0.5)
