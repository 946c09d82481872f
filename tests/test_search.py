"""The search of notebook 10: every method is tuned before its runs, on validation classes only."""

import dataclasses

import pytest

from experiments import cli
from experiments.datasets import manifests
from experiments.files import cache_root
from experiments.methods import found_by_search
from experiments.nivmf import retrieval as nivmf
from experiments.pfml import methods, retrieval
from experiments.training import protocols, runs

TINY = {"protocol": "mlrc", "search_trials": 3, "embedding_size": 8}
TINY |= {"steps": 2, "seeds": 2, "batch_size": 16, "threads": 1, "methods": ["untrained", "PFML", "MultiSimilarity"]}


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """Seeds of everything that is trained; the searches see 4 glyphs a class, and of those no row of the test set."""
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path))
    seeds, run_all, load = [], runs.run_all, manifests.load

    def validation_rows(specs):
        seeds.extend(spec.seed for spec in specs)
        finished = run_all(specs, jobs=1)
        return [
            dataclasses.replace(run, rows=[row for row in run.rows if row["metric"].startswith("val ")])
            for run in finished
        ]

    monkeypatch.setattr(runs, "run_all", validation_rows)
    monkeypatch.setattr(manifests, "load", lambda name, **options: load(name, **options | {"images_per_class": 4}))
    return seeds


def test_every_method_gets_the_same_trials_which_its_seeds_share(searched, monkeypatch):
    params = retrieval.Retrieval.configured(TINY)
    specs = retrieval.retrieval(params)
    trained = [method for method in params.methods if method != "untrained"]
    assert searched == [protocols.TUNING_SEED] * 3 * 4 * len(trained)
    assert not list((cache_root() / "runs").iterdir())  # the journal has the scores; networks would add up
    chosen = found_by_search(retrieval.specs_of(params), methods.METHODS, params)
    assert list(chosen.index) == trained and set(chosen["trials"]) == {3}
    for method in trained:
        of_method = [spec for spec in specs if spec.method == method]
        assert [(spec.seed, spec.fold) for spec in of_method] == [(seed, fold) for seed in (0, 1) for fold in range(4)]
        row = chosen.loc[method].dropna()
        for spec in of_method:
            space = methods.METHODS[method].search_space
            varied = {name: spec.loss_options[name] for name in space if name != "loss_lr"}
            assert varied == {name: row[name] for name in varied}
            assert "loss_lr" not in row or max(spec.loss_lr.values()) == row["loss_lr"]
        assert row["chosen"] > 0 and row["best"] >= row["median"] > 0

    monkeypatch.setattr(runs, "run_all", lambda specs: pytest.fail("searched again"))
    assert retrieval.retrieval(params) == specs
    assert found_by_search(retrieval.specs_of(params), methods.METHODS, params).equals(chosen)


def test_without_trials_nothing_is_searched_and_nothing_shown(searched):
    params = retrieval.Retrieval.configured(TINY | {"search_trials": 0})
    assert all(spec.loss_options.get("alpha", 3.0) == 3.0 for spec in retrieval.retrieval(params))
    assert found_by_search(retrieval.specs_of(params), methods.METHODS, params) is None
    assert searched == []


@pytest.mark.parametrize("study", [retrieval.Retrieval, nivmf.Retrieval])
def test_a_search_that_cannot_be_is_refused_with_the_parameters(study):
    message = r"'conventional' has no validation classes.*search_trials=0.*one of mlrc, ccp_early_stopping"
    with pytest.raises(ValueError, match=message):
        study.configured({"protocol": "conventional", "search_trials": 3})


def test_the_settings_are_listed_without_a_search(searched):
    arguments = [text for name in ("protocol", "search_trials", "steps") for text in ("-p", name, str(TINY[name]))]
    assert cli.main(["config", "10", *arguments]) == 0
    assert searched == []
