"""What notebook 91 reads from results/: which runs may be compared, who is above whom, when a method has arrived."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from experiments.across import side_by_side
from experiments.analysis import results, stored

STEPS = 100


def table(values: dict[str, list[float]], extra: list[dict] = (), **columns) -> pd.DataFrame:
    """MAP@R and R@1 by method, a value per seed."""
    where = {"paper": "pfml", "experiment": "10_pfml_retrieval", "profile": "small", "dataset": "cub-subset"}
    where |= {"backbone": "squeezenet1_1", "dim": 128, "protocol": "conventional", "step": STEPS} | columns
    rows = [
        {"method": method, "seed": seed, "metric": metric, "value": value}
        for method, scores in values.items()
        for seed, value in enumerate(scores)
        for metric in ("MAP@R", "R@1")
    ]
    return results.frame([where | row for row in [*rows, *extra]])


@pytest.fixture
def there(monkeypatch):
    """Let results/ have these tables of notebook 10."""

    def put(*tables: stored.Stored) -> None:
        monkeypatch.setattr(stored, "stored", lambda name: list(tables) if name.startswith("10") else [])

    return put


def as_stored(rows: pd.DataFrame, stem="10_pfml_retrieval", **parameters) -> stored.Stored:
    return stored.Stored(stem, rows, {"batch_size": 100, "train_from": "fire6"} | parameters)


SEEDS = {"PFML": [20.0, 21, 22, 23, 24], "ProxyAnchor": [22.0, 23, 24, 25, 26], "random head": [10.0] * 5}


def test_a_row_says_on_what_it_rests_and_what_was_not_run_is_named(there):
    there(as_stored(table(SEEDS)))
    text = side_by_side.accuracy(side_by_side.evidence()).data
    assert "**CUB subset, SqueezeNet, 128 dimensions, from fire6 on (small)**" in text
    assert "| ProxyAnchor | 24.0 ± 2.0 | 24.0 ± 2.0 | 14.0 ± 2.0 | 5 | 10,000 | conventional | no |" in text
    assert "Not run here: untrained, ProxyNCA++" in text and "PLM" in text.rpartition("Not run here: ")[2]


def test_the_table_as_its_profile_has_it_comes_first_and_older_code_never(there):
    changed = as_stored(table({name: [1.0] * 5 for name in SEEDS}), "10_pfml_retrieval--lr=1")
    older = dataclasses.replace(as_stored(table({name: [2.0] * 5 for name in SEEDS})), older=True)
    there(older, changed, as_stored(table(SEEDS)))
    rows = side_by_side.evidence()
    assert rows.loc[rows["method"] == "PFML", "MAP@R"].tolist() == SEEDS["PFML"]


def test_only_what_is_run_alike_is_counted_against_each_other(there):
    others = {"MFCont": [30.0] * 5, "C2": [31.0] * 5, "PLM": [32.0] * 5}
    there(as_stored(table(SEEDS | others)))
    rows = side_by_side.evidence()
    (alike,) = side_by_side.compared(rows)
    assert set(alike["method"]) == {"PFML", "ProxyAnchor", "MFCont", "C2"}
    longer = rows.assign(images=rows["images"].where(rows["method"] != "MFCont", 90_000))
    (alike,) = side_by_side.compared(longer)
    assert set(alike["method"]) == {"PFML", "ProxyAnchor", "C2"}
    searched = longer.assign(trials=longer["trials"].where(longer["method"] != "C2", 16))
    assert side_by_side.compared(searched) == [], "two methods are no matrix"


def test_each_method_is_counted_against_those_that_saw_as_many_images(there):
    """ProxyAnchor has runs of both lengths: each group of methods meets its own."""
    more = {"MFCont": [30.0] * 5, "MFCWMS": [29.0] * 5, "ProxyAnchor": [31.0] * 5}
    there(as_stored(table(SEEDS | {"SoftTriple": [21.0] * 5})), as_stored(table(more, step=2 * STEPS), "10--steps=200"))
    rows = side_by_side.evidence()
    first, second = (set(zip(alike["method"], alike["images"])) for alike in side_by_side.compared(rows))
    assert first == {("PFML", 10_000), ("ProxyAnchor", 10_000), ("SoftTriple", 10_000)}
    assert second == {("MFCont", 20_000), ("MFCWMS", 20_000), ("ProxyAnchor", 20_000)}
    text = side_by_side.accuracy(rows).data
    assert text.count("| ProxyAnchor |") == 2 and text.count("| random head |") == 1


def test_shares_of_seeds_are_paired_and_what_is_sure_is_no_chance(there):
    noisy = {"SoftTriple": [0.0, 40, 22.5, 0, 40]}
    there(as_stored(table(SEEDS | noisy)))
    share, sure, seeds = side_by_side.wins(*side_by_side.compared(side_by_side.evidence()), "MAP@R")
    assert seeds == 5
    assert share.loc["ProxyAnchor", "PFML"] == 1 and share.loc["PFML", "ProxyAnchor"] == 0
    assert share.loc["SoftTriple", "PFML"] == pytest.approx(3 / 5) and np.isnan(share.loc["PFML", "PFML"])
    assert sure.loc["ProxyAnchor", "PFML"] and not sure.loc["SoftTriple", "PFML"]


def test_a_method_has_arrived_where_its_curve_passes_95_percent_of_its_gain(there):
    on_the_way = {"setting": "curve", "seed": 0, "selection": "every", "metric": "R@1"}
    curve = [
        on_the_way | {"method": method, "step": step, "value": at}
        for method, values in {"PFML": (10.0, 20.0), "ProxyAnchor": (20.0, 20.0)}.items()
        for step, at in zip((50, 100), values)
    ]
    costs = pd.DataFrame({"method": ["PFML", "ProxyAnchor"], "setting": "", "steps_per_second": [1.0, 2.0]})
    there(dataclasses.replace(as_stored(table({"random head": [10.0]}, curve)), costs=costs))
    arrivals = side_by_side.arrival().set_index("method")
    assert arrivals.loc["PFML", "step"] == 97.5 and arrivals.loc["ProxyAnchor", "step"] == 47.5
    assert arrivals.loc["PFML", "time / ProxyAnchor's"] == round(97.5 / 23.75, 2)
    assert "EL-nivMF" in side_by_side.absent_from(arrivals.reset_index()).data


def test_costs_are_those_of_the_benchmarks():
    costs = side_by_side.costs()
    table = pd.read_csv(side_by_side.performance.folder() / "pfml.csv")
    wanted = table[(table["case"] == "sop") & (table["form"] == "product")].set_index("metric")["value"]
    assert costs.loc["PFML", "time (s)"] == wanted["seconds"]
    assert costs.loc["PFML", "peak memory (MB)"] == wanted["megabytes"]
    assert (costs["measured on"] != "not run").all()
