"""The embedded glyphs and the readers of the official layouts, on small sets in the official formats."""

import hashlib
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import official_layouts as layouts
import pytest
from PIL import Image

from experiments.datasets import glyphs, manifests, symbols
from experiments.files import data_root, repository_root


@pytest.fixture
def manifest():
    return manifests.load("glyphs")


# The embedded set


def test_glyphs_have_the_pinned_labels_split_and_statistics(manifest):
    assert manifest.images.shape == (8400, 32, 32) and manifest.images.dtype == np.uint8
    assert manifest.num_train_classes == 200 and len(manifest.class_names) == 350
    digest = hashlib.sha256(manifest.labels.tobytes() + "".join(manifest.split).encode())
    digest.update("".join(manifest.class_names).encode())
    assert digest.hexdigest()[:16] == "602854408edb756b"
    pixels = manifest.images.astype(float)
    per_class = pixels.reshape(350, -1).mean(1)
    assert pixels.mean() == pytest.approx(51.08, abs=0.3)
    assert pixels.std() == pytest.approx(76.97, abs=0.4)
    assert per_class.std() == pytest.approx(7.33, abs=0.2)


def test_glyphs_of_test_classes_come_from_scripts_never_seen_in_training(manifest):
    scripts = [name.split()[1] for name in manifest.class_names]
    train = set(manifest.labels[manifest.split == "train"])
    assert {scripts[label] for label in train} == {"LATIN", "GREEK", "CYRILLIC"}
    assert {scripts[label] for label in set(manifest.labels) - train} == {
        "ARMENIAN",
        "GEORGIAN",
        "HEBREW",
        "ARABIC",
        "CANADIAN",
    }


def test_no_two_glyph_classes_look_alike():
    characters = "".join(glyphs.characters())
    assert len(set(characters)) == len(characters)
    for typeface in glyphs.TYPEFACES:
        shared = [c for c in characters if typeface in glyphs.typefaces_of(c)]
        similarity = correlations(shared, typeface)
        np.fill_diagonal(similarity, 0)
        assert similarity.max() < 0.95, (
            typeface,
            [shared[i] for i in np.unravel_index(similarity.argmax(), similarity.shape)],
        )
    assert correlations("AΑА", "DejaVuSans").min() > 0.99  # Latin, Greek, Cyrillic: what the rule merges


def test_symbols_look_like_no_glyph_and_like_no_other_symbol():
    letters, signs = "".join(glyphs.characters()), "".join(symbols.characters())
    assert len(set(letters + signs)) == len(letters + signs) == 350 + 359
    for typeface in glyphs.TYPEFACES:
        both = [c for c in signs + letters if typeface in glyphs.typefaces_of(c)]
        count = len([c for c in both if c in signs])
        similarity = correlations(both, typeface)
        np.fill_diagonal(similarity, 0)
        assert similarity[:count].max(initial=0) < 0.91, typeface


def test_symbols_are_a_set_of_their_own():
    manifest = manifests.load("symbols", images_per_class=2)
    assert (manifest.num_train_classes, len(manifest.images)) == (300, 718)
    assert not set(manifest.class_names) & set(manifests.load("glyphs", images_per_class=2).class_names)


def correlations(characters, typeface):
    """Pearson correlations of the upright glyphs after a blur of about half a stroke."""
    from scipy.ndimage import gaussian_filter

    drawn = [gaussian_filter(np.asarray(glyphs.draw(c, typeface), float), 1.5).ravel() for c in characters]
    return np.corrcoef(drawn)


def test_more_glyphs_per_class_extend_the_fewer(manifest):
    few, more = manifests.load("glyphs", images_per_class=3), manifests.load("glyphs", images_per_class=30)
    for label in (0, 199, 200, 349):
        ours = manifest.images[manifest.labels == label]
        np.testing.assert_array_equal(few.images[few.labels == label], ours[:3])
        np.testing.assert_array_equal(more.images[more.labels == label][:24], ours)


# Label noise, folds, digest


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


@pytest.mark.parametrize("noise", [-0.1, 1.0, float("nan")])
def test_label_noise_outside_zero_to_one_is_refused(noise):
    with pytest.raises(ValueError, match=r"label_noise.*\[0, 1\)"):
        manifests.load("glyphs", label_noise=noise)


def test_digest_follows_content_not_location(tmp_path):
    for root in ("a", "b"):
        layouts.write_cub(tmp_path / root, {1: 2, 101: 2})
    first, second = (manifests.load("cub-subset", tmp_path / root) for root in ("a", "b"))
    assert first.digest() == second.digest()
    with open(second.images[0], "ab") as file:
        file.write(b"\0")
    assert manifests.load("cub-subset", tmp_path / "b").digest() != first.digest()


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"unknown data set 'birds'.*glyphs, symbols, omniglot, mnist, cub"):
        manifests.load("birds")
    with pytest.raises(ValueError, match="images_per_class must be a positive integer, got 0"):
        manifests.load("glyphs", images_per_class=0)
    with pytest.raises(ValueError, match="images_per_class is for glyphs and symbols only"):
        manifests.load("cub", images_per_class=3)


# Folders


def test_folders_are_found_from_below_the_repository(tmp_path, monkeypatch):
    (tmp_path / "dmlrepro").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "dmlrepro"\n')
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.delenv("DMLREPRO_DATA", raising=False)
    assert repository_root() == tmp_path and data_root() == tmp_path / "data"
    monkeypatch.setenv("DMLREPRO_DATA", "../elsewhere")
    assert os.path.normpath(data_root()) == str(tmp_path.parent / "elsewhere")
    monkeypatch.chdir(tmp_path.parent)
    assert repository_root() == Path(manifests.__file__).parents[2]


# Official layouts


def test_cub_in_its_official_layout(tmp_path):
    layouts.write_cub(tmp_path, {101: 3, 7: 2, 9: 4})
    manifest = manifests.load("cub-subset", tmp_path)
    assert manifest.name == "cub-subset"
    assert manifest.labels.tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert manifest.split.tolist() == ["train"] * 6 + ["test"] * 3
    assert manifest.class_names == ("007.Bird_7", "009.Bird_9", "101.Bird_101")
    assert [Path(path).parent.name for path in manifest.images] == [
        manifest.class_names[label] for label in manifest.labels
    ]
    assert manifest.indices("query").tolist() == manifest.indices("gallery").tolist() == [6, 7, 8]


def test_cars_in_their_official_layout(tmp_path, monkeypatch):
    sizes = {number: 1 + number % 2 for number in range(1, 101)}
    layouts.write_cars(tmp_path, sizes, num_classes=100)
    manifest = manifests.load("cars-subset", tmp_path)
    assert manifest.num_train_classes == 98 and len(manifest.class_names) == 100
    assert manifest.class_names[99] == "Make Model 100"
    assert np.bincount(manifest.labels).tolist() == list(sizes.values())
    assert manifest.images[0].endswith("Cars196/car_ims/000001.jpg".replace("/", os.sep))


CARS = {number: 1 + number % 2 for number in range(1, 101)}
COPIES = {
    "two parts": lambda root: layouts.write_cars_in_two_parts(root / "Cars196", CARS, 100),
    "torchvision's folder": lambda root: layouts.write_cars_in_two_parts(root / "stanford_cars", CARS, 100),
    "nested": lambda root: layouts.write_cars_in_two_parts(root / "Cars196", CARS, 100, nested=True),
    "by class": lambda root: layouts.write_cars_by_class(root / "Cars196", CARS, 100),
}


@pytest.mark.parametrize("copy", COPIES)
def test_every_public_copy_of_cars_has_the_classes_of_the_original(copy, tmp_path):
    COPIES[copy](tmp_path)
    manifest = manifests.load("cars-subset", tmp_path)
    assert manifest.num_train_classes == 98 and manifest.class_names[:2] == ("Make Model 1", "Make C/V 2")
    assert np.bincount(manifest.labels).tolist() == list(CARS.values())
    assert set(manifest.labels[manifest.indices("test")]) == {98, 99}
    folders = {path.split(os.sep + "car")[1].split(os.sep)[0] for path in manifest.images}
    assert folders == ({"_data"} if copy == "by class" else {"s_train", "s_test"})
    assert "read from the layout" in manifests.check("cars-subset", tmp_path)


def test_the_official_counts_hold_for_every_copy_of_cars(tmp_path, monkeypatch):
    layouts.write_cars_in_two_parts(tmp_path / "Cars196", CARS, 100)
    train, test = sum(list(CARS.values())[:98]), sum(list(CARS.values())[98:])
    monkeypatch.setitem(manifests.OFFICIAL, "cars", {"train": (train, 98), "test": (test, 2)})
    assert manifests.load("cars", tmp_path).name == "cars"
    monkeypatch.setitem(manifests.OFFICIAL, "cars", {"train": (train, 98), "test": (test + 1, 2)})
    with pytest.raises(ValueError, match="this is 'cars-subset'"):
        manifests.load("cars", tmp_path)


def test_annotations_that_do_not_fit_a_copy_of_cars_are_named(tmp_path):
    folder = layouts.write_cars_in_two_parts(tmp_path / "Cars196", CARS, 100)
    labelled = folder / "cars_test_annos_withlabels.mat"
    moved = labelled.rename(tmp_path / "kept.mat")
    with pytest.raises(ValueError, match=r"cars_test_annos.mat: .*cars_test_annos_withlabels.mat has the classes"):
        manifests.load("cars-subset", tmp_path)
    (folder / "devkit" / "cars_test_annos.mat").unlink()
    (folder / "cars_annos.mat").write_bytes(b"of the original")
    with pytest.raises(
        FileNotFoundError, match=r"withlabels.mat: missing.*the names in cars_annos.mat are those of car"
    ):
        manifests.load("cars-subset", tmp_path)
    moved.rename(folder / "devkit" / "cars_test_annos_withlabels.mat")
    manifests.load("cars-subset", tmp_path)
    (folder / "cars_test" / "00001.jpg").rename(folder / "cars_test" / "000001.jpg")
    with pytest.raises(ValueError, match=r"none for cars_test.000001.jpg"):
        manifests.load("cars-subset", tmp_path)
    (folder / "cars_test" / "000001.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"lists 1 files that are missing: .*cars_test.00001.jpg"):
        manifests.load("cars-subset", tmp_path)
    by_class = layouts.write_cars_by_class(tmp_path / "other" / "Cars196", {1: 2, 99: 2}, 100)
    (by_class / "anno_test.csv").write_text("00001.jpg,1,1,2,2,101\n")
    with pytest.raises(ValueError, match=r"anno_test.csv, line 1: expected a class from 1 to 100, found 101"):
        manifests.load("cars-subset", tmp_path / "other")


def test_sop_in_its_official_layout(tmp_path):
    layouts.write_sop(tmp_path, {1: 2, 2: 3}, {11319: 2, 11320: 2})
    manifest = manifests.load("sop-subset", tmp_path)
    assert np.bincount(manifest.labels).tolist() == [2, 3, 2, 2]
    assert manifest.class_names == ("1", "2", "11319", "11320")
    assert manifest.indices("test").tolist() == [5, 6, 7, 8]


def test_inshop_keeps_queries_and_gallery_apart(tmp_path):
    layouts.write_inshop(tmp_path, {2: {"train": 3}, 1: {"query": 1, "gallery": 2}, 5: {"gallery": 1, "query": 2}})
    manifest = manifests.load("inshop-subset", tmp_path)
    assert manifest.num_train_classes == 1
    assert manifest.class_names == ("id_00000002", "id_00000001", "id_00000005")
    assert manifest.indices("query").tolist() == [3, 7, 8]
    assert manifest.indices("gallery").tolist() == [4, 5, 6]
    assert manifest.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert manifest.images[3].endswith(os.path.join("Img", "img", "WOMEN", "Dresses", "id_00000001", "01_1_front.jpg"))


def test_omniglot_from_the_zips_and_from_folders(tmp_path):
    folder = layouts.write_omniglot(tmp_path, {"Greek": 2, "Latin": 1}, {"Tengwar": 2})
    zipped = manifests.load("omniglot-subset", tmp_path)
    assert zipped.class_names == (
        "Greek/character01",
        "Greek/character02",
        "Latin/character01",
        "Tengwar/character01",
        "Tengwar/character02",
    )
    assert np.bincount(zipped.labels).tolist() == [4] * 5 and zipped.num_train_classes == 3
    assert zipped.images.shape == (20, 28, 28)
    ink = zipped.images[0]  # character 1: a square from pixel 15 to 46 of 105, white on black now
    assert ink[8, 8] == 255 and ink[25, 25] == 0 and ink.mean() == pytest.approx(255 * (31 / 105) ** 2, rel=0.02)

    import zipfile

    for name in ("images_background", "images_evaluation"):
        with zipfile.ZipFile(folder / f"{name}.zip") as archive:
            archive.extractall(folder)
        (folder / f"{name}.zip").unlink()
    unpacked = manifests.load("omniglot-subset", tmp_path)
    assert unpacked.digest() == zipped.digest()


def test_mnist_has_the_same_ten_classes_in_both_parts(tmp_path):
    layouts.write_mnist(tmp_path, train=[*range(10), 3], test=[9, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8])
    manifest = manifests.load("mnist-subset", tmp_path)
    assert manifest.labels.tolist() == [*range(10), 3, 9, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert manifest.num_train_classes == 10 and manifest.class_names == tuple("0123456789")
    np.testing.assert_array_equal(manifest.images[:, 0, 0], 25 * manifest.labels)


# Counts


def test_official_counts_are_those_published():
    totals = {name: sum(images for images, _ in parts.values()) for name, parts in manifests.OFFICIAL.items()}
    assert totals == {"omniglot": 32460, "mnist": 70000, "cub": 11788, "cars": 16185, "sop": 120053, "inshop": 52712}
    assert manifests.OFFICIAL["inshop"]["train"][1] + manifests.OFFICIAL["inshop"]["query"][1] == 7982


def test_a_set_with_the_official_counts_is_the_full_set(tmp_path, monkeypatch):
    layouts.write_inshop(tmp_path, {1: {"train": 3}, 2: {"query": 1, "gallery": 2}})
    counts = {"train": (3, 1), "query": (1, 1), "gallery": (2, 1)}
    monkeypatch.setitem(manifests.OFFICIAL, "inshop", counts)
    assert manifests.load("inshop", tmp_path).name == "inshop"
    assert "official counts: yes" in manifests.check("inshop", tmp_path)
    with pytest.raises(ValueError, match=r"inshop-subset: expected fewer than.*this is 'inshop'"):
        manifests.load("inshop-subset", tmp_path)
    monkeypatch.setitem(manifests.OFFICIAL, "inshop", counts | {"train": (2, 1)})
    with pytest.raises(ValueError, match=r"list_eval_partition.txt: expected at most train 2 images.*found train 3"):
        manifests.load("inshop-subset", tmp_path)


def test_a_part_of_a_set_must_be_asked_for_as_a_subset(tmp_path):
    layouts.write_cub(tmp_path, {1: 2, 101: 2})
    with pytest.raises(
        ValueError, match=r"cub: expected train 5864 images of 100 classes.*found train 2.*'cub-subset'"
    ):
        manifests.load("cub", tmp_path)


def test_check_tells_what_is_there(tmp_path):
    layouts.write_cub(tmp_path, {1: 2, 2: 5, 101: 2, 102: 1})
    report = manifests.check("cub", tmp_path)
    assert "train          7        2        2..5        5864 / 100" in report
    assert "test           3        2        1..2        5924 / 100" in report
    assert "left out of retrieval scores: 1" in report
    assert "official counts: no" in report and "load it by: cub-subset" in report
    assert manifests.load("cub-subset", tmp_path).digest() in report
    assert manifests.present("cub", tmp_path).digest() in report


# Bad data: each error names the file, what was expected and what was found


def replace_line(path, number, text):
    lines = path.read_text().splitlines()
    lines[number - 1 : number] = [] if text is None else [text]
    layouts.write_lines(path, lines)


@pytest.mark.parametrize(
    ("name", "number", "text", "message"),
    [
        ("image_class_labels.txt", 3, None, "one row for each of the 4 images.*found 3; image 3 is missing"),
        ("images.txt", 3, None, "found 4; image 3 is not in images.txt"),
        ("image_class_labels.txt", 3, "3 201", "class ids from 1 to 200, found 201"),
        ("image_class_labels.txt", 3, "3 55", "declared classes, found images of undeclared class 55"),
        ("image_class_labels.txt", 3, "3 two", "image_class_labels.txt.*whole number, found 'two'"),
        ("image_class_labels.txt", 3, "2 2", "line 3: expected every id once, found 2 again"),
        ("images.txt", 3, "3", "images.txt, line 3: expected 2 fields.*found 1"),
        ("classes.txt", 2, "2 002.Bird_2\n3 003.Bird_3", r"class 3 \(003.Bird_3\) without an image"),
    ],
)
def test_contradictions_in_cub_are_named(tmp_path, name, number, text, message):
    folder = layouts.write_cub(tmp_path, {1: 1, 2: 1, 101: 2})
    replace_line(folder / name, number, text)
    with pytest.raises(ValueError, match=message):
        manifests.load("cub-subset", tmp_path)


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"classes.txt: missing.*data/README.md.*DMLREPRO_DATA"):
        manifests.load("cub-subset", tmp_path / "nowhere")
    layouts.write_cub(tmp_path, {1: 2, 101: 2})
    victim = next(tmp_path.rglob("Bird_0101_0000001.jpg"))
    victim.unlink()
    with pytest.raises(FileNotFoundError, match=r"labels.txt: lists 1 files that are missing: .*Bird_0101_0000001.jpg"):
        manifests.load("cub-subset", tmp_path)


def test_an_empty_part_is_named(tmp_path):
    layouts.write_cub(tmp_path, {1: 2, 2: 2})
    with pytest.raises(ValueError, match="to train on and another one to test on, found 2 and 0"):
        manifests.load("cub-subset", tmp_path)


def test_one_image_per_test_class_leaves_nothing_to_retrieve(tmp_path):
    layouts.write_cub(tmp_path, {1: 2, 101: 1, 102: 1})
    with pytest.raises(ValueError, match="a test class with a query and another gallery image, found none"):
        manifests.load("cub-subset", tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-8"])
def test_a_byte_order_mark_is_no_part_of_an_annotation_file(tmp_path, encoding):
    folder = layouts.write_cub(tmp_path, {1: 2, 101: 2})
    for name in ("classes.txt", "images.txt", "image_class_labels.txt"):
        text = (folder / name).read_text().replace(" ", "\t")  # tabs are blanks too
        (folder / name).write_bytes(text.encode(encoding))
    assert len(manifests.load("cub-subset", tmp_path)) == 4


@pytest.mark.parametrize(
    "name, edit, message",
    [
        ("classes.txt", lambda t: t.encode("utf-16"), "classes.txt: expected text in UTF-8, found UTF-16; save it"),
        (
            "classes.txt",
            lambda t: t.replace(" ", ",").encode(),
            "line 1: .*separated by blanks, found 1 in '1,001.Bird_1'",
        ),
        (
            "images.txt",
            lambda t: t.replace("_0000001", "_0000000").encode(),
            "lists 2 files more than once: .*000000.jpg",
        ),
        (
            "image_class_labels.txt",
            lambda t: t.replace("2 1", "2 101").encode(),
            "found 001.*0001.jpg of class 101.Bird",
        ),
    ],
)
def test_a_damaged_annotation_file_is_named(tmp_path, name, edit, message):
    folder = layouts.write_cub(tmp_path, {1: 2, 101: 2})
    (folder / name).write_bytes(edit((folder / name).read_text()))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        manifests.load("cub-subset", tmp_path)


def test_an_item_in_another_folder_is_named_in_sop_and_inshop(tmp_path):
    folder = layouts.write_sop(tmp_path, {1: 2, 13: 2}, {2: 2, 3: 2})
    table = folder / "Ebay_train.txt"
    table.write_text(table.read_text().replace("chair_final/000000000013_1", "sofa_final/000000000013_1"))
    with pytest.raises(ValueError, match=r"line 5: .* of super class 2 in chair_final/, found sofa_final"):
        manifests.load("sop-subset", tmp_path)
    folder = layouts.write_inshop(tmp_path, {1: {"train": 2}, 2: {"query": 1, "gallery": 1}})
    table = folder / "Eval" / "list_eval_partition.txt"
    table.write_text(table.read_text().replace(" id_00000002 ", " id_00000001 ", 1))
    with pytest.raises(ValueError, match="line 5: expected an image in the folder of its item id_00000001, found img/"):
        manifests.load("inshop-subset", tmp_path)


def test_a_missing_set_names_the_command_that_gets_it(tmp_path):
    for name in ("cub", "cars-subset", "mnist", "omniglot"):
        base = name.removesuffix("-subset")
        with pytest.raises(FileNotFoundError, match=f"`python -m experiments data fetch {base}` downloads the set"):
            manifests.load(name, tmp_path)


def test_drawings_of_16_bits_are_refused_rather_than_clipped(tmp_path):
    folder = layouts.write_omniglot(tmp_path, {"Greek": 2}, {"Latin": 2})
    data = io.BytesIO()
    Image.fromarray(np.full((105, 105), 40_000, np.uint16)).save(data, "PNG")
    path = folder / "images_background" / "Greek" / "character01" / "0001_01.png"
    with zipfile.ZipFile(folder / "images_background.zip") as archive:
        archive.extractall(folder)
    (folder / "images_background.zip").unlink()
    path.write_bytes(data.getvalue())
    with pytest.raises(ValueError, match=r"0001_01.png is not a readable image \(pixels of mode I;16, expected black"):
        manifests.load("omniglot-subset", tmp_path)


def test_a_class_in_both_parts_is_named(tmp_path):
    layouts.write_sop(tmp_path, {1: 2, 2: 2}, {2: 2, 3: 2})
    with pytest.raises(ValueError, match=r"other classes in test than in train, found 1 of 3 in both: 2$"):
        manifests.load("sop-subset", tmp_path)


def test_contradictions_in_cars_are_named(tmp_path):
    folder = layouts.write_cars(tmp_path, {1: 2, 2: 1}, num_classes=2)
    layouts.save_images([folder / "car_ims" / "000009.jpg"])
    with pytest.raises(
        ValueError, match=r"cars_annos.mat: expected a row for each of the 4.*none for car_ims.000009.jpg"
    ):
        manifests.load("cars-subset", tmp_path)
    (folder / "cars_annos.mat").write_bytes(b"not MATLAB")
    with pytest.raises(ValueError, match=r"cars_annos.mat: expected MATLAB arrays"):
        manifests.load("cars-subset", tmp_path)


def test_contradictions_in_tables_are_named(tmp_path):
    folder = layouts.write_sop(tmp_path, {1: 2}, {2: 2})
    replace_line(folder / "Ebay_test.txt", 1, "id class path")
    with pytest.raises(
        ValueError, match=r"Ebay_test.txt: expected line 1 to be 'image_id class_id.*found 'id class path'"
    ):
        manifests.load("sop-subset", tmp_path)
    table = (
        layouts.write_inshop(tmp_path, {1: {"train": 2}, 2: {"query": 1, "gallery": 1}})
        / "Eval/list_eval_partition.txt"
    )
    replace_line(table, 6, None)
    with pytest.raises(ValueError, match="line 1 promises 4 rows, found 3"):
        manifests.load("inshop-subset", tmp_path)
    replace_line(table, 5, "img/x.jpg id_00000002 val")
    replace_line(table, 1, "3")
    with pytest.raises(ValueError, match="line 5: expected evaluation_status train, query or gallery, found 'val'"):
        manifests.load("inshop-subset", tmp_path)


def test_damaged_archives_are_named(tmp_path):
    folder = layouts.write_omniglot(tmp_path, {"Greek": 2}, {"Tengwar": 2})
    archive = folder / "images_evaluation.zip"
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"images_evaluation.zip: expected a whole zip archive"):
        manifests.load("omniglot-subset", tmp_path)
    damaged = bytearray(whole)
    damaged[whole.index(b"IDAT") + 8] ^= 255
    archive.write_bytes(whole)
    manifests.load("omniglot-subset", tmp_path)  # the decoded drawings of the sound archive are cached now
    archive.write_bytes(damaged)
    os.utime(archive, (0, 0))  # another time, even where the file system's clock is coarse
    with pytest.raises(ValueError, match=r"images_evaluation.zip: images_evaluation/Tengwar/.*not a readable image"):
        manifests.load("omniglot-subset", tmp_path)


def test_truncated_idx_files_are_named(tmp_path):
    folder = layouts.write_mnist(tmp_path, list(range(10)) * 2, list(range(10)) * 2)
    file = folder / "t10k-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte: expected an IDX file.*found 15695 bytes"):
        manifests.load("mnist-subset", tmp_path)
