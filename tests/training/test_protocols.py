"""Protocols: their settings are the published ones, a method becomes the right runs, and their scores are combined."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from tiny import TINY as UNNAMED

from dmlrepro import metrics
from experiments.analysis import results
from experiments.pfml.retrieval import Retrieval, retrieval
from experiments.training import batches, protocols, runs
from experiments.training.builders import OPTIMIZERS
from experiments.training.spec import RunSpec

TINY = UNNAMED.replace(method="ProxyNCA++")


def published(protocol: str, dataset: str, **changes) -> RunSpec:
    spec = TINY.replace(dataset=dataset, images_per_class=None, **changes)
    return protocols.expand(spec, protocol, published=True)[0]


def fields(spec: RunSpec, *names: str) -> tuple:
    return tuple(getattr(spec, name) for name in names)


def test_published_folds_momentum_classes_per_batch_and_that_a_method_keeps_its_tighter_clipping():
    assert fields(protocols.find("mlrc"), "folds", "trials", "repeats") == (4, 50, 10)
    assert protocols.find("ccp_early_stopping").folds == 4
    assert OPTIMIZERS["rmsprop"]([torch.zeros(1)]).defaults["momentum"] == 0.9
    assert published("mlrc", "cub", samples_per_class=4).samples_per_class == 4  # 8 classes x 4 for losses on pairs
    assert published("conventional", "cub", backbone="vit_small_patch16_224.dino").pooling == "token"
    assert published("ccp_early_stopping", "cub").clip_value == 10
    assert published("ccp_early_stopping", "cub", clip_value=0.01).clip_value == 0.01
    assert published("mlrc", "cub", clip_value=0.01).clip_value == 0.01


def test_other_profiles_keep_their_settings_and_take_the_structure():
    specs = protocols.expand(TINY.replace(steps=300), "mlrc")
    assert {(s.lr, s.batch_size, s.optimizer, s.steps, s.eval_every) for s in specs} == {(1e-3, 16, "adamw", 300, 30)}
    assert all(s.restore_best and s.monitor == "MAP@R" and s.protocol == "mlrc" for s in specs)
    assert [spec.fold for spec in specs] == [0, 1, 2, 3]
    assert protocols.expand(TINY) == [TINY]


def test_stml_shows_two_views_of_groups_of_neighbours():
    (spec,) = protocols.expand(TINY.replace(dataset="cub", samples_per_class=4), "stml", published=True)
    assert fields(spec, "backbone", "batch_size", "views", "neighbours", "samples_per_class", "epochs", "lr") == (
        *("googlenet", 100, 2, 5, None, 200, 5e-4),
    )
    assert published("stml", "sop").neighbours == 2
    (small,) = protocols.expand(TINY.replace(image_size=32, batch_size=20), "stml")
    assert fields(small, "backbone", "views", "neighbours", "lr") == ("conv4", 2, 5, 1e-3)


def test_an_explicit_value_wins_and_a_transformer_keeps_its_input_and_its_class_token():
    params = Retrieval.configured(
        {"profile": "paper", "protocol": "mlrc", "dataset": "cub-subset", "lr": 1e-3, "epochs": 2, "methods": ["PFML"]}
        | {"search_trials": 0}
    )
    specs = retrieval(params)
    assert len(specs) == 4 * 10
    assert {(s.lr, s.epochs, s.steps, s.batch_size, s.optimizer) for s in specs} == {(1e-3, 2, None, 32, "rmsprop")}
    vit = "vit_small_patch16_224.dino"
    for protocol in ("conventional", "mlrc", "roth", "stml", "ccp_early_stopping"):
        spec = TINY.replace(dataset="cub", images_per_class=None, backbone=vit)
        (spec, *_) = protocols.expand(spec, protocol, published=True, keep=["backbone"])
        assert fields(spec, "backbone", "image_size", "pooling") == (vit, 224, "token")
    chosen = {"profile": "paper", "protocol": "mlrc", "dataset": "cub", "backbone": vit, "search_trials": 0}
    params = Retrieval.configured(chosen)
    assert params.image_size == 224
    assert {fields(spec, "backbone", "image_size", "pooling") for spec in retrieval(params)} == {(vit, 224, "token")}
    assert published("mlrc", "cub").image_size == 227


UNTRAINED = {"loss": None, "steps": None, "embedding_size": None, "method": "untrained"}


def test_what_does_not_exist_or_cannot_run_says_so(finished):
    with pytest.raises(ValueError, match=r"unknown protocol 'mlcr'.*conventional, mlrc"):
        protocols.expand(TINY, "mlcr")
    with pytest.raises(ValueError, match=r"views=2.*give image_size"):  # glyphs as they are have no crops
        protocols.expand(TINY, "stml")
    with pytest.raises(ValueError, match=r"unknown protocol 'musgrave'"):
        Retrieval.configured({"protocol": "musgrave"})
    with pytest.raises(ValueError, match=r"need the runs of folds 0\.\.3, got \[0, 1, 3\]"):
        protocols.combine([finished[1], finished[2], finished[4]])


@pytest.fixture(scope="module")
def finished(shared_cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMLREPRO_CACHE", str(shared_cache))
        specs = [TINY.replace(**UNTRAINED), *protocols.expand(TINY, "mlrc")]
        return runs.run_all(specs, jobs=1)


def test_folds_are_scored_separately_and_concatenated(finished):
    untrained, *models = finished
    plain, separated, concatenated = protocols.combine(finished)
    assert plain is untrained
    assert (separated.spec.protocol, separated.spec.embedding_size) == ("MLRC separated", 8)
    assert (concatenated.spec.protocol, concatenated.spec.embedding_size) == ("MLRC concatenated", 32)

    mean = sum(run.metric("MAP@R", "val_best") for run in models) / 4
    assert score(separated, "MAP@R", "val_best") == pytest.approx(mean)
    validation = sum(run.metric("val MAP@R", "val_best") for run in models) / 4
    assert score(separated, "val MAP@R", "val_best") == pytest.approx(validation)
    assert score(separated, "val MAP@R", "last") == pytest.approx(sum(run.metric("val MAP@R") for run in models) / 4)

    manifest = batches.load_dataset(TINY)
    labels = torch.from_numpy(manifest.labels[manifest.indices("test")])
    together = torch.cat([F.normalize(run.embeddings, dim=1) for run in models], dim=1)
    assert score(concatenated, "MAP@R", "val_best") == pytest.approx(metrics.retrieval(together, labels)["MAP@R"])
    assert {row["selection"] for row in concatenated.rows} == {"val_best"}


def test_what_was_measured_on_each_fold_counts_with_its_mean(finished):
    rows = [[{"selection": "last", "step": 5, "metric": "problems", "value": float(n)}] for n in range(4)]
    measured = [protocols.Scored(run.spec, run.dataset, some) for run, some in zip(finished[1:], rows)]
    both = [(entry.spec.embedding_size, entry.rows[0]["value"]) for entry in protocols.combine(measured)]
    assert both == [(8, 1.5), (32, 1.5)]


def test_means_over_folds_keep_the_steps_of_a_history_apart(finished):
    def history(run, higher):
        values = [(5, 0.2 + higher), (10, 0.4 + higher)] + [(15, 1.0)] * (higher > 0.2)  # of the last fold alone
        rows = [{"selection": "every", "metric": "R@1", "step": step, "value": value} for step, value in values]
        return dataclasses.replace(run, rows=[*run.rows, *rows])

    _, separated, _ = protocols.combine(finished[:1] + [history(run, k / 10) for k, run in enumerate(finished[1:])])
    every = [(row["step"], row["value"]) for row in separated.rows if row["selection"] == "every"]
    assert every == [(5, pytest.approx(0.35)), (10, pytest.approx(0.55))]


def test_the_untrained_network_is_one_run_without_folds_and_stands_beside_both(finished):
    untrained = protocols.expand(TINY.replace(**UNTRAINED), "mlrc")
    entries = protocols.combine(runs.run_all(untrained, jobs=1))
    assert [entry.spec.protocol for entry in entries] == ["MLRC separated", "MLRC concatenated"]
    assert all(entry.rows == finished[0].rows for entry in entries)
    (spec,) = protocols.expand(TINY.replace(**UNTRAINED), "mlrc", published=True)
    assert fields(spec, "fold", "image_size", "restore_best") == (None, 227, False)


def score(entry, metric: str, selection: str) -> float:
    (value,) = [r["value"] for r in entry.rows if (r["metric"], r["selection"]) == (metric, selection)]
    return value


def test_a_table_of_folds_is_valid_and_no_test_selected_score_stands_alone(finished):
    params = Retrieval.configured({"protocol": "mlrc"})
    table = results.tidy(finished, params)  # validates: no measurement twice
    assert set(table["protocol"]) == {"conventional", "MLRC separated", "MLRC concatenated"}
    assert set(table["selection"]) == {"last", "val_best"}
    best = protocols.combine(runs.run_all([TINY.replace(eval_every=2)], jobs=1))
    assert {row["selection"] for entry in best for row in entry.rows} == {"last", "test_best"}
