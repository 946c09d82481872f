"""A loss of one's own on the bench: exact equality with a rival that it copies, keys by its bytes, going on."""

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from experiments import cli
from experiments.across import your_loss
from experiments.across.your_loss import METRIC, Rivals, YourLossParams
from experiments.analysis import results, saving, stored
from experiments.analysis.claims import START
from experiments.files import repository_root
from experiments.methods import pick, runs_of, spec_of
from experiments.pfml.methods import METHODS
from experiments.pfml.retrieval import PfmlRetrievalParams, Retrieval
from experiments.report import bench, searches
from experiments.studies import histories_apart, with_histories
from experiments.training import runs, search

ANCHORS = """
from pytorch_metric_learning.losses import ProxyAnchorLoss
from torch import nn

class Anchors(nn.Module):
    def __init__(self, num_classes, embedding_size, margin=0.1, alpha=32.0):
        super().__init__()
        self.loss = ProxyAnchorLoss(num_classes, embedding_size, margin=margin, alpha=alpha)

    def forward(self, embeddings, labels):
        return self.loss(embeddings, labels)
"""
SHORT = {"steps": 2, "embedding_size": 8, "batch_size": 16, "seeds": 2}


@pytest.fixture
def mine(tmp_path) -> str:
    (tmp_path / "mine.py").write_text(ANCHORS)
    return f"{tmp_path / 'mine.py'}:Anchors"


@pytest.fixture
def rivals_on_record(tmp_path, monkeypatch):
    """The table of notebook 10 with two methods, trained as briefly, in a folder of results of the test."""
    params = PfmlRetrievalParams.from_values(SHORT | {"small_dim": 0, "mlrc_steps": 0})
    finished = runs.run_all(with_histories(runs_of(pick(METHODS, ["ProxyAnchor", "Triplet"]), params)))
    saving.save(histories_apart(results.tidy(finished, params)), params, runs=finished)
    monkeypatch.setattr(stored, "repository_root", lambda: tmp_path)


def arguments(mine: str) -> list[str]:
    return ["bench", mine, *(word for name, value in SHORT.items() for word in ("-p", name, str(value)))]


def test_a_copy_of_a_rival_differs_from_it_by_nothing(mine, rivals_on_record, tmp_path, capsys):
    assert cli.main(arguments(mine)) == 0
    printed = capsys.readouterr().out
    path = next((tmp_path / "results" / "quick").glob("Anchors-*.md"))
    assert f"the page: {path}" in printed and "NOT MET" not in printed
    text = path.read_text(encoding="utf8")
    (line,) = [line for line in text.splitlines() if line.startswith("| ProxyAnchor |") and "single seeds" in line]
    assert "| +0.00 | single seeds +0 and +0 | 2 | not run |" in line
    assert "## The nearest rival: ProxyAnchor" in text and "## What a step costs" in text
    pictures = {picture.name for picture in path.parent.glob("*.png")}
    assert pictures and all(f"]({name})" in text for name in pictures)
    assert "Of 2 seeds are on record: PFML 0" in text
    table = saving.read(path.with_suffix(".csv"))
    theirs = saving.read(tmp_path / "results" / "quick" / f"10_pfml_retrieval--{_changes()}.csv")
    one, other = (
        rows[(rows["method"] == name) & (rows["setting"] == "")].set_index(["seed", "metric", "selection"])["value"]
        for rows, name in ((table, "Anchors"), (theirs, "ProxyAnchor"))
    )
    assert one.sort_index().equals(other.sort_index()) and len(one) >= 10


def _changes() -> str:
    stem = PfmlRetrievalParams.from_values(SHORT | {"small_dim": 0, "mlrc_steps": 0}).stem
    return stem.partition("--")[2]


def test_what_was_finished_before_a_kill_is_not_trained_again(mine, tmp_path):
    folders = {"DMLREPRO_CACHE": str(tmp_path / "cache"), "DMLREPRO_RESULTS": str(tmp_path / "results")}
    command = [sys.executable, "-m", "experiments", *arguments(mine), "--jobs", "1"]
    environment = os.environ | folders | {"PYTHONPATH": str(repository_root())}
    begun = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 500
    while not (first := _runs_on_record(tmp_path)) and begun.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    first = _runs_on_record(tmp_path)
    assert 0 < len(first) < 6, "killed before the first run or after the last"
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert _runs_on_record(tmp_path)[: len(first)] == first
    assert len(_runs_on_record(tmp_path)) == 6


def _runs_on_record(tmp_path) -> list[str]:
    """Lines of finished runs, of two seeds of the features, the start and the loss."""
    text = "".join(path.read_text() for path in tmp_path.glob("results/quick/runs/*.jsonl"))
    return [line for line in text.splitlines() if '"run":' in line and line.endswith("}")]


def test_a_changed_byte_has_files_of_its_own(mine, tmp_path):
    def place() -> str:
        return saving.table_path(bench.params_of(mine)).name

    first = place()
    (tmp_path / "mine.py").write_text(ANCHORS + "\n")
    assert place() != first and place().startswith("Anchors-")


def test_what_is_the_readers_lies_apart(mine, monkeypatch):
    monkeypatch.delenv("DMLREPRO_RESULTS")
    own = repository_root() / "results" / "own"
    assert saving.table_path(bench.params_of(mine)).parent == own / "quick"
    assert saving.table_path(YourLossParams.from_values({"profile": "small"})).parent == own / "small"
    assert saving.table_path(YourLossParams.from_values({})).parent == repository_root() / "results" / "quick"


def test_the_profile_is_the_first_that_has_the_data_set(mine):
    assert bench.params_of(mine).profile == "quick"
    assert bench.params_of(mine, dataset="cars-subset").profile == "small"
    assert bench.params_of(mine, "paper", "cub").profile == "paper"


def test_a_loss_that_cannot_be_trained_with_is_refused(tmp_path, capsys):
    text = ANCHORS.replace("return self.loss(embeddings, labels)", "return embeddings @ embeddings.T")
    (tmp_path / "mine.py").write_text(text)
    assert cli.main(["bench", f"{tmp_path / 'mine.py'}:Anchors"]) == 2
    assert "usual batch: raises TypeError: a loss gives a scalar tensor" in capsys.readouterr().err


@pytest.mark.parametrize(
    "values, message",
    [
        ({"search": ["temperature=0:1"]}, "has no option 'temperature'; it has margin, alpha"),
        ({"search": ["margin=1:0"]}, "is no range"),
        ({"search": ["margin=0:1:log"]}, "above 0 for log"),
        ({"search": ["margin"]}, "must be NAME=LOW:HIGH"),
        ({"search": ["margin=0:1", "alpha=1:9", "loss_lr=1e-3:1:log", "a=0:1"]}, "3 options at most"),
        ({"batches": "triplets"}, "batches must be 'shuffled', 'pairs' or empty"),
    ],
)
def test_bad_parameters_are_named(mine, values, message):
    with pytest.raises(ValueError, match=message):
        bench.params_of(mine, **values)


# --- the same search for all ------------------------------------------------------------------------------------------

RANGES = ["margin=0:0.4", "alpha=4:64"]


def test_the_search_is_that_of_every_method(mine):
    asked = your_loss.searched(bench.params_of(mine, "small", search=RANGES))
    (theirs,) = searches.wanted([Retrieval], lambda cls: cls.from_values({"profile": "small"}), ["ProxyAnchor"])
    assert list(asked["ranges"].items()) == list(theirs.ranges.items())
    assert asked["about"]["conditions"] == theirs.about["conditions"]
    assert _but_for_the_loss(asked["spec"]) == _but_for_the_loss(theirs.spec)
    assert asked["spec"].loss_options["margin"] == 0.1 and asked["spec"].loss_options["alpha"] == 32.0
    assert your_loss.searched(bench.params_of(mine)) is None


def test_the_command_takes_parameters_as_the_others_do(mine, monkeypatch, capsys):
    monkeypatch.setattr(bench, "checked", lambda params: [f"{params.profile} {params.dataset} {params.seeds}"])
    monkeypatch.setattr(bench, "page", lambda *_: ("page", []))
    assert cli.main(["bench", mine, "-p", "profile", "small", "-p", "seeds", "3"]) == 0
    assert capsys.readouterr().out.startswith("small cub-subset 3\n")


def test_the_rate_of_its_parameters_is_searched_where_it_has_any(mine):
    asked = your_loss.searched(bench.params_of(mine, "small", search=["margin=0:0.5", "loss_lr=1e-4:1:log"]))
    assert list(asked["ranges"]) == ["lr", "margin", "loss_lr"]
    with pytest.raises(ValueError, match="TripletMarginLoss has no parameters, and so no loss_lr"):
        bench.params_of("pytorch_metric_learning.losses:TripletMarginLoss", "small", search=["loss_lr=1e-4:1:log"])


def test_what_a_search_found_is_taken_as_by_every_method(mine, monkeypatch):
    monkeypatch.setenv("DMLREPRO_RECORD", "results")
    theirs = PfmlRetrievalParams.from_values({"profile": "small"})
    their_search = theirs.searches()["ProxyAnchor"]
    mine_at = your_loss.your_loss(bench.params_of(mine, "small", search=RANGES), their_search)
    first = next(spec for spec in mine_at if spec.loss and spec.seed == 1)
    as_theirs = spec_of(METHODS["ProxyAnchor"], theirs, seed=1)
    assert _but_for_the_loss(first) == _but_for_the_loss(as_theirs)
    options = {name: value for name, value in first.loss_options.items() if name != "code"}
    assert options == dict(as_theirs.loss_options) and options["margin"] != 0.1


def _but_for_the_loss(spec) -> dict:
    return spec.as_dict() | {"loss": None, "loss_options": None}


def test_a_search_goes_on_where_it_was_interrupted(mine, tmp_path, monkeypatch):
    scores = iter([0.2, 0.3, KeyboardInterrupt()])

    def score(models):
        value = next(scores)
        if isinstance(value, KeyboardInterrupt):
            raise value
        return [value for _ in models]

    monkeypatch.setattr(search, "scores_of", score)
    monkeypatch.setattr(search.keys, "identity_of", lambda spec: {"what": {}})  # it would read the images
    params = bench.params_of(mine, "small", search=RANGES)
    with pytest.raises(KeyboardInterrupt):
        bench.searched(params)
    unfinished = search.unfinished_of(saving.table_path(params).with_suffix(".search.json"))
    assert len(json.loads(unfinished.read_text())["trials"]) == 2
    scores = iter([0.1] * (search.RUNS - 2))
    resumed = bench.searched(params)
    assert [sum(trial["scores"][:1]) for trial in resumed["trials"]][:3] == [0.2, 0.3, 0.1]
    assert bench.trials_of(params) == search.TRIALS
    assert next(scores, None) is None


# --- verdicts ---------------------------------------------------------------------------------------------------------

WHERE = {"paper": "pfml", "experiment": "10_pfml_retrieval", "profile": "small", "dataset": "cub-subset"}
WHERE |= {"backbone": "squeezenet1_1", "dim": 128, "protocol": "conventional", "metric": METRIC}
NOISE = [0.1, -0.2, 0.3, 0.0, -0.1, 0.2, -0.3, 0.15, -0.05, 0.05]


def rows_of(method: str, mean: float, noise=NOISE) -> list[dict]:
    return [WHERE | {"method": method, "seed": seed, "value": mean + deviation} for seed, deviation in enumerate(noise)]


def compared(mine: str, trials: dict, own: int, **how) -> pd.DataFrame:
    params = bench.params_of(mine, "small")
    table = results.frame([*rows_of(START, 10.0), *rows_of("Anchors", 30.0)]).assign(experiment=params.notebook)
    theirs = {"ProxyAnchor": 30.0, "Triplet": 27.0, "PFML": 32.0}
    shaken = [0.3, 0.1, -0.2, 0.1, 0.2, -0.1, 0.0, -0.3, 0.1, 0.2]
    rows = [row for name, mean in theirs.items() for row in rows_of(name, mean, NOISE if mean == 30 else shaken)]
    others = Rivals(PfmlRetrievalParams.from_values({"profile": "small"}), results.frame(rows), (), trials, (), **how)
    return your_loss.comparisons(your_loss.joined(table.assign(paper="together"), others), params, others, own)


def test_verdicts_over_ten_seeds(mine):
    table = compared(mine, dict.fromkeys(("ProxyAnchor", "Triplet", "PFML"), 16), 16)
    assert dict(table["verdict"]) == {"Triplet": "better", "ProxyAnchor": "equivalent", "PFML": "worse"}
    assert table.loc["ProxyAnchor", ["difference", "95 % interval"]].tolist() == ["+0.00", "+0.00 to +0.00"]
    assert set(table["n"]) == {10}


def test_losses_that_were_not_tuned_alike_are_not_compared(mine):
    table = compared(mine, {"ProxyAnchor": 16, "Triplet": 16}, 16)
    assert table.loc["PFML", "verdict"] == "inconclusive" and "not tuned alike" in table.loc["PFML", "why"]
    assert table.loc["Triplet", "verdict"] == "better"
    assert set(compared(mine, {}, 0)["verdict"]) == {"inconclusive"}


def test_no_verdict_rests_on_rivals_of_older_code(mine):
    assert set(compared(mine, {"Triplet": 16}, 16, older=True)["verdict"]) == {"older code"}


def test_a_loss_that_has_not_learned_is_said_to_and_gets_no_verdict_for_it(mine):
    params = bench.params_of(mine, "small")
    rows = {mean: results.frame([*rows_of(START, 30.0), *rows_of("Anchors", mean)]) for mean in (30.0, 31.0)}
    assert your_loss.premise(rows[31.0], params).startswith("Anchors has learned: 31.0 against 30.0 MAP@R")
    assert "has NOT been shown to learn" in your_loss.premise(rows[30.0], params)
    assert "has NOT been shown to learn" in your_loss.premise(rows[30.0][rows[30.0]["seed"] < 2], params)


def test_a_record_without_rivals_is_said(mine, monkeypatch):
    monkeypatch.setattr(your_loss.runs, "on_record", lambda specs, file: [False] * len(specs))  # birds are not here
    params = bench.params_of(mine, "small")
    others = your_loss.rivals(params)
    assert others.methods == []
    missing = bench.said_missing(params, others)
    assert "No rival is on record" in missing[0] and "PFML 0" in missing[1] and "No search is on record" in missing[2]
