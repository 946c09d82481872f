"""The search: it finds the best, continues where it was stopped, and never looks at the test set."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from tiny import TINY as UNNAMED

from experiments.methods import BASELINES, searched_ranges
from experiments.report import searches
from experiments.training import keys, protocols, runs, search
from experiments.training.search import Range
from experiments.training.spec import RunSpec

TINY = UNNAMED.replace(method="ProxyNCA++", loss_lr={"*": 0.1}, lr=1e-3)
RANGES = searched_ranges(BASELINES["ProxyNCA++"])


def quality(models: list[RunSpec]) -> list[dict[str, float]]:
    """A smooth score with its maximum at temperature 0.3 and learning rate 2e-4; folds differ a little."""
    scores = []
    for model in models:
        assert (model.seed, model.folds, model.threads) == (protocols.TUNING_SEED, 3, 1)
        temperature, rate = torch.tensor([model.loss_options["temperature"] / 0.3, model.lr / 2e-4]).log10().tolist()
        score = round(0.9 - temperature**2 / 4 - rate**2 / 8 - 0.01 * model.fold, 6)
        scores.append({"MAP@R": score, "R@1": score / 2})
    return scores


@pytest.fixture
def scored(monkeypatch, shared_cache):
    """The runs that were scored, in their order; none is trained."""
    seen: list[RunSpec] = []
    monkeypatch.setattr(search, "validation_metrics", lambda models: seen.extend(models) or quality(models))
    return seen


def test_a_search_is_16_trials_on_one_fold_the_spec_first_and_the_best_four_on_the_other_two(tmp_path, scored):
    record = search.search(TINY, RANGES, tmp_path / "whole.json")
    assert len(scored) == 24
    assert [model.fold for model in scored] == [0] * 16 + [1, 2] * 4
    scores = [trial["scores"] for trial in record["trials"]]
    assert [[each["R@1"] for each in trial["metrics"]] for trial in record["trials"]] == [
        [score / 2 for score in of_trial] for of_trial in scores
    ]
    best = sorted(range(16), key=lambda number: -scores[number][0])[:4]
    assert {number for number in range(16) if len(scores[number]) == 3} == set(best)
    chosen = record["found"]
    assert chosen["trial"] in best and chosen["score"] == max(sum(scores[number]) / 3 for number in best)
    assert chosen["options"] == record["trials"][chosen["trial"]]["options"]
    assert chosen["default"] == scores[0][0] < chosen["median"] < chosen["best"] == max(first[0] for first in scores)
    assert chosen["best"] > 0.85, "it hardly looks for the best"
    assert record["trials"][0]["options"] == {"lr": 1e-3, "temperature": pytest.approx(1 / 9)}
    assert scored[0].loss_options == {"temperature": 1 / 9}
    assert scored[0].replace(loss_options={}) == TINY.replace(seed=protocols.TUNING_SEED, fold=0, folds=3)
    outside = search.standing(TINY.replace(lr=1.0), RANGES | {"margin": Range(0, 1)})
    assert outside == {"temperature": pytest.approx(1 / 9)}, "what is outside or absent is no trial's value"


def test_rates_that_are_given_are_tried_in_their_order_and_judged_by_the_metric_that_is_named(tmp_path, scored):
    ranges, rates = {"lr": search.Range(1e-4, 4e-3, log=True)}, [{"lr": 4e-3}, {"lr": 2e-4}]
    how = {"grid": rates, "trials": 3, "finalists": 0, "metric": "R@1"}
    spec = TINY.replace(loss_options={"temperature": 0.3})
    record = search.search(spec, ranges, tmp_path / "rates.json", **how)
    assert [trial["options"] for trial in record["trials"]] == [{"lr": TINY.lr}, *rates] and len(scored) == 3
    assert [trial["scores"] for trial in record["trials"]] == [[each["R@1"]] for each in quality(scored)]
    assert record["found"]["options"] == {"lr": 2e-4} and record["metric"] == "R@1"
    more = how | {"grid": [*rates, {"lr": 1e-4}], "trials": 4}
    continued = search.search(spec, ranges, tmp_path / "rates.json", **more)
    assert len(scored) == 4, "a trial is not made again when a search goes on"
    made = [trial.pop("made", None) for trial in continued["trials"]]
    assert continued["trials"][:3] == record["trials"] and made == [record["made"]] * 3 + [None]
    for other in ({"grid": [{"lr": 1e-4}] * 4}, {"spec": spec.replace(steps=5)}):
        with pytest.raises(
            ValueError, match=r"rates\.json begins with other trials or another code; `--again` replaces"
        ):
            search.search(
                **({"spec": spec, "ranges": ranges, "path": tmp_path / "rates.json"} | more | other | {"trials": 5})
            )


CURVES = {1e-3: (0.5, 0.9, 0.6), 4e-3: (0.8, 0.7, 0.7), 2e-4: (0.1, 0.2, 0.95)}


@pytest.mark.parametrize(
    ("rates", "scores", "found"),
    [
        ([4e-3], [[0.9], [0.8]], {"lr": 1e-3, "epochs": 4}),
        ([4e-3, 2e-4], [[0.9], [0.8], [0.95]], {"lr": 2e-4, "epochs": 6}),
    ],
)
def test_a_trial_counts_with_its_best_evaluation(rates, scores, found, tmp_path, monkeypatch):
    """Of runs that are looked at after 2, 4 and 6 epochs."""

    def score(models):
        curves = [dict(zip((20, 40, 60), CURVES[model.lr])) for model in models]
        return [{f"R@1 at step {step}": v for step, v in curve.items()} | {"R@1": curve[60]} for curve in curves]

    monkeypatch.setattr(search, "validation_metrics", score)
    spec, ranges = TINY.replace(steps=None, epochs=6), {"lr": search.Range(1e-4, 4e-3, log=True)}
    how = {"grid": [{"lr": rate} for rate in rates], "trials": 1 + len(rates), "finalists": 0, "metric": "R@1"}
    record = search.search(spec, ranges, tmp_path / "curves.json", **how)
    assert [trial["scores"] for trial in record["trials"]] == scores and record["found"]["options"] == found


def test_two_searches_of_one_file_are_one(tmp_path, scored):
    begin = threading.Barrier(2, timeout=60)

    def one() -> dict:
        begin.wait()
        return search.search(TINY, RANGES, tmp_path / "whole.json")

    with ThreadPoolExecutor(2) as pool:
        first, second = (future.result() for future in [pool.submit(one), pool.submit(one)])
    assert first == second and len(scored) == 24


def test_all_rates_follow_the_networks_but_those_that_are_fixed():
    spec = TINY.replace(head_lr=1e-2, loss_lr={"*": 0.1, "proxies": 0.3})
    moved = search.applied(spec, {"lr": 3e-4, "temperature": 0.5}, ["proxies"])
    assert (moved.lr, moved.head_lr, moved.loss_lr) == (3e-4, 3e-3, {"*": 0.03, "proxies": 0.3})
    assert moved.loss_options == {"temperature": 0.5}
    assert search.applied(spec, {"lr": spec.lr}) == spec
    assert search.applied(spec, {"loss_lr": 0.6}).loss_lr == {"*": pytest.approx(0.2), "proxies": 0.6}


def test_a_proposal_is_a_function_of_the_trials_before_it(tmp_path, monkeypatch, shared_cache):
    def options(name, spoiled):
        def score(models):
            seen.append(models)
            return [{"MAP@R": 0.0}] if len(seen) == spoiled else quality(models)

        seen: list = []
        monkeypatch.setattr(search, "validation_metrics", score)
        return [trial["options"] for trial in search.search(TINY, RANGES, tmp_path / name)["trials"]]

    first = options("a", 0)
    assert len({json.dumps(tried) for tried in first[: search.STARTUP]}) == search.STARTUP, "random ones differ"
    scores = [quality(protocols.on_thirds(search.applied(TINY, tried))[:1])[0]["MAP@R"] for tried in first[:8]]
    best = scores.index(max(scores))
    other = options("c", best + 1)
    assert first == options("b", 0)
    changed = [number for number in range(16) if first[number] != other[number]]
    assert changed and min(changed) > best, "the score of a trial changes what comes after it, and nothing before"


@pytest.mark.parametrize("stop", [1, 2, 4])
def test_an_interrupted_search_goes_on_where_it_was_stopped(stop, tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path / "cache"))
    calls, run_all = [], runs.run_all

    def interrupted(models):
        calls.append(models)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return run_all(models, jobs=1)

    monkeypatch.setattr(runs, "run_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search.search(TINY, RANGES, tmp_path / "a.json", trials=2, finalists=1)
    assert not (tmp_path / "a.json").exists()
    record = search.search(TINY, RANGES, tmp_path / "a.json", trials=2, finalists=1)
    assert len(calls) == 1 + 4, "what was finished is not run again"
    assert sorted(len(trial["scores"]) for trial in record["trials"]) == [1, 3]
    monkeypatch.setattr(search, "validation_metrics", lambda models: pytest.fail("searched again"))
    assert search.search(TINY, RANGES, tmp_path / "a.json", trials=2) == record


def test_another_search_replaces_a_complete_one_on_request_alone_and_an_edited_one_is_refused_by_name(
    tmp_path, monkeypatch, scored
):
    path = tmp_path / "a.json"
    search.search(TINY, RANGES, path)
    before = path.read_bytes()
    with monkeypatch.context() as broken:
        broken.setattr(search, "validation_metrics", lambda models: quality(models) if models[0].fold == 0 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            search.search(TINY.replace(steps=5), RANGES, path, again=True)
    assert path.read_bytes() == before
    assert search.search(TINY.replace(steps=5), RANGES, path, again=True)["begun"]["spec"]["steps"] == 5
    made = json.loads(path.read_text())
    made["trials"][3]["scores"][0] += 0.1
    path.write_text(json.dumps(made, indent=1) + "\n")
    with pytest.raises(ValueError, match=r"a\.json is not what was written: its sha256.*take it from git"):
        search.search(TINY, RANGES, path)
    path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match=r"a\.json is no complete JSON file"):
        search.search(TINY, RANGES, path)


def test_trials_are_judged_as_the_methods_own_runs_are_and_keep_their_curves_on_request(shared_cache):
    last = protocols.on_thirds(TINY.replace(keep_history=True, eval_every=2))[1]
    assert (last.fold, last.keep_history, last.eval_every, last.restore_best) == (1, False, None, False)
    best = protocols.on_thirds(TINY.replace(restore_best=True, eval_every=2, patience=3, monitor="MAP@R"))[1]
    assert (best.restore_best, best.eval_every, best.patience) == (True, 2, 3)
    curves = protocols.on_thirds(TINY.replace(keep_history=True, eval_every=2, steps=4), curves=True)
    metrics = search.validation_metrics(curves[:1])[0]
    assert metrics["R@1 at step 4"] == metrics["R@1"] and 0 < metrics["MAP@R at step 2"] < 1


def test_a_trial_is_scored_on_the_weights_that_its_runs_leave_behind(monkeypatch):
    row = {"selection": "last", "metric": "val MAP@R", "value": 0.1}
    others = ({"selection": "val_best"}, 0.2), ({"metric": "MAP@R"}, 0.3), ({"network": "teacher"}, 0.4)
    run = SimpleNamespace(spec=TINY, rows=[row, *(row | other | {"value": value} for other, value in others)])
    best = SimpleNamespace(spec=TINY.replace(restore_best=True, eval_every=1), rows=run.rows)
    monkeypatch.setattr(runs, "run_all", lambda models: [run, best])
    monkeypatch.setattr(runs, "forget", lambda models: None)
    assert search.validation_metrics([]) == [{"MAP@R": 0.1}, {"MAP@R": 0.2}]


def test_a_trial_that_diverged_scores_0(tmp_path, monkeypatch, shared_cache):
    def last_one_diverges(specs):
        for spec in specs[:-1]:
            runs.run(spec)
        raise FloatingPointError("training diverged")

    models = protocols.expand(TINY, "mlrc")
    run_all = runs.run_all
    monkeypatch.setattr(runs, "run_all", lambda specs: last_one_diverges(specs) if len(specs) > 1 else run_all(specs))
    assert search.validation_metrics(models) == [{"MAP@R": 0}] * 4
    assert not any(runs.folder_of(keys.key_of(model)).exists() for model in models)


def test_a_choice_near_an_end_of_its_range_is_named():
    ranges = {"a": (0, 1, False), "b": (1e-4, 1, True), "c": (0, 10, False), "d": (1e-4, 1, True)}
    bounds = {name: dict(zip(("low", "high", "log"), values)) for name, values in ranges.items()}
    found = {"options": {"a": 0.04, "b": 1.5e-4, "c": 5.0, "d": 2e-4}}
    assert searches.at_an_end({"found": found, "ranges": bounds}) == ["a", "b"]
