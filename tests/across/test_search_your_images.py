"""Notebook 02: it trains one loss once, and its folders hold the test images once each."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny import TINY

from experiments.across import search_your_images
from experiments.datasets import manifests
from experiments.deploy import finding, folders, indexing, models
from experiments.report import catalogue
from experiments.training import runs


@pytest.mark.parametrize("profile", ["quick", "small", "paper"])
def test_it_trains_one_loss_once_and_holds_out_what_notebook_01_holds_out(profile):
    search, try_all = catalogue.find("02"), catalogue.find("01")
    ours = search.specs(search.params.from_values({"profile": profile}))
    theirs = try_all.specs(try_all.params.from_values({"profile": profile}))
    assert [(spec.method, spec.seed) for spec in ours] == [("untrained", 0), ("Contrastive", 0)]
    held_out = {(spec.fold, spec.folds) for spec in theirs if spec.seed == 0}
    assert {(spec.fold, spec.folds) for spec in ours} == held_out and len(held_out) == 1


def test_the_test_images_are_files_once_each_and_find_their_class(tmp_path, capsys):
    manifest = manifests.load("glyphs")
    for _ in range(2):  # what is there stays
        search_your_images.as_files("glyphs", tmp_path)
    parts = {name: folders.listed(tmp_path / name)[0] for name in ("queries", "gallery")}
    labels = manifest.labels[manifest.indices("test")]
    assert len(parts["queries"]) == len(np.unique(labels)) and sum(map(len, parts.values())) == len(labels)
    numbers = [int(Path(image.path).stem) for images in parts.values() for image in images]
    assert sorted(numbers) == manifest.indices("test").tolist()
    image = parts["queries"][7]
    assert (
        np.asarray(Image.open(tmp_path / "queries" / image.path)) == manifest.images[int(Path(image.path).stem)]
    ).all()

    few = tmp_path / "few"
    for label in [image.label for image in parts["queries"]][:3]:
        few.mkdir(exist_ok=True)
        (few / label).symlink_to(tmp_path / "gallery" / label)
    model = models.export(runs.run(TINY), tmp_path / "model.safetensors")
    indexing.embed_folder(model, few, tmp_path / "index")
    answer = finding.find(tmp_path / "index", [tmp_path / "queries"], k=4)
    right = search_your_images.right(answer)
    assert right.shape == (150, 4) and not right[3:].any() and right[:3].any()
    search_your_images.in_words(answer)
    assert f"for {right[:, 0].sum()} (" in capsys.readouterr().out
    shown = search_your_images.some(answer, 3)
    queries, neighbours, correct = search_your_images.pictures(shown)
    assert [query.shape for query in queries] == [(32, 32, 3)] * 3 and (correct == right[[0, 74, 149]]).all()
    assert (
        neighbours[2][1] == np.asarray(Image.open(few / answer.image(answer.rows[149, 1]).path).convert("RGB"))
    ).all()
    assert len(search_your_images.as_table(shown)) == 12


def test_own_images_are_linked(tmp_path):
    rng = np.random.default_rng(0)
    for label in range(4):
        (tmp_path / "own" / f"class {label}").mkdir(parents=True)
        for number in range(2):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "own" / f"class {label}" / f"{number}.png")
    search_your_images.as_files(f"folder:{tmp_path / 'own'}", tmp_path / "files")
    files = list((tmp_path / "files").rglob("*.png"))
    assert len(files) == 4 and all(path.is_symlink() and path.exists() for path in files)
    assert len(folders.listed(tmp_path / "files" / "gallery")[0]) == 2
