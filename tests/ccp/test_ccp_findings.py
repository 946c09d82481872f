"""Notebooks 40 to 48: what no claim says is said with the table's numbers, and only where it is so."""

import made_findings
import numpy as np
import pandas as pd
import pytest

from experiments.analysis import results
from experiments.ccp import retrieval

OURS, SINGLE = "C2-CCP-L", "C2-Proxy"


def scores(**by_cell) -> dict[str, dict[str, float]]:
    return {cell: {"MAP@R": value} for cell, value in by_cell.items()}


@pytest.mark.parametrize(
    ("notebook", "cell"),
    [
        ("40", OURS),
        ("42", f"{OURS};projection=0.0002"),
        ("43", f"{OURS};M=8;pool=12"),
        ("44", OURS),
        ("48", OURS),
    ],
)
def test_runs_of_too_few_problems_are_said_to_say_nothing(notebook, cell):
    assert made_findings.said(notebook, {cell: {"problems": 3.0}}) == []
    (sentence,) = made_findings.said(notebook, {cell: {"problems": 2.0}})
    assert sentence.startswith("CCP did not alternate") and "2.0 problems" in sentence


def test_parts_that_are_left_out_are_told_by_their_differences():
    left_out = {"penalty=none": 18, "picks=random": 21, "start=best": 20.5}
    cells = {f"{OURS};{setting}": value for setting, value in left_out.items()} | {OURS: 20, SINGLE: 19}
    (sentence,) = made_findings.said("44", scores(**cells))
    assert "without the penalty -2.0" in sentence and "without the choice of samples +1.0" in sentence
    assert "without the last weights +0.5" in sentence and "the same runs" not in sentence
    (sentence,) = made_findings.said("44", scores(**cells | {f"{OURS};start=best": 20}))
    assert "the last weights +" not in sentence
    assert sentence.endswith("makes the same runs: a problem ends at its only evaluation.")


def test_what_ccp_adds_to_each_loss_is_said_at_once():
    losses = {"C1": 1.0, "C2": 2.0, "MS": -0.5, "Triplet-all": 0.0}
    cells = dict.fromkeys(losses, 20.0) | {f"{name}-CCP-L": 20 + gain for name, gain in losses.items()}
    (sentence,) = made_findings.said("41", scores(**cells))
    assert sentence.startswith("What CCP adds to the MAP@R of the same loss: C1 (+1.0")
    assert ", MS (-0.5" in sentence
    assert made_findings.said("41", scores(**{name: cells[name] for name in cells if name != "MS"})) == []


def test_a_memory_that_had_not_begun_is_no_rival():
    cells = {"C2-XBM-L": 20.0, "C2-XBM-S": 20.0}
    assert "before its memory begins" in " ".join(made_findings.said("41", scores(**cells)))
    assert made_findings.said("41", scores(**cells | {"C2-XBM-S": 19.0})) == []


def test_lemma_1_is_told_by_its_two_constants():
    cells = {
        f"Lemma 1;constant={name}": {"Lipschitz/constant": value}
        for name, value in (("printed", 1.4), ("rows and columns", 0.8))
    }
    (sentence,) = made_findings.said("48", cells)
    assert "up to 1.40 times the printed bound, and at most 0.80 times" in sentence


def spreads(values: dict[str, np.ndarray]) -> pd.Series:
    """`relative_spread` by metric, of scores (methods, seeds), as jackknife pseudo-values by seed."""
    where = {"paper": "ccp", "experiment": "41_ccp_retrieval", "profile": "small", "dataset": "cub-subset"}
    rows = [
        where | {"method": f"M{method}", "seed": seed, "metric": metric, "value": value}
        for metric, methods in values.items()
        for method, seeds in enumerate(methods)
        for seed, value in enumerate(seeds)
    ]
    table = retrieval.relative_spread(results.frame(rows), retrieval.Retrieval.configured({}))
    assert set(table["dataset"]) <= {"cub-subset"}, "it is about the images that the methods were trained on"
    return table.set_index(["setting", "seed"])["value"]


def test_the_spread_between_methods_is_measured_by_that_within():
    """A metric that is another times a constant tells methods apart as well; noise within a method takes from it."""
    generator = np.random.default_rng(0)
    scores = 20 + np.arange(8)[:, None] + 0.3 * generator.standard_normal((8, 5))
    spread = spreads({"P@1": scores, "MAP@R": scores / 2})
    assert spread["of=MAP@R"].to_numpy() == pytest.approx(spread["of=P@1"].to_numpy())
    noisy = scores + 2.0 * generator.standard_normal(scores.shape)
    spread = np.log(spreads({"P@1": scores, "MAP@R": noisy}))
    assert (spread["of=MAP@R"].mean() - spread["of=P@1"].mean()) < -0.5
    literal = scores.mean(axis=1).std(ddof=1) / np.sqrt(scores.var(axis=1, ddof=1).mean())
    assert np.exp(spread["of=P@1"].mean()) == pytest.approx(literal, rel=0.2), (
        "the jackknife's mean is near the estimate"
    )
    assert spreads({"P@1": scores[:, :2], "MAP@R": scores[:, :2]}).empty


def test_the_page_shows_the_spread_or_says_how_many_seeds_it_lacks():
    shown = pd.DataFrame({"metric": "relative_spread", "setting": "of=P@1", "seed": [0, 1, 2], "value": [1.0, 2, 4]})
    assert retrieval.spreads(shown)["of=P@1"].tolist() == [1, 2, 4]
    few = pd.DataFrame({"metric": "P@1", "setting": "", "seed": [0, 1], "value": [50.0, 60]})
    assert retrieval.spreads(few).startswith("2 of the three seeds needed")
