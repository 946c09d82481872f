"""Notebooks 32 and 39: when training would have ended, what the evaluations say, and that their claims find rows."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from tiny import TINY

from experiments.analysis import judging, statistics
from experiments.meanfield import conventional, growth
from experiments.meanfield.claims import TESTS
from experiments.report import catalogue
from experiments.training import batches, runs


@pytest.mark.parametrize(
    ("values", "patience", "expected"),
    [
        ([1, 2, 3, 4], 1, 4),
        ([1, 2, 2, 3], 1, 3),  # one that is as good is no better
        ([3, 1, 4, 1, 1], 1, 2),
        ([3, 1, 4, 1, 1], 2, 5),
        ([3, 1], 5, 2),
    ],
)
def test_training_ends_once_patience_is_spent(values, patience, expected):
    assert conventional.stopped_at(values, patience) == expected


def finished(values, setting=""):
    """A run with these MAP@R after its first, second, ... epoch."""
    per_epoch, epochs = len(batches.load_dataset(TINY).indices("train")) // TINY.batch_size, len(values)
    looks = {"keep_history": True, "eval_every_epochs": 1.0}
    spec = TINY.replace(method="MFCont", setting=setting, steps=None, epochs=epochs, **looks)
    rows = [("every", per_epoch * number, "MAP@R", value) for number, value in enumerate(values, 1)]
    rows += [("last", per_epoch * epochs, "MAP@R", values[-1]), ("test_best", 1, "MAP@R", max(values))]
    named = [dict(zip(("selection", "step", "metric", "value"), row)) for row in rows]
    return runs.RunResult(spec, "", "", None, "glyphs", named, {}, {})


def test_a_table_has_the_epochs_that_a_search_chose_and_the_whole_curve():
    chosen = {"MFCont": {"found": {"options": {"epochs": 2}}}}
    params = SimpleNamespace(paper="meanfield", notebook="32", profile="small", searches=lambda: chosen)
    for params.rates, last in (((1e-4,), 30), ((), 20)):
        table = conventional.conventional_table([finished([0.1, 0.3, 0.4, 0.2])], params)
        values = table[table["setting"] == ""].set_index(["metric", "selection"])["value"]
        assert values["MAP@R", "last"] == last and values["best_epoch", "last"] == 3
        assert [*values["MAP@R", "every"]] == pytest.approx([10, 30, 40, 20])


def test_the_best_epoch_the_fall_after_it_and_both_ways_to_stop():
    measures = conventional.curve_measures(finished([0.1, 0.3, 0.2, 0.5, 0.4, 0.4, 0.35, 0.3, 0.3]))
    assert measures[""]["best_epoch"] == 4
    assert measures[""]["slope_after_best"] == pytest.approx(100 * (0.3 - 0.5) / 5)
    assert measures["patience=1"] == {"best_epoch": 2, conventional.AT_STOP: 0.3}
    assert measures["patience=5"] == {"best_epoch": 4, conventional.AT_STOP: 0.5}
    rising = conventional.curve_measures(finished([0.1, 0.2], setting="alpha=1"))
    assert rising["alpha=1"] == {"best_epoch": 2, "slope_after_best": 0}
    assert set(rising) == {"alpha=1", "alpha=1;patience=5", "alpha=1;patience=1"}


def test_learning_curves_are_means_over_seeds_at_each_evaluation():
    evaluations = {("", 0): (10.0, 40.0), ("", 1): (20.0, 20.0), ("alpha=1", 0): (30.0, 50.0)}
    rows = [
        {"method": "MFCont", "setting": setting, "seed": seed, "step": 49 * number, "value": value}
        for (setting, seed), values in evaluations.items()
        for number, value in enumerate(values, 1)
    ]
    table = pd.DataFrame(rows).assign(metric="MAP@R", selection="every", dataset="cub-subset")
    figure = conventional.learning_curves(pd.concat([table, table.assign(selection="last", value=0.0)]))
    (axis,), legend = figure.axes, figure.legends or [figure.axes[0].get_legend()]
    curves = {tuple(line.get_ydata()): tuple(line.get_xdata()) for line in axis.lines if len(line.get_xdata()) == 2}
    assert curves == {(15, 30): (1, 2), (30, 50): (1, 2)}
    band = axis.collections[0].get_paths()[0].vertices
    first = band[band[:, 0] == 1][:, 1]
    np.testing.assert_allclose((first.min(), first.max()), statistics.t_interval([10.0, 20.0]))
    assert legend[0].get_title().get_text() == "mean, 95 % t interval, n = 2 seeds" and axis.get_title() == "CUB subset"


def test_exponents_are_slopes_and_the_claim_is_judged():
    powers = {"Cont": 2.0, "CWMS": 1.9, "MFCont": 1.0, "MFCWMS": 0.8}
    costs = pd.DataFrame(
        {"method": name, "samples": n, "repetition": r, "seconds": 1e-6 * (1 + 0.01 * r) * max(n, 2000) ** power}
        for name, power in powers.items()
        for n in (1000, 4000, 8000, 16000)
        for r in range(5)
    )
    exponents = growth.exponents(costs).groupby("method")["exponent"].mean()
    assert {name: exponents[name] for name in powers} == pytest.approx(powers)
    params = catalogue.find("32").configured({})
    table = conventional.growth_rows(costs.assign(seconds=costs["seconds"] * costs["samples"] ** 1e-4), params)
    judged = judging.judge(table, TESTS, ["meanfield-15"])
    assert {"Cont vs 1.7", "MFCont vs 1.3", "MFCWMS vs CWMS"} <= set(judged.comparisons["comparison"])
    assert (judged.verdicts["k"].item(), judged.verdicts["verdict"].item()) == (6, judging.Verdict.MEASURED)


def test_growth_is_measured_of_all_four_losses_and_has_no_exponent_at_sizes_at_which_a_call_itself_costs():
    costs = growth.measure((20, 40), num_classes=4, dim=8, repetitions=2)
    assert (costs["seconds"] > 0).all() and len(costs) == 4 * 2 * 2
    assert set(costs["method"]) == set(growth.LOSSES)
    costs = pd.DataFrame({"method": "Cont", "samples": [250, 500, 4000], "repetition": 0, "seconds": [1.0, 1.1, 9.0]})
    assert growth.exponents(costs).empty
    assert conventional.growth_rows(costs, catalogue.find("32").configured({})).empty
