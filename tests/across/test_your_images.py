"""Notebook 01: runs that fit small folders, a winner that the test classes do not pick, a file that searches."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from experiments.across import your_images
from experiments.across.your_images import YourImages
from experiments.analysis import saving
from experiments.figures import images
from experiments.training import network_files, runs

METHODS = your_images.offered()


def folder(path, classes: int, per_class: int):
    rng = np.random.default_rng(0)
    for label in range(classes):
        for number in range(per_class):
            pixels = rng.integers(0, 60, (36, 40, 3), dtype=np.uint8) + np.uint8(20 * (label % 10))
            file = path / f"class {label}" / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
    return f"folder:{path}"


def test_every_method_is_tried_beside_what_needs_no_training_and_at_small_in_heads_and_tails():
    specs = your_images.your_images(YourImages.configured({"methods": list(METHODS), "seeds": 2}))
    assert {spec.method for spec in specs} == {*METHODS, "PCA", "whitened PCA"}
    assert {(spec.seed, spec.fold) for spec in specs} == {(0, 0), (1, 1)}
    trained = [spec for spec in specs if spec.loss]
    assert {(spec.train_from, spec.head_start) for spec in trained} == {("head", "whitened")}
    assert {spec.setting for spec in trained} == {"part=head;steps=10", "part=head;steps=40"}
    starts = {spec.method: spec.head_start for spec in specs if not spec.loss}
    assert starts == {"untrained": None, "PCA": "pca", "whitened PCA": "whitened"}
    values = {"profile": "small", "dataset": "cub-subset", "methods": ["ProxyAnchor"], "seeds": 1}
    specs = {spec.setting: spec for spec in your_images.your_images(YourImages.configured(values)) if spec.loss}
    tails = ["part=fire6;steps=38", "part=fire6;steps=150;rate=0.1", "part=fire6;steps=150"]
    assert [*specs] == ["part=head;steps=150", *tails]
    gentle, full = ([spec.lr, spec.head_lr, spec.loss_lr["*"]] for spec in (specs[name] for name in tails[1:]))
    assert gentle == pytest.approx([rate / 10 for rate in full])
    assert your_images.label(specs[tails[1]]) == "ProxyAnchor (part=fire6, steps=150, rate=0.1)"
    head_alone = YourImages.configured(values | {"train_from": "head"})
    assert len([spec for spec in your_images.your_images(head_alone) if spec.loss]) == 3  # two attempts are the same
    with pytest.raises(ValueError, match=r"unknown attempt 'body'\. There are: head briefly"):
        your_images.your_images(YourImages.configured({"attempts": ["body"]}))


@pytest.mark.parametrize("classes, per_class", [(7, 2), (8, 3), (10, 30), (60, 4)])
def test_batches_fit_into_few_classes_and_few_images(tmp_path, classes, per_class):
    params = YourImages.configured({"dataset": folder(tmp_path / "few", classes, per_class)})
    train = (classes + 1) // 2
    kept = train - max(map(len, your_images.parts_of(params.dataset)))
    assert params.batch_size <= kept * per_class and params.batch_size % params.samples_per_class == 0
    assert 1 <= params.batch_size // params.samples_per_class <= kept


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """A folder on which three losses were tried, with what is recommended and its final fits, and their parameters."""
    place = tmp_path_factory.mktemp("tried")
    values = {"dataset": folder(place / "few $ here $", 16, 4), "steps": 8}
    values["methods"] = ["untrained", "Triplet", "PFML", "EL-nivMF"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DMLREPRO_CACHE", str(place / "cache"))
        params = YourImages.configured(values)
        finished = runs.run_all(your_images.your_images(params), jobs=1)
        compared = your_images.compared(finished)
        final = runs.run_all(your_images.final_specs(compared, finished), jobs=1)
    return SimpleNamespace(params=params, finished=finished, compared=compared, final=final, cache=place / "cache")


def test_a_small_folder_of_photographs_from_the_command_to_the_table(tried, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tried.cache))
    params, compared = tried.params, tried.compared
    assert (params.seeds, params.embedding_size) == (4, 15)  # a training part has 16 images, so 15 components
    assert len(tried.finished) == 4 * (3 + 3 * 2)
    table = your_images.table_of(tried.finished, params)
    saving.save(table, params, runs=tried.finished)
    assert set(table["metric"]) == {"val MAP@R", "val R@1"}  # test classes are looked at by the final fit alone
    assert set(compared["classes"]) == {8} and compared["recommended"].sum() == 1
    assert set(compared.index) == {your_images.label(run.spec) for run in tried.finished}
    shown = your_images.best_of_each(compared)
    assert set(shown["method"]) == {*params.methods, "PCA", "whitened PCA"} and shown["recommended"].any()
    tested = your_images.tested(tried.final)
    assert tested["difference"].iloc[0] == 0 and tested["R@1"].between(0, 100).all()
    assert your_images.figure(compared).axes
    chosen = tried.final[0].spec
    assert compared.loc[your_images.label(chosen), "recommended"] and chosen.fold is None and len(tried.final) <= 3
    for run in (tried.finished[0], tried.final[0]):  # the scores of classes add up to those of the run
        rows = np.array(your_images.class_scores(run))
        prefix = "" if run.spec.fold is None else "val "
        assert np.average(rows[:, 3], weights=rows[:, 1]) == pytest.approx(run.metric(f"{prefix}MAP@R"), abs=1e-6)


def test_the_saved_network_finds_an_images_own_class(tried, monkeypatch, tmp_path):
    """Classes differ in brightness, so that any network tells most of them apart."""
    monkeypatch.setenv("DMLREPRO_CACHE", str(tried.cache))
    saved = network_files.save(tried.final[0], tmp_path / "network.safetensors")
    by_file = images.neighbours(tried.final[0], 3, 2, network_files.load(saved).network)
    assert np.array_equal(by_file[1], images.neighbours(tried.final[0], 3, 2)[1]) and by_file[2].mean() > 0.5
    pictures = Path(tried.params.dataset.removeprefix("folder:"))
    (pictures / "broken.jpg").write_bytes(b"no image")
    query = pictures / "class 3" / "0.png"
    script = Path(__file__).parents[2] / "examples" / "search_images.py"
    command = [sys.executable, script, saved, pictures, query, "-k", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    (pictures / "broken.jpg").unlink()
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix(f"{query} ").split(" ", 2) for line in done.stdout.splitlines()]
    assert [rank for rank, *_ in lines] == ["1", "2", "3"] and lines[0][1:] == ["1.000", str(query)]
    assert Path(lines[1][2]).parent.name in ("class 3", "class 13")  # of one brightness
    assert "left out" in done.stderr and "broken.jpg" in done.stderr


def made(gains: dict[str, float], classes: int = 48, seed: int = 0, of_fold: float = 0.0, seeds: int = 4):
    """Runs of the features, their components and of losses with so many points more, by class, in `seeds` folds; a fold
    shifts each loss by a draw of standard deviation `of_fold`."""
    rng, finished = np.random.default_rng(seed), []
    level = rng.normal(40, 10, classes)
    for fold in range(seeds):
        part = np.arange(classes)[fold::seeds]
        for method, gain in {"untrained": 0.0, "PCA": -3.0, "whitened PCA": -3.0, **gains}.items():
            setting = "" if method in your_images.UNTRAINED else "part=head;steps=60"
            spec = SimpleNamespace(method=method, setting=setting, seed=fold, fold=fold)
            shift = 0.0 if method == "untrained" else rng.normal(0, of_fold)
            noise = 0.0 if method == "untrained" else rng.normal(0, 3, len(part))
            values = (level[part] + gain + shift + noise) / 100
            finished.append(SimpleNamespace(spec=spec, rows=[[c, 10, 5, value] for c, value in zip(part, values)]))
    return finished


@pytest.fixture
def scored_as_made(monkeypatch):
    monkeypatch.setattr(your_images, "class_scores", lambda run: run.rows)


def test_a_loss_that_surely_helps_enough_is_recommended_and_of_losses_that_hurt_none(scored_as_made):
    better = your_images.compared(made({"PFML": 5.0, "Triplet": 2.5}))
    assert better["recommended"].idxmax() == better.index[0] == "PFML (part=head, steps=60)"
    assert set(better["reference"]) == {"untrained"} and better["low"].iloc[0] > 0
    assert better["difference"].iloc[0] == pytest.approx(5, abs=1.5)
    for gains in ({"PFML": -5.0}, {"PFML": 0.6}, {}):
        assert your_images.compared(made(gains))["recommended"].idxmax() == "untrained"
    few = your_images.compared(made({"PFML": 60.0}, classes=4, seeds=1))
    assert few["low"].iloc[0] > 0 and few["recommended"].idxmax() == "untrained"
    finished = made({"PFML": 0.0})
    of_features = {run.spec.seed: run.rows for run in finished if run.spec.method == "untrained"}
    for gain, expected in ((0.4, False), (0.6, True)):
        for run in (run for run in finished if run.spec.method == "PFML"):
            run.rows = [[c, n, hits, value + gain / 100] for c, n, hits, value in of_features[run.spec.seed]]
        row = your_images.compared(finished).loc["PFML (part=head, steps=60)"]
        assert row["low"] > 0 and row["recommended"] == expected


def test_of_sixty_settings_that_gain_nothing_one_is_recommended_rarely(scored_as_made):
    """Folds that each favour some losses by half a point are no reason to trust one."""
    nothing = {f"loss {number}": 0.0 for number in range(60)}
    draws = [your_images.compared(made(nothing, seed=seed, of_fold=0.5)) for seed in range(60)]
    wrong = sum(table["recommended"].idxmax() not in your_images.UNTRAINED for table in draws)
    assert wrong <= 0.05 * len(draws) + 3


def test_the_final_fits_are_compared_class_by_class_with_the_first(scored_as_made):
    values = {"PFML": [0.4, 0.5, 0.7], "untrained": [0.3, 0.5, 0.5]}
    final = [
        SimpleNamespace(
            spec=SimpleNamespace(method=method, setting=""),
            rows=[[c, 10, 5, value] for c, value in enumerate(of_class)],
            metric={"MAP@R": np.mean(of_class), "R@1": 0.5}.get,
        )
        for method, of_class in values.items()
    ]
    other = your_images.tested(final).loc["untrained"]
    assert other["difference"] == pytest.approx(10) and other["low"] < 0 < other["high"]  # of 10, 0 and 20 points


@pytest.mark.parametrize("classes", [4, 6])
def test_a_folder_of_too_few_classes_to_hold_some_out_is_refused(tmp_path, classes):
    with pytest.raises(ValueError, match=f"few: {classes // 2} training classes of 4 to 4 images are too few"):
        YourImages.configured({"dataset": folder(tmp_path / "few", classes, 4)})
