"""Notebook 01: runs that fit small folders, a winner that the test classes do not pick, code that trains as it says."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from dmlrepro import cli
from dmlrepro.evidence import saving
from dmlrepro.papers.together import your_images
from dmlrepro.papers.together.your_images import YourImagesParams
from dmlrepro.training import loop, runs
from dmlrepro.training.builders import build_loss

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


def test_every_method_that_is_offered_is_tried():
    params = YourImagesParams.from_values({})
    assert {"untrained", "ProxyAnchor", "PFML", "EL-nivMF"} <= set(params.methods)
    specs = your_images.your_images(params)
    assert {spec.method for spec in specs} == set(METHODS)
    assert {(spec.seed, spec.fold) for spec in specs} == {(0, 0), (1, 1)}
    assert {spec.train_from for spec in specs if spec.loss} == {"head"}


@pytest.mark.parametrize("classes, per_class", [(4, 2), (5, 2), (8, 3), (10, 30), (60, 4)])
def test_batches_fit_into_few_classes_and_few_images(tmp_path, classes, per_class):
    params = YourImagesParams.from_values({"dataset": folder(tmp_path / "few", classes, per_class)})
    train = (classes + 1) // 2
    folds = your_images.folds_of(np.full(train, per_class))
    kept = train - (-(-train // folds) if folds else 0)
    assert params.batch_size <= kept * per_class and params.batch_size % params.samples_per_class == 0
    assert 1 <= params.batch_size // params.samples_per_class <= kept


def test_a_small_folder_of_photographs_from_the_command_to_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path / "cache"))
    values = {
        "dataset": folder(tmp_path / "few $ here $", 8, 4),
        "seeds": 2,
        "steps": 3,
    }
    values["methods"] = ["untrained", "Triplet", "PFML", "EL-nivMF"]
    params = YourImagesParams.from_values(values)
    specs = your_images.your_images(params)
    assert len(specs) == 8
    finished = runs.run_all(specs, jobs=1)
    table = your_images.table_of(finished, params)
    saving.save(table, params, runs=finished)
    assert not {"seconds", "steps_per_second"} & set(table["metric"])
    best = your_images.winner(finished, table)
    assert best.spec.method != "untrained"
    assert list(your_images.comparison(table).index) == list(your_images.ranking(table).index)
    your_images.in_words(table)
    your_images.describe(params.dataset)
    printed = capsys.readouterr().out
    assert "classes held out of the training part" in printed and "WARNING: 4 training classes are few" in printed
    assert "loss(network(images), labels).backward()" in your_images.code_of_run(best)


def test_the_test_classes_pick_nothing():
    rows = [
        {"method": method, "setting": "", "seed": seed, "metric": metric, "value": value + seed}
        for method, validation, test in (("A", 30, 10), ("B", 20, 50), ("untrained", 40, 5))
        for metric, value in (("val MAP@R", validation), ("MAP@R", test))
        for seed in range(2)
    ]
    table = pd.DataFrame(rows)
    finished = [SimpleNamespace(spec=SimpleNamespace(method=name, setting="")) for name in "BA"]
    assert your_images.winner(finished, table).spec.method == "A"
    without = table[table["metric"] == "MAP@R"]
    assert your_images.criterion(without) == "MAP@R" and your_images.winner(finished, without).spec.method == "B"


def test_a_part_that_is_held_out_has_something_to_retrieve():
    assert your_images.folds_of(np.array([1, 1, 1, 1])) == 0
    assert your_images.folds_of(np.array([2, 1, 1, 1, 1, 2])) == 2
    assert your_images.folds_of(np.full(100, 5)) == your_images.FOLDS


def test_where_no_class_can_be_held_out_it_says_so(tmp_path, capsys):
    dataset = folder(tmp_path / "three", 3, 4)
    params = YourImagesParams.from_values({"dataset": dataset})
    assert {spec.fold for spec in your_images.your_images(params)} == {None}
    your_images.describe(dataset)
    assert "WARNING: 2 training classes are too few to hold some out" in capsys.readouterr().out


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
    (spec,) = your_images.your_images(YourImagesParams.from_values(values))
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(20, 12, generator=generator), torch.arange(20) // 4
    class_means = torch.randn(5, 8, generator=generator)

    ours, theirs = Network(), Network()
    theirs.load_state_dict(ours.state_dict())
    loss = build_loss(spec, 5, 8)
    if spec.proxies_from_class_means:
        loss.initialize_proxies(class_means)
    for parameter in ours.trunk.parameters():
        parameter.requires_grad_(part != "head")
    lines = your_images.code_of(spec, 5, 8).splitlines()
    before, step = lines[: lines.index("# in every step")], lines[lines.index("# in every step") :]
    script = {"network": theirs, "images": images, "labels": labels, "class_means": class_means}
    exec("\n".join(before), script)
    script["loss"].load_state_dict(loss.state_dict())  # proxies and samples are drawn from the same state
    if hasattr(loss, "seed"):
        script["loss"].seed = loss.seed
    if hasattr(loss, "probabilistic"):
        script["loss"].probabilistic.seed = loss.probabilistic.seed
    exec("\n".join(step), script)

    optimizer = loop.build_optimizer(spec, ours, loss)
    scheme = SimpleNamespace(loss=loss, objective=lambda embed, x, y: {"loss": loss(embed(x), y)})
    loop.train_step(spec, scheme, ours, optimizer, images, labels, 0)
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
