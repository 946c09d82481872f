"""The reader's own images: what is read, how it is split, and one test for each kind of breakage."""

import os
import re
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from experiments import cli
from experiments.datasets import images, manifests

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


@pytest.fixture
def birds(tmp_path):
    return write_birds(tmp_path / "birds")


def load(folder: Path) -> manifests.Manifest:
    return manifests.load(f"folder:{folder}")


def refused(place: Path, match: str, error: type[Exception] = ValueError) -> None:
    with pytest.raises(error, match=match):
        manifests.load(f"{'manifest' if place.suffix == '.csv' else 'folder'}:{place}")


def test_a_folder_per_class_is_split_by_class_alike_anywhere(birds, capsys):
    manifest = load(birds)
    assert len(manifest) == 12 and manifest.num_train_classes == 3
    assert manifest.class_names == ("lark", "owl", "rook", "jay", "kite", "swan")  # pinned: results depend on it
    assert [Path(path).parent.name for path in manifest.images] == [manifest.class_names[n] for n in manifest.labels]
    assert manifest.indices("query").tolist() == manifest.indices("gallery").tolist() == list(range(6, 12))
    write_birds(birds, ("auk",))
    assert len({*load(birds).class_names[:4]} ^ {*manifest.class_names[:3]}) <= 3  # at most one of the others moved
    assert cli.main(["data", "check", f"folder:{birds}"]) == 0
    printed = capsys.readouterr().out
    assert "split: half of the 7 classes for each part, drawn by name with seed 0" in printed
    assert "14 RGB; short side 5..6 pixels, long side 6..11" in printed
    assert f"name in results: {load(birds).name}" in printed
    noisy = manifests.load(f"folder:{birds}", label_noise=0.5, seed=3)
    assert len(noisy.corrupted) == 4 and noisy.name == load(birds).name


def test_train_and_test_folders_are_taken_as_they_are(tmp_path):
    for part, names in {"train": BIRDS[:2], "test": BIRDS[2:]}.items():
        write_birds(tmp_path / part, names)
    picture(tmp_path / "elsewhere.png")
    manifest = load(tmp_path)
    assert manifest.num_train_classes == 2 and manifest.class_names == BIRDS
    assert "split: by the folders train/ and test/" in manifests.check(f"folder:{tmp_path}")


def test_names_are_relative_to_the_data_folder_and_never_official_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path / "data"))
    write_birds(tmp_path / "data" / "my birds")
    manifest = manifests.load("folder:my birds")
    assert manifest.name.startswith("my_birds@") and str(tmp_path) not in manifest.name
    assert manifests.load("folder:../data/my birds").digest() == manifest.digest()
    own = load(write_birds(tmp_path / "cub")).name
    assert own.startswith("cub@") and manifests.is_own(own) and not manifests.is_own("cub-subset")


def test_the_digest_follows_content_not_location_and_equal_names_and_sizes_share_no_pixels(tmp_path, birds):
    first = load(birds)
    copy = write_birds(tmp_path / "elsewhere" / "birds")
    assert (load(copy).name, load(copy).digest()) == (first.name, first.digest())
    seen = {first.name}
    for change in (
        lambda: picture(copy / "owl" / "new.png"),
        lambda: (copy / "owl" / "new.png").rename(copy / "owl" / "renamed.png"),
        lambda: (copy / "owl" / "renamed.png").write_bytes(b"another size"),
        lambda: (copy / "owl").rename(copy / "eagle owl"),
    ):
        change()
        assert load(copy).name not in seen  # in the same process: nothing stale
        seen.add(load(copy).name)
    stores = []
    for name, level in (("dark", 10), ("light", 210)):
        for n, bird in enumerate(BIRDS):
            for k in range(2):
                picture(tmp_path / name / bird / f"{k}.bmp", level=level + 2 * n + k)
        stores.append(images.open_images(load(tmp_path / name))[0][0, 0, 0].item() // 100)
    assert stores == [0, 2]


def test_names_in_any_script_and_form_are_kept(tmp_path):
    names = ("小鸟", "чайка", "नीलकंठ", 'a "quoted", name', "two  blanks", "percent%20{brace}")
    manifest = load(write_birds(tmp_path / "птицы, 鸟", names))
    assert sorted(manifest.class_names) == sorted(names) and manifest.name.startswith("птицы_鸟@")
    assert len(images.open_images(manifest).sizes) == 12
    composed, decomposed = (
        load(write_birds(tmp_path / form / "birds", [unicodedata.normalize(form, name) for name in "eéfz"]))
        for form in ("NFC", "NFD")
    )
    assert composed.class_names == decomposed.class_names and composed.name == decomposed.name


def test_what_is_no_image_is_ignored_and_counted_and_sub_folders_belong_to_the_class_above(birds):
    before = load(birds)
    for name in ("@eaDir", "#recycle", "$RECYCLE.BIN", ".Trash-1000", "@Recycle"):
        picture(birds / "owl" / name / "0.png" / "SYNOPHOTO_THUMB_M.jpg")
    for name in ("Thumbs.db", "owl/.DS_Store", "owl/._0.png", "owl/README"):
        (birds / name).write_text("no image")
    (birds / "auk").mkdir()
    picture(birds / "on top.png")
    assert load(birds).digest() == before.digest()
    picture(birds / "owl" / "2020" / "may" / "2.png")
    manifest = load(birds)
    assert len(manifest) == 13 and set(manifest.class_names) == set(BIRDS)
    counts = "ignored: 4 files that are hidden or no images, 1 images outside of a class folder"
    assert counts in manifests.check(f"folder:{birds}")


def test_images_without_labels_are_refused_with_a_remedy(tmp_path):
    remedy = "no image lies in a folder of its class; make a folder per class, or give labels in a table, manifest:"
    picture(tmp_path / "heap" / "a.png")
    refused(tmp_path / "heap", f"heap: {remedy}")
    for part in ("train", "test"):
        picture(tmp_path / "parts" / part / "a.png")
    refused(tmp_path / "parts", f"parts/train and .*parts/test: {remedy}")
    (tmp_path / "heap.csv").write_text("path\nheap/a.png\n")
    refused(tmp_path / "heap.csv", "heap.csv: expected rows below the columns path and label.*found 1 below path$")


def test_a_missing_folder_is_named(tmp_path):
    refused(tmp_path / "nothing", r"nothing: expected a folder.*relative paths count from", FileNotFoundError)
    refused(picture(tmp_path / "a.png"), r"expected a folder \(a CSV file is manifest:\)", FileNotFoundError)
    with pytest.raises(FileNotFoundError, match=r"expected a CSV file \(a folder is folder:\)"):
        manifests.load(f"manifest:{tmp_path}")
    for name in ("folder:", "manifest: ", "birds@1a2b3c4d"):
        with pytest.raises(ValueError, match="expected a path after the colon"):
            manifests.load(name)


def rename_to_no_text(birds: Path) -> None:
    os.rename(os.fsencode(birds / "owl" / "1.png"), os.fsencode(birds / "owl") + b"/caf\xe9.png")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda birds: picture(birds / "Jay" / "0.png"), "2 classes differ only in .* case; merge them: 'Jay', 'jay'"),
        (lambda birds: [(birds / name / "1.png").unlink() for name in BIRDS], "a test class with a query and another"),
        (lambda birds: [write_birds(birds / part) for part in ("train", "test")], "alone, found jay, kite.*and 3 more"),
        (lambda birds: (birds / "owl" / "lost.png").symlink_to("gone.png"), "lists 1 files that are missing: .*lost"),
        (lambda birds: (birds / "owl" / "again").symlink_to(birds / "owl"), "owl/again: a link leads back to a folder"),
        (rename_to_no_text, r"1 names are not UTF-8.*caf.*\.png"),
    ],
)
def test_a_folder_that_contradicts_itself_is_refused(birds, change, message):
    change(birds)
    refused(birds, message, (ValueError, FileNotFoundError))


def test_parts_that_contradict_themselves_are_refused(tmp_path):
    for part in ("train", "test"):
        write_birds(tmp_path / part)
    refused(tmp_path, "found 6 of 6 in both: jay, kite, lark, owl, rook and 1 more; give each class to one part, or")
    shutil.rmtree(tmp_path / "test")
    refused(tmp_path, "at least 2 classes to train on")
    assert "train" in load(write_birds(tmp_path, ("car", "plane"))).class_names  # it may be a class


def test_unreadable_images_are_listed_together(birds, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100_000)
    (birds / "jay" / "0.png").write_bytes(b"")
    (birds / "kite" / "0.png").write_text("<html>404</html>")
    (birds / "owl" / "phone.heic").write_bytes(b"\0\0\0 ftypheic")
    picture(birds / "owl" / "line.png", (1000, 2))
    picture(birds / "lark" / "bomb.png", (600, 400))
    for read in (images.open_images, images.check):
        listed = "jay/0.png.*kite/0.png.*bomb.png .*decompression bomb.*line.png.*phone.heic"
        with pytest.raises(ValueError, match=f"5 of 15 files are no readable images: .*{listed}"):
            read(load(birds))
    assert not list((tmp_path / "cache" / "images").glob("[!.]*"))
    assert cli.main(["data", "check", f"folder:{birds}"]) == 2
    assert "5 of 15 files are no readable images" in capsys.readouterr().err


def test_pixels_that_are_cut_or_of_32_bits_are_unreadable(birds):
    os.truncate(picture(birds / "owl" / "cut.png", (90, 90)), 80)
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(birds / "owl" / "1.tif")
    listed = r"1.tif \(32-bit and signed pixels have no fixed range; convert them.*cut.png"
    with pytest.raises(ValueError, match=f"2 of 14 files are no readable images: .*{listed}"):
        images.open_images(load(birds))


def test_all_modes_become_rgb(birds, capsys):
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
    store, where = images.open_images(manifest), {os.path.basename(path): n for n, path in enumerate(manifest.images)}
    expected = {"L.png": [80] * 3, "16.png": [0x80] * 3, "P.png": [10, 200, 30], "animated.gif": [40] * 3}
    expected |= {key: [255] * 3 for key in ("CMYK.jpg", "clear.png", "LA.png", "1.bmp", "P clear.png")}
    assert {name: store[where[name]][:, 0, 0].tolist() for name in expected} == expected


@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_photographs_are_turned_upright(birds, suffix):
    upright = Image.fromarray(np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6)).convert("RGB").resize((48, 32), 0)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 270 degrees
    upright.transpose(Image.Transpose.ROTATE_90).save(birds / "owl" / f"turned.{suffix}", exif=exif, quality=95)
    manifest = load(birds)
    (index,) = (n for n, path in enumerate(manifest.images) if path.endswith(suffix))
    stored = images.open_images(manifest)[index].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(stored, np.asarray(upright), atol=12)


@pytest.mark.parametrize("how", [shutil.copy, os.symlink, os.link])
def test_a_file_under_a_training_and_a_test_class_is_named(birds, how):
    manifest = load(birds)
    trained, tested = (Path(manifest.images[manifest.indices(part)[0]]) for part in ("train", "test"))
    copy = tested.parent / "again.png"
    how(trained, copy)
    for read in (images.open_images, images.check):
        with pytest.raises(ValueError, match=rf"1 files of test classes are training images too: {copy} = {trained}"):
            read(load(birds))
    copy.unlink()
    how(trained, trained.parent / "again.png")  # of one class it is no leak
    assert len(images.open_images(load(birds)).sizes) == len(manifest) + 1


@pytest.fixture
def table(tmp_path, birds):
    """Lines of a CSV file of twelve images, beside the folder birds."""
    parts = dict.fromkeys(BIRDS[:3], "train") | dict.fromkeys(BIRDS[3:], "test")
    rows = [f"birds/{name}/{k}.png,{name},{parts[name]}" for name in BIRDS for k in range(2)]
    return "\n".join(["path,label,split", *rows]) + "\n"


def read(path: Path, text: str, encoding: str = "utf8") -> manifests.Manifest:
    path.write_bytes(text.encode(encoding))
    return manifests.load(f"manifest:{path}")


SPELLINGS = (
    lambda t: t.replace("\n", "\r\n").replace(",", ", ") + "\n",
    lambda t: t.replace("birds/owl/0.png", '"birds/owl/0.png"').replace("birds/jay/", "birds/../birds/jay/"),
    lambda t: t.replace("birds/owl", "{root}/birds/owl"),
)


@pytest.mark.parametrize("edit", SPELLINGS)
def test_spellings_of_a_table_are_the_same_set(tmp_path, table, edit):
    plain = read(tmp_path / "a.csv", table)
    again = read(tmp_path / "a.csv", edit(table).replace("{root}", str(tmp_path)), "utf-8-sig")
    assert (again.images, again.digest()) == (plain.images, plain.digest())


def test_labels_of_a_csv_file_are_names_and_queries_search_a_gallery(tmp_path, birds, table):
    numbers = re.sub(r"birds/(\w+)/(\d).png,\w+", lambda m: f"{m[0].rpartition(',')[0]},{7 * BIRDS.index(m[1])}", table)
    manifest = read(tmp_path / "a.csv", numbers)
    assert manifest.class_names == ("0", "14", "7", "21", "28", "35") and manifest.labels[-1] == 5
    unsplit = read(tmp_path / "a.csv", re.sub(",(split|train|test)", "", table))
    assert (unsplit.images, unsplit.split.tolist()) == (load(birds).images, load(birds).split.tolist())
    quoted = picture(birds / "owl" / 'a, "b".png')
    assert str(quoted) in read(tmp_path / "a.csv", table + '"birds/owl/a, ""b"".png",owl,test\n').images
    table = table.replace(",split", ",split,query,gallery,category").replace(",train", ",train,,,")
    for number, flags in ((0, "True,False"), (1, "False,True")):
        table = re.sub(rf"({number}\.png,\w+),test", rf"\1,test,{flags},x", table)
    manifest = read(tmp_path / "df.csv", table)
    assert manifest.class_names == BIRDS and manifest.name.startswith("df@")
    assert manifest.indices("query").tolist() == [6, 8, 10] and manifest.indices("gallery").tolist() == [7, 9, 11]
    report = manifests.check(f"manifest:{tmp_path}/df.csv")
    assert "split: by the column split" in report and "not used: category" in report


def flagged(flag: str):
    """An edit that adds the columns query, with a flag, and gallery, without."""
    flags = {"split": "split,query,gallery", ",train": ",train,,", ",test": f",test,{flag},false"}
    return lambda text: re.sub("split|,train|,test", lambda found: flags[found[0]], text)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.replace("path,", "file,"), "the columns path and label.*found 12 below file, label, split"),
        (lambda t: t.replace("split", "label"), "each once"),
        (lambda t: t.splitlines()[0], "found 0 below path, label, split"),
        (lambda t: t.encode("utf-16"), "a.csv: expected a CSV file in UTF-8"),
        (lambda t: t.replace("train", "training"), "6 rows whose split is neither.*line 2: training.*and 1 more"),
        (lambda t: t.replace("jay/1", "./owl/../jay/0"), "lists 1 files more than once: .*birds/jay/0.png"),
        (lambda t: t.replace(",jay,", ",,"), "2 rows without a path or a label.*line 2: birds/jay/0.png, line 3"),
        (lambda t: t.replace(",jay,", ',"  ",'), "2 rows without a path or a label"),
        (
            lambda t: flagged("true")(t).replace("true,false", "true,true", 2).replace("true,false", "false,true"),
            "4 gallery images that are no queries, beside images that are both",
        ),
        (lambda t: t.replace(",jay,", ",blue,jay,"), "2 rows .*more or fewer fields than the first.*line 2: .*jay/0"),
        (lambda t: t.replace(",jay,", ","), "2 rows .*more or fewer fields than the first.*line 2: .*jay/0"),
        (lambda t: t.replace(",", ";"), "by commas, found 12 below path;label;split"),
        (lambda t: t + 'birds/owl/2.png,"owl', r"expected a CSV file in UTF-8 \(unexpected end of data"),
        (lambda t: t.replace(",test", ",train"), "at least 2 classes to train on and another one to test on, found 6"),
        (lambda t: t.replace(",owl,test", ",jay,test"), "found 1 of 5 in both: jay; give each class to one part, or"),
        (flagged("maybe"), "6 test rows without true or false in query and gallery.*: line 8: .*owl/0.png"),
        (flagged("False"), "6 test rows without .* one true at least: line 8: .*owl/0.png"),
        (flagged("TRUE"), "a test class with a query and another gallery image, found none"),
    ],
)
def test_contradictions_in_a_csv_file_are_named(tmp_path, table, edit, message):
    edited = edit(table)
    (tmp_path / "a.csv").write_bytes(edited if isinstance(edited, bytes) else edited.encode())
    refused(tmp_path / "a.csv", message, (ValueError, FileNotFoundError))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_sizes_from_one_pixel_to_large_and_damaged_exif_are_read(birds):
    picture(birds / "owl" / "0.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12")
    for width, height in ((1, 1), (2, 1), (1, 3), (3000, 2000), (400, 10)):
        picture(birds / "owl" / f"{width}x{height}.png", (width, height))
    store = images.open_images(load(birds), short_side=16)
    assert store.sizes.min(1).values.unique().tolist() == [16]
    assert images.test_batch(store, np.arange(len(store.sizes)), 16).shape == (18, 3, 16, 16)
    assert images.train_batch(store, np.arange(len(store.sizes)), 16, torch.Generator()).shape[0] == 18
