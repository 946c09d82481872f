"""Notebook 03: exact equality with a rival that the loss copies, runs that know its bytes, one search and one judge."""

import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from made_for_claims import rows
from tiny import ANCHORS

from experiments.across import your_loss
from experiments.across.your_loss import METRIC, YourLoss, YourLossParams
from experiments.analysis import results
from experiments.analysis.tables import START
from experiments.methods import spec_of
from experiments.pfml.methods import METHODS
from experiments.pfml.retrieval import Retrieval
from experiments.report import searches
from experiments.training import records, runs, search

SHORT = {"steps": 2, "embedding_size": 8, "batch_size": 16, "seeds": 2}
RANGES = ["margin=0:0.4", "alpha=4:64"]


@pytest.fixture
def mine(tmp_path, monkeypatch) -> str:
    module = f"mine_{abs(hash(tmp_path))}"
    (tmp_path / f"{module}.py").write_text(ANCHORS)
    monkeypatch.syspath_prepend(tmp_path)
    yield f"{module}:Anchors"
    sys.modules.pop(module, None)


def params_of(mine: str, profile: str = "quick", **values) -> YourLossParams:
    return YourLoss.configured({"loss": mine, "profile": profile, **values})


def test_a_copy_of_a_rival_differs_from_it_by_nothing(mine):
    params = params_of(mine, **SHORT)
    specs = [spec for spec in your_loss.your_loss(params) if spec.method in ("random head", "ProxyAnchor", "Anchors")]
    table = YourLoss.table(runs.run_all(specs, jobs=1), params)
    values = table[table["setting"] == ""].pivot(
        index=["seed", "metric", "selection"], columns="method", values="value"
    )
    assert values["Anchors"].equals(values["ProxyAnchor"]) and len(values["Anchors"].dropna()) >= 10
    line = your_loss.comparisons(table, params, {}).loc["ProxyAnchor"]
    assert (line["difference"], line["seeds"], line["verdict"]) == (0, 2, "not run")


def test_the_rivals_are_the_runs_of_notebook_10(mine):
    for profile in ("quick", "small"):
        params = params_of(mine, profile)
        rivals = [spec for spec in your_loss.your_loss(params) if spec.method != "Anchors"]
        theirs = Retrieval.specs(Retrieval.configured({"profile": profile}))
        assert all(spec in theirs for spec in rivals) and {spec.seed for spec in rivals} == {*range(params.seeds)}


def test_a_readers_loss_is_never_recorded(mine, tmp_path):
    params = params_of(mine, **SHORT | {"seeds": 1})
    specs = [spec for spec in your_loss.your_loss(params) if spec.loss][-2:]  # a rival, and mine
    record = tmp_path / "record" / "03.jsonl"
    finished = runs.run_all(specs, jobs=1, record=record)
    assert [run.spec.method for run in finished][-1] == "Anchors" and finished[-1].line is None
    assert [line["labels"]["method"] for line in records.lines(record) if "run" in line] == [specs[0].method]


@pytest.mark.parametrize(
    "values, message",
    [
        ({"search": ["temperature=0:1"]}, "has no number 'temperature'; it has margin, alpha"),
        ({"search": ["margin=1:0"]}, "is no range"),
        ({"search": ["margin=0:1:log"]}, "above 0 for log"),
        ({"search": ["margin"]}, "must be NAME=LOW:HIGH"),
        ({"search": ["margin=0:1", "alpha=1:9", "loss_lr=1e-3:1:log", "a=0:1"]}, "3 options at most"),
        ({"batches": "triplets"}, "batches must be 'shuffled', 'pairs' or empty"),
        ({"loss": "torch.nn:ReLU"}, "torch.nn:ReLU cannot be trained with: the loss fails on an ordinary batch"),
    ],
)
def test_bad_parameters_are_named(mine, values, message):
    with pytest.raises(ValueError, match=message):
        YourLoss.configured({"loss": mine} | values)


def asked(params: YourLossParams, monkeypatch) -> tuple:
    seen = []
    with monkeypatch.context() as patched:
        patched.setattr(search, "search", lambda spec, ranges, path, about: seen.append((spec, ranges, about)))
        patched.setattr(your_loss.keys, "identity_of", lambda spec: {"what": {}})  # it would read the images
        your_loss.searched(params)
    return seen[0] if seen else ()


def test_the_search_is_that_of_every_method_and_of_the_rate_of_its_parameters_where_it_has_any(mine, monkeypatch):
    spec, ranges, about = asked(params_of(mine, "small", search=RANGES), monkeypatch)
    (theirs,) = searches.wanted([Retrieval], lambda study: study.configured({"profile": "small"}), ["ProxyAnchor"])
    assert list(ranges.items()) == list(theirs["ranges"].items())
    assert about["conditions"] == theirs["about"]["conditions"]
    assert but_for_the_loss(spec) == but_for_the_loss(theirs["spec"])
    assert spec.loss_options["margin"] == 0.1 and spec.loss_options["alpha"] == 32.0
    assert asked(params_of(mine), monkeypatch) == ()
    with pytest.raises(ValueError, match="lr is searched for every loss at profile small"):
        your_loss.searched(params_of(mine, "small", lr=0.1))
    ranges = asked(params_of(mine, "small", search=["margin=0:0.5", "loss_lr=1e-4:1:log"]), monkeypatch)[1]
    assert list(ranges) == ["lr", "margin", "loss_lr"]
    with pytest.raises(ValueError, match="TripletMarginLoss has no parameters, and so no loss_lr"):
        params_of("pytorch_metric_learning.losses:TripletMarginLoss", "small", search=["loss_lr=1e-4:1:log"])


def test_what_a_search_found_is_taken_as_by_every_method(mine, monkeypatch):
    monkeypatch.setenv("DMLREPRO_RECORD", "results")
    theirs, params = Retrieval.configured({"profile": "small"}), params_of(mine, "small", search=RANGES)
    assert params.searches().keys() == theirs.searches().keys()
    specs = your_loss.your_loss(params, theirs.searches()["ProxyAnchor"])
    (first,) = (spec for spec in specs if spec.method == "Anchors" and spec.seed == 1)
    as_theirs = spec_of(METHODS["ProxyAnchor"], theirs, seed=1)
    assert but_for_the_loss(first) == but_for_the_loss(as_theirs) and first.loss_options["margin"] != 0.1
    assert first.loss_options == {"code": first.loss_options["code"], **as_theirs.loss_options}


def but_for_the_loss(spec) -> dict:
    return spec.as_dict() | {"loss": None, "loss_options": None}


WHERE = {"paper": "together", "experiment": "03_your_loss", "backbone": "squeezenet1_1", "dim": 128, "metric": METRIC}
NOISE = [0.1, -0.2, 0.3, 0.0, -0.1, 0.2, -0.3, 0.15, -0.05, 0.05]
SHAKEN = [0.3, 0.1, -0.2, 0.1, 0.2, -0.1, 0.0, -0.3, 0.1, 0.2]
MEANS = {START: 10.0, "Anchors": 30.0, "ProxyAnchor": 30.0, "Triplet": 27.0, "PFML": 32.0}


def compared(mine: str, trials: dict, own: int, means: dict[str, float] = MEANS, finished=()) -> pd.DataFrame:
    drawn = {method: SHAKEN if method in ("Triplet", "PFML") else NOISE for method in means}
    cells = (rows(method, np.add(mean, drawn[method]), **WHERE) for method, mean in means.items())
    table = results.frame(row for cell in cells for row in cell)
    found = {"trials": [None] * own} if own else None
    return your_loss.comparisons(table, params_of(mine, "small"), trials, found, finished)


def test_verdicts_over_ten_seeds_rest_on_losses_that_were_tuned_alike_and_learned_and_on_no_outdated_runs(mine):
    table = compared(mine, dict.fromkeys(("ProxyAnchor", "Triplet", "PFML"), 16), 16)
    assert dict(table["verdict"]) == {"Triplet": "better", "ProxyAnchor": "equivalent", "PFML": "worse"}
    assert table.loc["ProxyAnchor", ["difference", "low", "high"]].tolist() == [0, 0, 0]
    assert set(table["seeds"]) == {10} and list(table.index) == ["Triplet", "ProxyAnchor", "PFML"]
    table = compared(mine, {"ProxyAnchor": 16, "Triplet": 16}, 16)
    assert table.loc["PFML", "verdict"] == "inconclusive" and "unequal or no tuning" in table.loc["PFML", "reason"]
    assert table.loc["Triplet", "verdict"] == "better"
    assert set(compared(mine, {}, 0)["verdict"]) == {"inconclusive"}
    outdated = compared(mine, {"Triplet": 16}, 16, finished=[SimpleNamespace(stale=True)])
    assert set(outdated["verdict"]) == {"outdated runs"}
    not_learned = compared(mine, {"Triplet": 16}, 16, MEANS | {START: 30.0})
    assert not_learned.loc["Triplet", "verdict"] == "not interpretable"
