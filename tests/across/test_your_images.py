"""Notebook 01: runs that fit small folders, a winner that the test classes do not pick, code that trains as it says."""

import importlib
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from dmlrepro import retrieval
from experiments import cli
from experiments.across import own_script, recommending, unlabelled, your_images
from experiments.across.your_images import YourImagesParams
from experiments.analysis import saving, stored
from experiments.datasets import manifests
from experiments.methods import spec_of
from experiments.training import loop, runs
from experiments.training.builders import build_loss

METHODS = your_images.offered()


def folder(path, classes: int, per_class: int):
    rng = np.random.default_rng(0)
    for label in range(classes):
        (path / f"class {label}").mkdir(parents=True)
        for number in range(per_class):
            pixels = rng.integers(0, 60, (36, 40, 3), dtype=np.uint8) + np.uint8(20 * (label % 10))
            Image.fromarray(pixels).save(path / f"class {label}" / f"{number}.png")
    return f"folder:{path}"


def test_what_needs_no_labels_or_many_steps_is_refused():
    with pytest.raises(ValueError, match=r"unknown method.*PLM"):
        your_images.your_images(YourImagesParams.from_values({"methods": ["PLM"]}))


def test_every_method_that_is_offered_is_tried_beside_what_needs_no_training():
    params = YourImagesParams.from_values({"methods": list(METHODS), "seeds": 2})
    assert {"untrained", "ProxyAnchor", "PFML", "EL-nivMF"} <= set(params.methods)
    specs = your_images.your_images(params)
    assert {spec.method for spec in specs} == {*METHODS, "PCA", "whitened PCA"}
    assert {(spec.seed, spec.fold) for spec in specs} == {(0, 0), (1, 1)}
    trained = [spec for spec in specs if spec.loss]
    assert {(spec.train_from, spec.head_start) for spec in trained} == {("head", "whitened")}
    assert {spec.setting for spec in trained} == {"part=head;steps=10", "part=head;steps=40"}
    starts = {spec.method: spec.head_start for spec in specs if not spec.loss}
    assert starts == {"untrained": None, "PCA": "pca", "whitened PCA": "whitened"}


def test_at_small_heads_and_tails_are_tried_with_fewer_steps_and_lower_rates():
    values = {"profile": "small", "dataset": "cub-subset", "methods": ["ProxyAnchor"], "seeds": 1}
    specs = {spec.setting: spec for spec in your_images.your_images(YourImagesParams.from_values(values)) if spec.loss}
    assert [*specs] == [
        "part=head;steps=150",
        "part=fire6;steps=38",
        "part=fire6;steps=150;rate=0.1",
        "part=fire6;steps=150",
    ]
    full, gentle = specs["part=fire6;steps=150"], specs["part=fire6;steps=150;rate=0.1"]
    for name in ("lr", "head_lr"):
        assert getattr(gentle, name) == pytest.approx(getattr(full, name) / 10)
    assert gentle.loss_lr["*"] == pytest.approx(full.loss_lr["*"] / 10)
    labels = [recommending.label(spec.method, spec.setting) for spec in (full, gentle)]
    assert labels[0] == "ProxyAnchor (tail from fire6, 150 steps)" and labels[1].endswith("a tenth of the rates)")
    head_alone = YourImagesParams.from_values(values | {"train_from": "head"})
    assert len([spec for spec in your_images.your_images(head_alone) if spec.loss]) == 3  # two attempts are the same
    drawn = YourImagesParams.from_values(values | {"head_start": "random"})
    assert {spec.head_start for spec in your_images.your_images(drawn) if spec.loss} == {None}
    with pytest.raises(ValueError, match="head_start must be one of pca, whitened, random, got 'ica'"):
        YourImagesParams.from_values({"head_start": "ica"})
    with pytest.raises(ValueError, match="attempts: unknown 'body'; choose among head briefly"):
        YourImagesParams.from_values({"attempts": ["body"]})


@pytest.mark.parametrize("classes, per_class", [(4, 2), (5, 2), (8, 3), (10, 30), (60, 4)])
def test_batches_fit_into_few_classes_and_few_images(tmp_path, classes, per_class):
    params = YourImagesParams.from_values({"dataset": folder(tmp_path / "few", classes, per_class)})
    train = (classes + 1) // 2
    folds = your_images.folds_of(np.full(train, per_class))
    kept = train - (-(-train // folds) if folds else 0)
    assert params.batch_size <= kept * per_class and params.batch_size % params.samples_per_class == 0
    assert 1 <= params.batch_size // params.samples_per_class <= kept


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """A folder on which three losses were tried, with the choice and its final fits, and their parameters."""
    place = tmp_path_factory.mktemp("tried")
    values = {
        "dataset": folder(place / "few $ here $", 16, 4),
        "steps": 8,
        "methods": ["untrained", "Triplet", "PFML", "EL-nivMF"],
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DMLREPRO_CACHE", str(place / "cache"))
        params = YourImagesParams.from_values(values)
        finished = runs.run_all(your_images.your_images(params), jobs=1)
        choice = recommending.choice_of(finished)
        final = runs.run_all(recommending.final_specs(choice, finished), jobs=1)
    return SimpleNamespace(params=params, finished=finished, choice=choice, final=final, cache=place / "cache")


def test_a_small_folder_of_photographs_from_the_command_to_the_table(tried, capsys, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tried.cache))
    params, choice = tried.params, tried.choice
    assert (params.seeds, params.embedding_size) == (4, 15)  # a training part has 16 images, so 15 components
    assert len(tried.finished) == 4 * (3 + 3 * 2)
    table = your_images.table_of(tried.finished, params)
    saving.save(table, params, runs=tried.finished)
    assert set(table["metric"]) == {"val MAP@R", "val R@1"}  # test classes are looked at by the final fit alone
    assert choice.classes == 8 and set(choice.gains) == {
        recommending.label(run.spec.method, run.spec.setting) for run in tried.finished
    }
    recommending.in_words(choice)
    your_images.describe(params.dataset)
    recommending.kept(tried.final)
    recommending.agreement(choice, tried.final)
    printed = capsys.readouterr().out
    assert f"Recommended: {choice.chosen}" in printed and "WARNING: 8 training classes are few" in printed
    assert tried.final[0].key in printed and "on 8 test classes" in printed
    assert list(recommending.comparison(choice).index) == recommending.best_of_each(choice)


def test_scores_of_classes_add_up_to_those_of_the_run(tried, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tried.cache))
    for run in (*tried.finished[:5], tried.final[0]):
        rows = np.array(recommending.class_scores(run))
        mean = np.average(rows[:, 2:], axis=0, weights=rows[:, 1]) / 100
        prefix = "" if run.spec.fold is None else "val "
        assert mean == pytest.approx([run.metric(f"{prefix}MAP@R"), run.metric(f"{prefix}R@1")], abs=1e-6)


def test_the_final_fit_is_an_ordinary_run_on_all_training_classes(tried):
    chosen = tried.final[0].spec
    assert recommending.label(chosen.method, chosen.setting) == tried.choice.chosen and chosen.fold is None
    assert {run.spec.method for run in tried.final} >= {"untrained"} and len(tried.final) <= 3


def made(gain, classes=40):
    """Runs of the features, their components and one loss, which has `gain` points more; by class, two seeds."""
    rng, level = np.random.default_rng(0), np.random.default_rng(1).normal(40, 10, classes)
    effects = {"untrained": 0.0, "PCA": -1.0, "whitened PCA": -2.0, "PFML": gain}
    finished = {}
    for seed in range(2):
        half = np.arange(classes)[seed::2]
        for method, effect in effects.items():
            setting = "part=head;steps=60" if method == "PFML" else ""
            spec = SimpleNamespace(method=method, setting=setting, seed=seed, fold=seed)
            values = level[half] + effect + rng.normal(0, 2, len(half))
            finished[method, seed] = SimpleNamespace(
                spec=spec, rows=[[int(class_id), 10, value, 0.0] for class_id, value in zip(half, values)]
            )
    return list(finished.values())


def test_a_loss_that_helps_is_recommended_and_of_losses_that_hurt_none(monkeypatch, capsys):
    monkeypatch.setattr(recommending, "class_scores", lambda run: run.rows)
    better = recommending.choice_of(made(+5.0))
    assert better.chosen == "PFML (head, 60 steps)" and better.reference == "the features as they are"
    recommending.in_words(better)
    assert "against the features as they are, the best of what needs no training" in capsys.readouterr().out
    for gain, expected in ((-5.0, "More classes, more images"), (0.6, "training classes would show it")):
        none = recommending.choice_of(made(gain))
        assert none.chosen == none.reference == "the features as they are"
        recommending.in_words(none)
        printed = capsys.readouterr().out
        assert "No loss beats your pretrained features on held-out classes" in printed and expected in printed


def test_a_part_that_is_held_out_has_something_to_retrieve():
    assert your_images.folds_of(np.array([1, 1, 1, 1])) == 0
    assert your_images.folds_of(np.array([2, 1, 1, 1, 1, 2])) == 2
    assert your_images.folds_of(np.full(100, 5)) == your_images.FOLDS


def test_where_no_class_can_be_held_out_it_says_so_and_trains_nothing(tmp_path, capsys):
    dataset = folder(tmp_path / "three", 3, 4)
    params = YourImagesParams.from_values({"dataset": dataset})
    (spec,) = your_images.your_images(params)
    assert (spec.method, spec.loss, spec.fold) == ("untrained", None, None)
    your_images.describe(dataset)
    finished = runs.run_all([spec], jobs=1)
    recommending.in_words(recommending.choice_of(finished))
    assert recommending.final_specs(None, finished) == [spec]
    assert set(your_images.table_of(finished, params)["metric"]) == {"MAP@R", "R@1"}
    printed = capsys.readouterr().out
    assert "WARNING: 2 training classes are too few to hold some out" in printed
    assert "Recommended: the features as they are. The training classes are too few" in printed


def test_images_without_labels_are_looked_at_and_nothing_is_scored(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DMLREPRO_RESULTS", str(tmp_path / "results"))
    labelled = manifests.load(folder(tmp_path / "sorted", 20, 4))
    for number, path in enumerate(labelled.images):
        (tmp_path / "heap").mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / "heap" / f"{number}.png")
    given = {"dataset": f"folder:{tmp_path / 'heap'}", "steps": 2}
    params = YourImagesParams.from_values(given)
    assert (params.methods, params.seeds) == (unlabelled.METHODS, 1)
    specs = your_images.your_images(params)
    assert [spec.method for spec in specs] == ["untrained", "PCA", "whitened PCA", *unlabelled.METHODS]
    assert all(spec.fold is None and spec.seed == 0 and spec.dataset == params.dataset for spec in specs)
    assert {(spec.steps, spec.head_start) for spec in specs if spec.loss} == {(2, "whitened")}
    finished = runs.run_all(specs, jobs=1)
    assert all(run.rows == [] and len(run.embeddings) == 40 for run in finished)
    table = your_images.table_of(finished, params)
    saving.save(table, params, runs=finished)
    assert set(table["metric"]) == {unlabelled.KEPT} and table["value"].iloc[0] == 1
    assert table["value"].between(0, 1).all() and (table["value"] < 1).any()
    expected = [set(row.tolist()) for row in retrieval.nearest(finished[0].embeddings, unlabelled.NEAREST)]
    nearest = [set(row.tolist()) for row in retrieval.nearest(finished[1].embeddings, unlabelled.NEAREST)]
    shared = sum(len(one & other) for one, other in zip(expected, nearest))
    assert table["value"].iloc[1] == pytest.approx(shared / (40 * unlabelled.NEAREST))
    choice = recommending.choice_of(finished)
    recommending.in_words(choice, finished)
    final = runs.run_all(recommending.final_specs(choice, finished), jobs=1)
    assert [run.key for run in final] == [run.key for run in finished]
    recommending.kept(final)
    recommending.agreement(choice, final)
    recommending.looked_up(final, queries=2, k=3)
    your_images.describe(params.dataset)
    printed = capsys.readouterr().out
    assert "Nothing is recommended: without labels" in printed and all(run.key in printed for run in final)
    assert "python -m experiments export 01" in own_script.script_of_run(final[0])
    assert "%" in your_images.YourImages.findings[-1](stored.Numbers(table))


def test_a_loss_of_labels_refuses_images_without(tmp_path):
    for number in range(20):
        (tmp_path / "heap").mkdir(exist_ok=True)
        Image.fromarray(np.full((32, 32), number, np.uint8)).save(tmp_path / "heap" / f"{number}.png")
    params = your_images.OwnImagesParams.from_values({"dataset": f"folder:{tmp_path / 'heap'}", "steps": 1})
    with pytest.raises(ValueError, match=r"Triplet learns from labels, and heap@.* has none; sort the images"):
        runs.run(spec_of(your_images.offered()["Triplet"], params).replace(batch_size=8))


@pytest.mark.parametrize("method", ["untrained", "whitened PCA", "Triplet", "EL-nivMF"])
def test_the_printed_script_runs_as_it_is_and_reaches_the_number(tried, method, tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tried.cache))
    spec = [run.spec for run in tried.finished if run.spec.method == method][-1].replace(fold=None, folds=4, seed=0)
    run = runs.run(spec)
    (tmp_path / "script.py").write_text(own_script.script_of_run(run))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = [float(number) for number in re.findall(r"(\d+\.\d) %", done.stdout)]
    assert printed == pytest.approx([100 * run.metric("MAP@R"), 100 * run.metric("R@1")], abs=0.1)
    assert (tmp_path / "network.pt").exists()


def test_every_script_is_python_whatever_is_trained():
    for part in ("head", "fire6", ""):
        values = {"profile": "small", "dataset": "cub-subset", "seeds": 1, "train_from": part, "attempts": ["tail"]}
        for spec in your_images.your_images(YourImagesParams.from_values(values)):
            compile(own_script.script_of(spec.replace(fold=None), 10, 128), "script", "exec")


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.head = torch.nn.Linear(12, 10), torch.nn.Linear(10, 8)

    def forward(self, images):
        return self.head(self.trunk(images))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.loss])
@pytest.mark.parametrize("part", ["head", "fire6", ""])
def test_the_lines_for_the_readers_script_take_the_step_that_training_takes(name, part):
    values = {"profile": "small", "dataset": "cub-subset", "methods": [name], "seeds": 1, "train_from": part}
    spec = your_images.your_images(YourImagesParams.from_values(values | {"attempts": ["tail"]}))[-1]
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(20, 12, generator=generator), torch.arange(20) // 4

    ours, theirs = Network(), Network()
    theirs.load_state_dict(ours.state_dict())
    loss = build_loss(spec, 5, 8)
    if spec.proxies_from_class_means:
        with torch.no_grad():
            loss.initialize_proxies(ours(images).view(5, 4, 8).mean(1))
    for parameter in ours.trunk.parameters():
        parameter.requires_grad_(part != "head")
    module, _, builder = spec.loss.partition(".")
    script = {"network": theirs, "batch": images, "target": labels, "torch": torch, "device": "cpu"}
    script |= {builder: getattr(importlib.import_module(f"dmlrepro.losses.{module}"), builder)}
    script |= {"inputs": images, "labels": labels}
    exec(own_script.loss_and_optimizer(spec, 5, 8), script)
    script["loss"].load_state_dict(loss.state_dict())  # proxies and samples are drawn from the same state
    if hasattr(loss, "seed"):
        script["loss"].seed = loss.seed
    if hasattr(loss, "probabilistic"):
        script["loss"].probabilistic.seed = loss.probabilistic.seed
    exec("\n".join(own_script.step(spec)), script)

    optimizer = loop.build_optimizer(spec, ours, loss)
    scheme = SimpleNamespace(loss=loss, network=ours, objective=lambda x, y: {"loss": loss(ours(x), y)})
    loop.train_step(SimpleNamespace(spec=spec, scheme=scheme, optimizer=optimizer), images, labels)
    for here, there in ((ours, theirs), (loss, script["loss"])):
        for (key, mine), (_, other) in zip(here.named_parameters(), there.named_parameters(), strict=True):
            assert torch.allclose(mine, other, atol=1e-6), key


def test_an_unreadable_file_stops_the_command_before_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path / "cache"))
    dataset = folder(tmp_path / "photos", 8, 3)
    (tmp_path / "photos" / "class 1" / "broken.jpg").write_bytes(b"no image")
    assert cli.main(["train", "01", "-p", "dataset", dataset, "-p", "methods", "['Triplet']", "--jobs", "1"]) == 2
    assert "1 of 25 files are no readable images" in capsys.readouterr().err
    assert not list((tmp_path / "cache").glob("runs/*"))
