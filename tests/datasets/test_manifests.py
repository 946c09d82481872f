"""The embedded glyphs and the readers of the official layouts, on small sets in the official formats."""

import hashlib
import itertools
import os
import zipfile

import numpy as np
import official_layouts as layouts
import pytest
from PIL import Image
from pytorch_metric_learning import datasets

from experiments.datasets import glyphs, manifests


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path))


@pytest.fixture
def manifest():
    return manifests.load("glyphs")


def test_glyphs_have_the_pinned_labels_split_and_statistics(manifest):
    assert manifest.images.shape == (8400, 32, 32) and manifest.images.dtype == np.uint8
    assert manifest.num_train_classes == 200 and len(manifest.class_names) == 350
    assert len({*"".join(itertools.chain(*glyphs.CHARACTERS.values()))}) == 350 + 359  # no symbol is a glyph
    digest = hashlib.sha256(manifest.labels.tobytes() + "".join(manifest.split).encode())
    digest.update("".join(manifest.class_names).encode())
    assert digest.hexdigest()[:16] == "602854408edb756b"
    pixels = manifest.images.astype(float)
    per_class = pixels.reshape(350, -1).mean(1)
    assert pixels.mean() == pytest.approx(51.08, abs=0.3)
    assert pixels.std() == pytest.approx(76.97, abs=0.4)
    assert per_class.std() == pytest.approx(7.33, abs=0.2)


def test_more_glyphs_per_class_extend_the_fewer(manifest):
    few, more = manifests.load("glyphs", images_per_class=3), manifests.load("glyphs", images_per_class=30)
    for label in (0, 199, 200, 349):
        ours = manifest.images[manifest.labels == label]
        np.testing.assert_array_equal(few.images[few.labels == label], ours[:3])
        np.testing.assert_array_equal(more.images[more.labels == label][:24], ours)


def test_label_noise_replaces_by_uniform_other_training_classes(manifest):
    noisy = manifests.load("glyphs", label_noise=0.2, seed=1)
    changed = np.flatnonzero(noisy.labels != manifest.labels)
    np.testing.assert_array_equal(changed, noisy.corrupted)
    assert len(changed) == 960 and set(manifest.split[changed]) == {"train"}
    assert noisy.labels[changed].max() < 200
    shift = (noisy.labels[changed] - manifest.labels[changed]) % 200  # uniform over 1..199
    assert shift.min() >= 1 and np.histogram(shift, 4, (1, 200))[0] == pytest.approx([240] * 4, abs=60)
    again, other = (manifests.load("glyphs", label_noise=0.2, seed=seed) for seed in (1, 2))
    assert again.digest() == noisy.digest() != other.digest()


def test_arguments_are_checked_and_a_missing_set_names_the_command_that_gets_it(tmp_path):
    with pytest.raises(ValueError, match=r"unknown data set 'birds'.*glyphs, symbols, omniglot, mnist, cub"):
        manifests.load("birds")
    with pytest.raises(ValueError, match="images_per_class is for glyphs and symbols only"):
        manifests.load("cub", images_per_class=3)
    for name, value in (
        ("label_noise", -0.1),
        ("label_noise", 1.0),
        ("images_per_class", 0),
        ("images_per_class", 2.5),
    ):
        with pytest.raises(ValueError, match=f"{name} must be a .*, got {value}"):
            manifests.load("glyphs", **{name: value})
    for name in ("cub", "cars-subset", "mnist", "omniglot"):
        base = name.removesuffix("-subset")
        with pytest.raises(FileNotFoundError, match=f"`python -m experiments data fetch {base}` downloads the set"):
            manifests.load(name)
    with pytest.raises(FileNotFoundError, match=r"labels.txt: missing.*data/README.md.*DMLREPRO_DATA"):
        manifests.load("cub-subset")


def test_cub_is_read_as_pytorch_metric_learning_does(tmp_path):
    layouts.write_cub(tmp_path, {101: 3, 7: 2, 9: 4})
    manifest = manifests.load("cub-subset")
    assert manifest.labels.tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert manifest.class_names == ("007.Bird_7", "009.Bird_9", "101.Bird_101")
    assert manifest.indices("query").tolist() == manifest.indices("gallery").tolist() == [6, 7, 8]
    train, test = (datasets.CUB(tmp_path, split) for split in ("train", "test"))
    assert [*map(os.path.realpath, manifest.images)] == [*map(os.path.realpath, train.paths + test.paths)]
    np.testing.assert_array_equal(manifest.labels, np.unique(train.labels + test.labels, return_inverse=True)[1])


CARS = {number: 1 + number % 2 for number in range(1, 101)}


@pytest.mark.parametrize("copy", [False, True])
def test_both_public_copies_of_cars_have_the_same_classes(copy, tmp_path):
    write = layouts.write_cars_by_class if copy else layouts.write_cars
    write(tmp_path, CARS)
    manifest = manifests.load("cars-subset")
    assert manifest.num_train_classes == 98 and manifest.class_names[:2] == ("Make Model 1", "Make C/V 2")
    assert np.bincount(manifest.labels).tolist() == list(CARS.values())
    assert set(manifest.labels[manifest.indices("test")]) == {98, 99}
    assert ("read from pytorch-metric-learning's copy" in manifests.check("cars-subset")) == copy


def test_inshop_omniglot_sop_and_mnist_are_read(tmp_path):
    layouts.write_inshop(tmp_path, {2: {"train": 3}, 1: {"query": 1, "gallery": 2}, 5: {"gallery": 1, "query": 2}})
    manifest = manifests.load("inshop-subset")
    assert manifest.num_train_classes == 1
    assert manifest.class_names == ("id_00000002", "id_00000001", "id_00000005")
    assert manifest.indices("query").tolist() == [3, 7, 8]
    assert manifest.indices("gallery").tolist() == [4, 5, 6]
    assert manifest.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert manifest.images[3].endswith(os.path.join("Img", "img", "WOMEN", "Dresses", "id_00000001", "01_1_front.jpg"))
    layouts.write_omniglot(tmp_path, {"Greek": 2, "Latin": 1}, {"Tengwar": 2})
    manifest = manifests.load("omniglot-subset")
    characters = ("Greek/character01", "Greek/character02", "Latin/character01")
    assert manifest.class_names == (*characters, "Tengwar/character01", "Tengwar/character02")
    assert np.bincount(manifest.labels).tolist() == [4] * 5 and manifest.num_train_classes == 3
    assert manifest.images.shape == (20, 28, 28)
    ink = manifest.images[0]  # character 1: a square from pixel 15 to 46 of 105, white on black now
    assert ink[8, 8] == 255 and ink[25, 25] == 0 and ink.mean() == pytest.approx(255 * (31 / 105) ** 2, rel=0.02)
    layouts.write_sop(tmp_path, {1: 2, 2: 3}, {11319: 2, 11320: 2})
    manifest = manifests.load("sop-subset")
    assert manifest.class_names == ("1", "2", "11319", "11320")
    assert np.bincount(manifest.labels).tolist() == [2, 3, 2, 2] and manifest.num_train_classes == 2
    layouts.write_mnist(tmp_path, [*range(10), 3], [9, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8])
    manifest = manifests.load("mnist-subset")  # the same ten classes in both parts
    assert manifest.num_train_classes == 10 and manifest.class_names == tuple("0123456789")
    assert manifest.labels.tolist() == [*range(10), 3, 9, 9, *range(9)]
    np.testing.assert_array_equal(manifest.images[:, 0, 0], 25 * manifest.labels)  # as they were written


def test_a_set_with_the_official_counts_is_the_full_set(tmp_path, monkeypatch):
    layouts.write_inshop(tmp_path, {1: {"train": 3}, 2: {"query": 1, "gallery": 2}})
    counts = {"train": (3, 1), "query": (1, 1), "gallery": (2, 1)}
    monkeypatch.setitem(manifests.OFFICIAL, "inshop", counts)
    assert manifests.load("inshop").name == "inshop"
    assert "official counts: yes" in manifests.check("inshop")
    with pytest.raises(ValueError, match=r"inshop-subset: expected fewer than.*this is 'inshop'"):
        manifests.load("inshop-subset")
    monkeypatch.setitem(manifests.OFFICIAL, "inshop", counts | {"train": (4, 1)})
    with pytest.raises(ValueError, match=r"inshop: expected train 4 images of 1.*found train 3.*'inshop-subset', ask"):
        manifests.load("inshop")
    monkeypatch.setitem(manifests.OFFICIAL, "inshop", counts | {"train": (2, 1)})
    with pytest.raises(ValueError, match=r"list_eval_partition.txt: expected at most train 2 images.*found train 3"):
        manifests.load("inshop-subset")


def test_check_tells_what_is_there(tmp_path):
    layouts.write_cub(tmp_path, {1: 2, 2: 5, 101: 2, 102: 1})
    report = manifests.check("cub")
    assert "train          7        2        2..5        5864 / 100" in report
    assert "test           3        2        1..2        5924 / 100" in report
    assert "left out of retrieval scores: 1" in report
    assert "official counts: no" in report and "load it by: cub-subset" in report
    assert manifests.load("cub-subset").digest() in report


LAYOUTS = {
    "cub": lambda root: layouts.write_cub(root, {1: 1, 2: 1, 101: 2}),
    "cars": lambda root: layouts.write_cars(root, {1: 2, 2: 1, 99: 2}),
    "sop": lambda root: layouts.write_sop(root, {1: 2, 13: 2}, {2: 2, 3: 2}),
    "inshop": lambda root: layouts.write_inshop(root, {1: {"train": 2}, 2: {"query": 1, "gallery": 1}}),
    "omniglot": lambda root: layouts.write_omniglot(root, {"Greek": 2}, {"Tengwar": 2}),
    "mnist": lambda root: layouts.write_mnist(root, list(range(10)) * 2, list(range(10)) * 2),
}
BIRD = "images/101.Bird_101/Bird_0101_0000001.jpg"
EVAL = "Eval/list_eval_partition.txt"


def line(number: int, text: str):
    return lambda old: "\n".join([*old.splitlines()[: number - 1], text, *old.splitlines()[number:]])


@pytest.mark.parametrize(
    ("name", "file", "edit", "message"),
    [
        ("cub", "image_class_labels.txt", line(4, "4 101\n5 101"), "expected 5 images with a class.*found 4"),
        ("cub", "image_class_labels.txt", line(3, "3 201"), "expected 4 images with a class from 1 to 200.*found 3"),
        ("cub", "image_class_labels.txt", line(3, "3 55"), "declared classes, found images of undeclared class 55"),
        ("cub", "image_class_labels.txt", line(3, "2 2"), "under the same id in both tables, found 3"),
        ("cub", "image_class_labels.txt", line(2, "2 101"), "found .*0000.jpg of class 101.Bird"),
        ("cub", "images.txt", lambda t: t.replace("_0000001", "_0000000"), "lists 1 files more than once: .*000.jpg"),
        ("cub", "classes.txt", lambda t: t + "9 001.Bird_1\n", "of different names, found 001.Bird_1 more than once"),
        ("cub", "classes.txt", line(2, "2 002.Bird_2\n3 003.Bird_3"), "class 003.Bird_3 without an image"),
        ("cub", "classes.txt", lambda t: t.encode("utf-16"), "not as it was published .*UnicodeDecodeError"),
        ("cub", BIRD, None, "labels.txt: lists 1 files that are missing: .*Bird"),
        ("cars", "cars_annos.mat", lambda _: b"not MATLAB", "cars_annos.mat: not as it was published"),
        ("sop", "Ebay_test.txt", lambda t: t.replace(" 3 ", " 1 "), "other classes.*found 1 of 3 in both: 1$"),
        ("sop", "Ebay_train.txt", lambda t: t.replace("chair", "sofa", 1), "one folder of a super-class"),
        ("inshop", EVAL, lambda t: t.replace(" id_00000002 ", " id_00000001 ", 1), "of its item, found .*02/01"),
        ("inshop", EVAL, line(6, ""), "line 1 promises 4 rows, found 3"),
        ("inshop", EVAL, line(5, "img/id_00000002/x.jpg id_00000002 val"), "expected evaluation_status.*found val"),
        ("mnist", "t10k-images-idx3-ubyte", lambda data: data[:-1], "raw: not as it was published"),
        ("omniglot", "images_evaluation.zip", lambda data: data[: len(data) // 2], "zip: not as it was published"),
    ],
)
def test_contradictions_in_an_official_layout_are_named(tmp_path, name, file, edit, message):
    path = LAYOUTS[name](tmp_path) / file
    if edit is None:
        path.unlink()
    else:
        edited = edit(path.read_bytes() if name in ("mnist", "omniglot", "cars") else path.read_text())
        path.write_bytes(edited if isinstance(edited, bytes) else edited.encode())
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        manifests.load(f"{name}-subset")


def test_images_without_a_row_damaged_or_of_16_bits_are_named(tmp_path):
    folder = LAYOUTS["cars"](tmp_path)
    layouts.save_images([folder / "car_ims" / "000009.jpg"])
    with pytest.raises(ValueError, match=r"expected a row for each of the 6.*none for car_ims.000009.jpg"):
        manifests.load("cars-subset")
    archive = LAYOUTS["omniglot"](tmp_path) / "images_evaluation.zip"
    manifests.load("omniglot-subset")
    damaged = bytearray(archive.read_bytes())
    damaged[damaged.index(b"IDAT") + 8] ^= 255
    archive.write_bytes(damaged)
    os.utime(archive, (0, 0))  # another time, even where the file system's clock is coarse
    with pytest.raises(ValueError, match=r"images_evaluation.zip/images_evaluation/Tengwar/.*: not as it was"):
        manifests.load("omniglot-subset")
    folder = LAYOUTS["omniglot"](tmp_path)
    Image.fromarray(np.full((105, 105), 40_000, np.uint16)).save(tmp_path / "deep.png")
    with zipfile.ZipFile(folder / "images_background.zip", "a") as archive:
        archive.write(tmp_path / "deep.png", "images_background/Greek/character01/0000_01.png")
    with pytest.raises(ValueError, match=r"character01/0000_01.png: not as.*pixels of mode I;16, expected black"):
        manifests.load("omniglot-subset")
