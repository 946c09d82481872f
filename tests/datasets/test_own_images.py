"""The reader's own images: what is read, how it is split, and one test for each kind of breakage."""

import csv
import os
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from experiments import cli
from experiments.datasets import images, manifests, own_images
from experiments.files import data_root

BIRDS = ("jay", "kite", "lark", "owl", "rook", "swan")


def picture(path: Path, size: tuple[int, int] = (6, 5), mode: str = "RGB", level: int = 100, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, level if mode in ("L", "P", "I;16") else (level,) * len(mode)).save(path, **options)
    return path


def write_birds(folder: Path, classes=BIRDS, per_class: int = 2) -> Path:
    for number, name in enumerate(classes):
        for k in range(per_class):
            picture(folder / name / f"{k}.png", (6 + number, 5 + k))
    return folder


def write_csv(path: Path, header: str, *rows: str) -> str:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf8")
    return f"manifest:{path}"


@pytest.fixture
def birds(tmp_path):
    return write_birds(tmp_path / "birds")


def load(folder: Path) -> manifests.Manifest:
    return manifests.load(f"folder:{folder}")


def pixel(manifest, index: int = 0) -> list[int]:
    return images.open_images(manifest)[index][:, 0, 0].tolist()


def by_name(manifest) -> dict[str, int]:
    """Position of each image by its path below the class folder's parent."""
    return {"/".join(Path(path).parts[-2:]): index for index, path in enumerate(manifest.images)}


# Folders


def test_a_folder_per_class_is_split_by_class(birds):
    manifest = load(birds)
    assert len(manifest) == 12 and manifest.num_train_classes == 3 and len(manifest.class_names) == 6
    assert [Path(path).parent.name for path in manifest.images] == [
        manifest.class_names[label] for label in manifest.labels
    ]
    assert manifest.indices("query").tolist() == manifest.indices("gallery").tolist() == list(range(6, 12))


def test_the_split_is_the_same_anywhere():
    assert own_images.training_classes(BIRDS) == {"lark", "owl", "rook"}  # pinned: results depend on it
    assert own_images.training_classes(BIRDS[::-1]) == own_images.training_classes(BIRDS)
    assert len(own_images.training_classes(BIRDS[:5])) == 3
    names = [f"class {number}" for number in range(101)]
    before, after = own_images.training_classes(names[:-1]), own_images.training_classes(names)
    assert len((before ^ after) - {names[-1]}) <= 1


def test_train_and_test_folders_are_taken_as_they_are(tmp_path):
    write_birds(tmp_path / "Train", BIRDS[:2])
    write_birds(tmp_path / "test", BIRDS[2:])
    manifest = load(tmp_path)
    assert manifest.class_names == BIRDS and manifest.num_train_classes == 2
    assert "split: by the folders train/ and test/" in manifests.check(f"folder:{tmp_path}")


def test_names_are_relative_to_the_data_folder(tmp_path):
    write_birds(tmp_path / "data" / "my birds")
    manifest = manifests.load("folder:my birds", tmp_path / "data")
    assert manifest.name.startswith("my_birds@") and str(tmp_path) not in manifest.name
    assert manifests.load(f"folder:{tmp_path}/data/my birds/").digest() == manifest.digest()
    assert manifests.load("folder:../data/my birds", tmp_path / "data").name == manifest.name


def test_a_name_is_never_an_official_one(tmp_path):
    for name in ("cub", "cub-subset", "glyphs"):
        own = load(write_birds(tmp_path / name)).name
        assert own.startswith(f"{name}@") and own.removesuffix("-subset") not in manifests.OFFICIAL
        assert manifests.is_own(own) and not manifests.is_own(name)


def test_the_digest_follows_content_not_location(tmp_path, birds):
    first = load(birds)
    copy = write_birds(tmp_path / "elsewhere" / "birds")
    assert (load(copy).name, load(copy).digest()) == (first.name, first.digest())
    seen = {first.name}
    changes = (
        lambda: picture(copy / "owl" / "new.png"),
        lambda: (copy / "owl" / "new.png").rename(copy / "owl" / "renamed.png"),
        lambda: (copy / "owl" / "renamed.png").write_bytes(b"another size"),
        lambda: (copy / "owl" / "0.png").unlink(),
        lambda: (copy / "owl").rename(copy / "eagle owl"),
    )
    for change in changes:
        change()
        manifest = load(copy)  # in the same process: nothing stale
        assert manifest.name not in seen and manifest.name.endswith(manifest.name[-8:])
        seen.add(manifest.name)


def test_label_noise_works_on_own_images(birds):
    noisy = manifests.load(f"folder:{birds}", label_noise=0.5, seed=3)
    assert len(noisy.corrupted) == 3 and noisy.name == load(birds).name


def test_names_in_any_script_are_kept(tmp_path):
    names = ("小鸟", "чайка", "नीलकंठ", 'a "quoted", name', "two  blanks", "percent%20{brace}")
    manifest = load(write_birds(tmp_path / "птицы, 鸟", names))
    assert sorted(manifest.class_names) == sorted(names) and manifest.name.startswith("птицы_鸟@")
    assert len(images.open_images(manifest)) == 12
    name = f"folder:{tmp_path}/птицы, 鸟"
    assert cli.main(["data", "check", name, "--csv", str(tmp_path / "split.csv")]) == 0
    again = manifests.load(f"manifest:{tmp_path}/split.csv")
    assert (again.images, again.class_names) == (manifest.images, manifest.class_names)
    np.testing.assert_array_equal(again.labels, manifest.labels)
    np.testing.assert_array_equal(again.is_query, manifest.is_query)


def test_decomposed_accents_give_the_same_split_and_digest(tmp_path):
    composed, decomposed = (
        load(write_birds(tmp_path / form / "birds", [unicodedata.normalize(form, name) for name in "eéfz"]))
        for form in ("NFC", "NFD")
    )
    assert composed.class_names == decomposed.class_names and composed.name == decomposed.name


def test_sub_folders_belong_to_the_class_above(birds):
    picture(birds / "owl" / "2020" / "may" / "2.png")
    manifest = load(birds)
    assert len(manifest) == 13 and "owl" in manifest.class_names and "may" not in manifest.class_names
    assert "belong to the class folder above them: 1" in manifests.check(f"folder:{birds}")


def test_hidden_and_other_files_are_ignored_and_counted(birds):
    picture(birds / "owl" / ".hidden.png")
    picture(birds / ".thumbnails" / "owl" / "0.png")
    picture(birds / "__MACOSX" / "owl" / "0.png")
    picture(birds / "on top.png")
    for name in ("owl/notes.txt", "owl/README", "labels.txt"):
        (birds / name).write_text("no image")
    os.mkfifo(birds / "owl" / "pipe.png")  # opening it would wait for ever
    assert len(load(birds)) == 12
    report = manifests.check(f"folder:{birds}")
    assert "ignored: 3 hidden, 4 other files (2 .txt, " in report and "1 no suffix" in report
    assert "1 images outside of a class folder" in report and "on top.png" in report


def test_links_are_followed(tmp_path, birds):
    (tmp_path / "links").mkdir()
    for name in BIRDS:
        (tmp_path / "links" / name).symlink_to(birds / name)
    picture(tmp_path / "single.png")
    (tmp_path / "links" / "owl" / "2.png").symlink_to(tmp_path / "single.png")
    (tmp_path / "link to all").symlink_to(tmp_path / "links")
    assert len(load(tmp_path / "link to all")) == 13


def test_one_image_classes_stay_and_cannot_be_queries(birds):
    for name in ("jay", "owl"):  # one trains, one tests
        (birds / name / "1.png").unlink()
    manifest = load(birds)
    assert len(manifest) == 10 and {"jay", "owl"} <= set(manifest.class_names)
    assert "left out of retrieval scores: 1" in manifests.check(f"folder:{birds}")


def test_check_tells_the_split_and_surveys_the_headers(birds, capsys):
    picture(birds / "owl" / "grey.png", (40, 3), mode="L")
    assert cli.main(["data", "check", f"folder:{birds}"]) == 0
    printed = capsys.readouterr().out
    assert "split: half of the 6 classes for each part, drawn by their names with seed 0" in printed
    assert "12 RGB, 1 L; short side 3..6 pixels, long side 6..40" in printed
    assert f"name in results: {load(birds).name}" in printed


# Folders that cannot be used: each error lists the first few offenders


def refused(folder: Path, match: str, error: type[Exception] = ValueError) -> None:
    with pytest.raises(error, match=match):
        load(folder)


def test_a_missing_folder_is_named(tmp_path):
    refused(
        tmp_path / "nothing", r"nothing: expected a folder, found nothing \(relative paths count", FileNotFoundError
    )
    picture(tmp_path / "a.png")
    refused(tmp_path / "a.png", r"expected a folder, found something else, is it manifest:", FileNotFoundError)
    with pytest.raises(FileNotFoundError, match="expected a CSV file, found something else, is it folder:"):
        manifests.load(f"manifest:{tmp_path}")
    for name in ("folder:", "manifest: ", "birds@1a2b3c4d"):
        with pytest.raises(ValueError, match="expected a path after the colon"):
            manifests.load(name)


def test_an_empty_folder_and_one_of_few_images_are_refused(tmp_path):
    refused(tmp_path, "expected a folder per class, or at least 4 images without labels, found 0 images")
    for number in range(3):
        picture(tmp_path / f"{number}.png")
    refused(tmp_path, "found 3 images; sort images into folders, or list them")


def test_a_flat_folder_is_images_without_labels(tmp_path):
    for name in ("a.png", "b.png", "c.png", "d.png", "é.png", "f.png", "g.png", "notes.txt"):
        picture(tmp_path / "heap" / name) if name.endswith("png") else (tmp_path / "heap" / name).write_text("")
    manifest = load(tmp_path / "heap")
    assert not manifest.labelled and len(manifest) == 7
    np.testing.assert_array_equal(manifest.labels, np.arange(7))  # none shares a class with another
    assert (manifest.split == "train").sum() == 4
    assert sorted(manifest.class_names) == sorted(os.path.basename(path) for path in manifest.images)
    report = manifests.check(f"folder:{tmp_path / 'heap'}")
    assert "no labels" in report and "1 other files (1 .txt)" in report
    assert cli.main(["data", "check", f"folder:{tmp_path / 'heap'}", "--csv", str(tmp_path / "heap.csv")]) == 0
    again = manifests.load(f"manifest:{tmp_path / 'heap.csv'}")
    assert not again.labelled and again.images == manifest.images
    np.testing.assert_array_equal(again.split, manifest.split)


def test_flat_train_and_test_folders_are_taken_as_they_are(tmp_path):
    for number in range(6):
        picture(tmp_path / ("train" if number < 4 else "test") / f"{number}.png")
    picture(tmp_path / "elsewhere.png")
    manifest = load(tmp_path)
    assert not manifest.labelled and manifest.split.tolist() == ["train"] * 4 + ["test"] * 2


def test_empty_class_folders_are_named(birds):
    for name in ("auk", "emu"):
        (birds / name).mkdir()
    refused(birds, r"images of each of the 8 declared classes, found class 0 \(auk\), 1 \(emu\) without an image")


def test_too_few_classes_are_refused(tmp_path):
    refused(write_birds(tmp_path / "two", BIRDS[:2]), r"at least 2 classes to train on.*found 1 and 1 \(jay, kite\)")
    write_birds(tmp_path / "given" / "train", BIRDS[:1])
    write_birds(tmp_path / "given" / "test", BIRDS[1:])
    refused(tmp_path / "given", "found 1 and 5")


def test_test_classes_of_one_image_only_are_refused(tmp_path):
    refused(
        write_birds(tmp_path, per_class=1), "expected a test class with a query and another gallery image, found none"
    )


def test_classes_in_both_parts_are_named_with_the_remedy(tmp_path):
    for part in ("train", "test"):
        write_birds(tmp_path / part)
    refused(tmp_path, "found 6 of 6 in both: jay, kite, lark, owl, rook and 1 more; give each class to one part, or")


@pytest.mark.parametrize("names", [("train", "val"), ("train", "test", "val"), ("train",)])
def test_other_parts_than_train_and_test_are_refused(tmp_path, names):
    for name in names:
        write_birds(tmp_path / name)
    refused(tmp_path, rf"expected train/ and test/ and nothing else.*found {sorted(names)[0]}/")


def test_train_may_be_a_class(tmp_path):
    assert "train" in load(write_birds(tmp_path, ("car", "plane", "train"))).class_names


def test_links_that_lead_nowhere_are_named(birds):
    (birds / "owl" / "lost.png").symlink_to(birds / "gone.png")
    (birds / "owl" / "self").symlink_to("self")
    refused(birds, "2 links lead to nothing: .*lost.png.*self; remove or mend them", FileNotFoundError)


def test_links_in_a_circle_are_named(birds):
    (birds / "owl" / "again").symlink_to(birds / "owl")
    refused(birds, "1 links lead back to a folder above them: .*owl/again")


def test_classes_that_differ_in_case_only_are_named(birds):
    picture(birds / "Owl" / "2.png")
    refused(birds, "1 classes differ only in upper and lower case.*Owl and owl")


def test_file_names_that_are_no_text_are_named(birds):
    os.rename(os.fsencode(birds / "owl" / "1.png"), os.fsencode(birds / "owl") + b"/caf\xe9.png")
    refused(birds, r"1 file names are not UTF-8: .*caf.*\.png")


# Files that cannot be decoded: found before anything is trained


def test_unreadable_images_are_listed_together(birds, tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path / "cache"))
    (birds / "jay" / "0.png").write_bytes(b"")
    (birds / "kite" / "0.png").write_text("<html>404</html>")
    (birds / "owl" / "phone.heic").write_bytes(b"\0\0\0 ftypheic")
    line = picture(birds / "owl" / "line.png", (1000, 2))
    with pytest.raises(ValueError, match=r"4 of 14 files are no readable.*jay/0.png.*kite/0.png.*line.png.*phone.heic"):
        images.open_images(load(birds))
    with pytest.raises(ValueError, match=r"4 of 14 files are no readable"):
        images.survey(load(birds))
    line.unlink()
    assert os.listdir(tmp_path / "cache" / "images") == []


def test_truncated_images_are_listed_together(birds, capsys):
    for name in ("jay", "kite"):
        path = picture(birds / name / "0.png", (200, 200))
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8)).save(path)
        path.write_bytes(path.read_bytes()[:5000])
    assert "short side" in images.survey(load(birds))  # the headers are sound
    assert cli.main(["data", "check", f"folder:{birds}"]) == 2
    assert "2 of 12 files are no readable images" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"2 of 12 files are no readable images: .*jay/0.png.*kite/0.png"):
        images.open_images(load(birds))


def test_a_decompression_bomb_is_an_unreadable_image(birds, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    picture(birds / "owl" / "0.png", (30, 20))
    with pytest.raises(ValueError, match=r"1 of 12 files are no readable images: .*decompression bomb"):
        images.open_images(load(birds))


def test_images_of_32_bits_are_refused(birds):
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(birds / "owl" / "0.tif")
    with pytest.raises(ValueError, match=r"0.tif \(32-bit and signed pixels have no fixed range; convert them"):
        images.open_images(load(birds))


# Files of all modes and sizes


def test_all_modes_become_rgb(birds):
    owl = birds / "owl"
    picture(owl / "L.png", mode="L", level=80)
    picture(owl / "CMYK.jpg", mode="CMYK", level=0)
    picture(owl / "clear.png", mode="RGBA", level=0)
    picture(owl / "LA.png", mode="LA", level=255)
    Image.fromarray(np.full((5, 6), 0x8034, np.uint16)).save(owl / "16.png")
    Image.new("1", (6, 5), 1).save(owl / "1.bmp")
    palette = Image.new("P", (6, 5), 1)
    palette.putpalette([0, 0, 0, 10, 200, 30])
    palette.save(owl / "P.png")
    palette.save(owl / "P clear.png", transparency=1)
    frames = [Image.new("L", (6, 5), level) for level in (40, 200)]
    frames[0].save(owl / "animated.gif", save_all=True, append_images=frames[1:])
    manifest = load(birds)
    where = by_name(manifest)
    expected = {
        "L.png": [80] * 3,
        "CMYK.jpg": [255] * 3,
        "clear.png": [255] * 3,
        "LA.png": [255] * 3,
        "16.png": [0x80] * 3,
        "1.bmp": [255] * 3,
        "P.png": [10, 200, 30],
        "P clear.png": [255] * 3,
        "animated.gif": [40] * 3,
    }
    assert {name: pixel(manifest, where[f"owl/{name}"]) for name in expected} == expected


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
def test_photographs_are_turned_upright(birds, suffix):
    upright = Image.fromarray(np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6)).convert("RGB").resize((48, 32), 0)
    for orientation, turn in {1: None, **images.UPRIGHT}.items():
        back = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}.get(orientation, turn)
        stored = upright if back is None else upright.transpose(back)
        exif = Image.Exif()
        exif[0x0112] = orientation
        options = {"lossless": True} if suffix == "webp" else {"quality": 95} if suffix == "jpg" else {}
        stored.save(birds / "owl" / f"turned {orientation}.{suffix}", exif=exif, **options)
    manifest = load(birds)
    store, where = images.open_images(manifest), by_name(manifest)
    for orientation in range(1, 9):
        image = store[where[f"owl/turned {orientation}.{suffix}"]]
        np.testing.assert_allclose(image.permute(1, 2, 0).numpy(), np.asarray(upright), atol=12)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_is_no_reason_to_refuse(birds):
    picture(birds / "owl" / "0.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12")
    assert len(images.open_images(load(birds))) == 13


def test_sizes_from_one_pixel_to_large(birds):
    for width, height in ((1, 1), (2, 1), (1, 3), (3000, 2000), (400, 10)):
        picture(birds / "owl" / f"{width}x{height}.png", (width, height))
    manifest = load(birds)
    store = images.open_images(manifest, short_side=16)
    assert store.sizes.min(1).values.unique().tolist() == [16]
    assert images.test_batch(store, np.arange(len(store)), 16).shape == (17, 3, 16, 16)
    assert images.train_batch(store, np.arange(len(store)), 16, torch.Generator()).shape[0] == 17


def test_folders_of_equal_names_and_sizes_do_not_share_pixels(tmp_path):
    stores = []
    for name, level in (("dark", 10), ("light", 210)):
        for n, bird in enumerate(BIRDS):
            for k in range(2):
                picture(tmp_path / name / bird / f"{k}.bmp", level=level + 2 * n + k)
        stores.append(pixel(load(tmp_path / name))[0] // 100)
    assert stores == [0, 2]


@pytest.mark.parametrize("how", [shutil.copy, os.symlink, os.link])
def test_a_file_under_a_training_and_a_test_class_is_named(birds, how):
    manifest = load(birds)
    trained, tested = (Path(manifest.images[manifest.indices(part)[0]]) for part in ("train", "test"))
    copy = tested.parent / "again.png"
    how(trained, copy)
    for read in (images.open_images, images.survey):
        with pytest.raises(ValueError, match=rf"1 files of test classes are training images too: {copy} = {trained}"):
            read(load(birds))
    copy.unlink()
    how(trained, trained.parent / "again.png")  # of one class it is no leak
    assert len(images.open_images(load(birds))) == len(manifest) + 1


# CSV files


@pytest.fixture
def rows(birds):
    """(path, label, split) of twelve images; the CSV file lies beside the folder birds."""
    parts = dict.fromkeys(BIRDS[:3], "train") | dict.fromkeys(BIRDS[3:], "test")
    return [(f"birds/{name}/{k}.png", name, parts[name]) for name in BIRDS for k in range(2)]


def test_a_csv_file_in_the_fields_spelling(tmp_path, rows):
    lines = [
        f"{n},{path},{label},{part.replace('test', 'validation')}," + ("," if part == "train" else f"{k},{not k}")
        for n, ((path, label, part), k) in enumerate(zip(rows, [True, False] * 6))
    ]
    name = write_csv(tmp_path / "df.csv", "category,path,label,split,is_query,is_gallery", *lines)
    manifest = manifests.load(name)
    assert manifest.class_names == BIRDS and manifest.name.startswith("df@")
    assert manifest.indices("query").tolist() == [6, 8, 10] and manifest.indices("gallery").tolist() == [7, 9, 11]
    report = manifests.check(name)
    assert "split: by the column split" in report and "not used: category" in report


def test_a_csv_file_without_split_is_split_like_the_folder(tmp_path, birds, rows):
    manifest = manifests.load(
        write_csv(tmp_path / "a.csv", "label,path", *(f"{label},{path}" for path, label, _ in rows))
    )
    folder = load(birds)
    assert manifest.class_names == folder.class_names and manifest.images == folder.images
    assert manifest.split.tolist() == folder.split.tolist()


def test_byte_order_marks_windows_lines_and_quotes_are_read(tmp_path, birds):
    picture(birds / "owl" / 'a, "b".png')
    table = 'Path, Label\r\n"birds/owl/a, ""b"".png", owl\r\n'
    table += "".join(f"birds/{name}/{k}.png, {name}\r\n" for name in BIRDS for k in range(2)) + "\r\n,\r\n"
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + table.encode())
    manifest = manifests.load(f"manifest:{tmp_path}/a.csv")
    assert len(manifest) == 13 and set(manifest.class_names) == set(BIRDS)


def test_numbers_as_labels_are_names_like_others(tmp_path, rows):
    number = {name: str(7 * k) for k, name in enumerate(BIRDS)}
    lines = [f"{path},{number[label]},{part}" for path, label, part in rows]
    manifest = manifests.load(write_csv(tmp_path / "a.csv", "path,label,split", *lines))
    assert manifest.class_names == ("0", "14", "7", "21", "28", "35") and manifest.labels[-1] == 5


def test_absolute_paths_and_paths_upwards_are_allowed(tmp_path, rows):
    (tmp_path / "tables").mkdir()
    lines = [f"{tmp_path if k % 2 else '..'}/{path},{label},{part}" for k, (path, label, part) in enumerate(rows)]
    manifest = manifests.load(write_csv(tmp_path / "tables" / "a.csv", "path,label,split", *lines))
    plain = manifests.load(write_csv(tmp_path / "a.csv", "path,label,split", *map(",".join, rows)))
    assert manifest.images == plain.images and manifest.name == plain.name


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_csv_file_of_a_spreadsheet_is_read(tmp_path, rows, separator):
    lines = [separator.join(row) for row in (("path", "label", "split"), *rows)]
    (tmp_path / "a.csv").write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    plain = manifests.load(write_csv(tmp_path / "b.csv", "path,label,split", *map(",".join, rows)))
    assert manifests.load(f"manifest:{tmp_path}/a.csv").images == plain.images


def test_labels_need_not_be_the_names_of_the_folders(tmp_path, rows):
    shifted = {"jay": "kite", "kite": "jay"}  # most images lie in folders that say nothing of their label
    lines = [f"{path},{shifted.get(label, label.upper())},{part}" for path, label, part in rows]
    assert len(manifests.load(write_csv(tmp_path / "a.csv", "path,label,split", *lines))) == len(rows)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.replace("path,", "file,"), "expected the columns path and label.*found file, label, split;"),
        (
            lambda t: t.replace("label,", "kind,"),
            "expected the columns path and label.*kind, split; a table of images",
        ),
        (lambda t: t.replace(",", "|"), r"separated by commas, semicolons or tabs, found path\|label\|split"),
        (
            lambda t: t.replace("jay/1.png,jay", "jay/1.png,kite"),
            "1 images lie in the folder of an.*jay/1.png as kite",
        ),
        (lambda t: t.replace("split", "label"), "each column once"),
        (lambda t: t.splitlines()[0], "found only the header"),
        (lambda t: "", "found nothing"),
        (lambda t: t.replace("train", "training"), "6 rows whose split is none of.*line 2: 'training'.*and 1 more"),
        (lambda t: t.replace("test", "", 1), "1 rows whose split is none of train, test, validation: line 8: ''"),
        (lambda t: t.replace("test", "validation", 1), "found all three"),
        (lambda t: t.replace("jay/1", "jay/0"), "1 rows repeat an image: line 3 and line 2: .*jay/0.png"),
        (lambda t: t.replace("jay/1", "./owl/../jay/0"), "1 rows repeat an image: line 3 and line 2"),
        (lambda t: t.replace(",jay,", ",,"), "2 rows without a path or a label: line 2, line 3"),
        (lambda t: t.replace(",jay,", ",blue,jay,"), "2 rows without exactly 3 fields: line 2 has 4"),
        (lambda t: t.replace(",jay", ',"jay'), "expected a CSV file in UTF-8, found something else"),
        (lambda t: t.replace(",owl,test", ",jay,test"), "found 1 of 5 in both: jay; give each class to one part, or"),
        (lambda t: t.replace(",owl,", ",Jay,"), "differ only in upper and lower case.*Jay and jay"),
        (lambda t: t.replace("test", "train"), "at least 2 classes to train on.*found 6 and 0"),
    ],
)
def test_contradictions_in_a_csv_file_are_named(tmp_path, rows, edit, message):
    (tmp_path / "a.csv").write_text(edit("path,label,split\n" + "".join(",".join(row) + "\n" for row in rows)))
    with pytest.raises(ValueError, match=message):
        manifests.load(f"manifest:{tmp_path}/a.csv")


def test_other_encodings_and_binary_files_are_refused(tmp_path):
    for content in (
        "path,label\ncafé.png,é\n".encode("latin-1"),
        "path,label\n".encode("utf-16"),
        b"PK\x03\x04\x00\xff",
    ):
        (tmp_path / "a.csv").write_bytes(content)
        with pytest.raises(ValueError, match=r"a.csv: expected a CSV file in UTF-8"):
            manifests.load(f"manifest:{tmp_path}/a.csv")


def test_missing_files_in_a_csv_file_are_listed(tmp_path, birds, rows):
    for k in range(2):
        (birds / "owl" / f"{k}.png").unlink()
    name = write_csv(tmp_path / "a.csv", "path,label,split", *map(",".join, rows))
    with pytest.raises(FileNotFoundError, match=r"a.csv: lists 2 files that are missing: .*owl/0.png, .*owl/1.png"):
        manifests.load(name)


def test_bad_flags_are_named(tmp_path, rows):
    def with_query(flag):
        lines = [f"{path},{label},{part},{flag if part == 'test' else ''},no" for path, label, part in rows]
        return write_csv(tmp_path / "a.csv", "path,label,split,query,gallery", *lines)

    with pytest.raises(ValueError, match="6 test rows whose query is neither true nor false: line 8: 'maybe'"):
        manifests.load(with_query("maybe"))
    with pytest.raises(ValueError, match=r"6 test rows are neither query nor gallery: line 8: birds/owl/0.png"):
        manifests.load(with_query("False"))
    with pytest.raises(ValueError, match="a test class with a query and another gallery image, found none"):
        manifests.load(with_query("1"))


def test_a_csv_file_is_written_for_files_only_and_overwrites_nothing(tmp_path, birds, capsys):
    (tmp_path / "mine.csv").write_text("mine")
    assert cli.main(["data", "check", f"folder:{birds}", "--csv", str(tmp_path / "mine.csv")]) == 2
    assert "mine.csv exists" in capsys.readouterr().err and (tmp_path / "mine.csv").read_text() == "mine"
    with pytest.raises(ValueError, match="glyphs has no image files"):
        own_images.write_csv(manifests.load("glyphs", images_per_class=1), tmp_path / "a.csv")


# Real photographs


def test_a_folder_of_photographs(tmp_path):
    source = data_root() / "CUB_200_2011" / "images"
    if not source.is_dir():
        pytest.skip("DMLREPRO_DATA has no CUB_200_2011")
    (tmp_path / "birds").mkdir()
    for folder in sorted(source.iterdir())[:6]:
        (tmp_path / "birds" / folder.name).symlink_to(folder)
    manifest = load(tmp_path / "birds")
    assert manifest.num_train_classes == 3 and len(manifest) > 100
    store = images.open_images(manifest, short_side=64)
    expected = Image.open(manifest.images[5]).resize(tuple(store.sizes[5].flip(0).tolist()), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(store[5].permute(1, 2, 0), np.asarray(expected))
    path = tmp_path / "birds.csv"
    own_images.write_csv(manifest, path)
    assert len(list(csv.reader(path.open()))) == len(manifest) + 1
