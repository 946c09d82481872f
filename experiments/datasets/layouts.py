"""Readers of the official file layouts: one function per data set, folder in, annotations out.

A library's reader is used where it reads all that the files say: MNIST by torchvision, CUB, SOP and a public copy of
Cars by pytorch-metric-learning. What holds for every set (no gaps, no empty split, the official counts) is checked in
manifests.py. Errors name the file, the expected and the actual content.
"""

import contextlib
import io
import zipfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from itertools import chain, starmap
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from experiments.files import cache_root, mapped_array

OMNIGLOT_SIZE = 28  # pixels; the drawings are 105 x 105


class Annotations(NamedTuple):
    """What a layout says, in its own order."""

    source: Path  # the file that holds the labels, for error messages
    images: np.ndarray | list[Path] | list[str]  # uint8 (N, H, W), or N paths
    labels: Sequence[str]  # N names of classes
    parts: np.ndarray  # (N,) "train", "test", "query" or "gallery"
    classes: list[str]  # every class the layout declares, in the order of their numbers
    own_name: str = ""  # what the reader's own images are called
    notes: tuple[str, ...] = ()  # how the annotations came about, for `data check`


def read_cub(root: Path) -> Annotations:
    """CUB_200_2011/: images.txt, image_class_labels.txt, classes.txt, images/. Classes 1..100 train, 101..200 test."""
    files = ("image_class_labels.txt", "images.txt", "classes.txt")
    source, *_ = paths = [existing(root / "CUB_200_2011" / name) for name in files]
    with official(source):
        from pytorch_metric_learning.datasets import CUB

        found = CUB(root)  # it leaves out what does not match
        labels, images, classes = (path.read_text(encoding="utf8").splitlines() for path in paths)
        if {len(labels), len(images)} != {len(found)}:
            expected = f"{max(len(labels), len(images))} images with a class from 1 to 200"
            raise ValueError(f"expected {expected}, each under the same id in both tables, found {len(found)}")
        names = {int(number): name for number, name in map(str.split, classes)}
        named = [(path, Path(path).parent.name, number) for path, number in zip(found.paths, found.labels)]
        if wrong := [f"{path} of class {names[n]}" for path, place, n in named if names.get(n, place) != place]:
            raise ValueError(f"expected every image in the folder of its class, found {few(wrong)}")
    parts = np.where(np.array(found.labels) <= 100, "train", "test")
    class_of = [names.get(number, str(number)) for number in found.labels]
    return Annotations(source, found.paths, class_of, parts, [names[number] for number in sorted(names)])


def read_cars(root: Path) -> Annotations:
    """Cars196/ as published, cars_annos.mat and car_ims/, or pytorch-metric-learning's copy, names.csv and car_data/.

    Classes 1..98 train, 99..196 test, whatever the parts and flags of a layout say: those mix all classes.
    """
    folder, copy = root / "Cars196", (root / "Cars196" / "names.csv").is_file()
    with official(folder / ("names.csv" if copy else "cars_annos.mat")) as source:
        if copy:
            from pytorch_metric_learning.datasets import Cars196

            parts = [Cars196(folder, part) for part in ("train", "test")]
            images = [Path(path) for part in parts for path in part.paths]
            numbers = np.array([label for part in parts for label in part.labels])
            names = source.read_text(encoding="utf8").strip().splitlines()
        else:
            from scipy.io import loadmat

            tables = loadmat(source, squeeze_me=True)
            rows = np.atleast_1d(tables["annotations"])
            images, numbers = [folder / path for path in rows["relative_im_path"]], rows["class"].astype(np.int64)
            names = [*map(str, np.atleast_1d(tables["class_names"]))]
        class_of = [names[number] for number in numbers - 1]
    on_disk = set(existing(folder / ("car_data" if copy else "car_ims")).rglob("*.jpg"))
    if unlabelled := sorted(str(path.relative_to(folder)) for path in on_disk - set(images)):
        raise ValueError(f"{source}: expected a row for each of the {len(on_disk)} images, none for {unlabelled[0]}")
    notes = ("read from pytorch-metric-learning's copy",) * copy
    return Annotations(source, images, class_of, np.where(numbers <= 98, "train", "test"), names, notes=notes)


def read_sop(root: Path) -> Annotations:
    """Stanford_Online_Products/: Ebay_train.txt, Ebay_test.txt (image_id class_id super_class_id path), *_final/."""
    with official(root / "Stanford_Online_Products" / "Ebay_train.txt") as source:
        from pytorch_metric_learning.datasets import StanfordOnlineProducts

        train, test = (StanfordOnlineProducts(root, part) for part in ("train", "test"))
    numbers, paths = train.labels + test.labels, train.paths + test.paths
    names = [*map(str, sorted({*numbers}))]
    if len({(number, Path(path).parent) for number, path in zip(numbers, paths)}) > len(names):
        raise ValueError(f"{source.parent}: expected all images of a class in one folder of a super-class")
    parts = np.repeat(["train", "test"], [len(train), len(test)])
    return Annotations(source, paths, [*map(str, numbers)], parts, names)


def read_inshop(root: Path) -> Annotations:
    """InShop/: Eval/list_eval_partition.txt (count, header, rows image_name item_id evaluation_status), Img/img/."""
    folder = root / "InShop"
    with official(folder / "Eval" / "list_eval_partition.txt") as source:
        import pandas as pd

        promised = int(source.read_text(encoding="utf8").partition("\n")[0])
        rows = pd.read_csv(source, sep=r"\s+", skiprows=1, dtype=str).fillna("")
        if promised != len(rows):
            raise ValueError(f"line 1 promises {promised} rows, found {len(rows)}")
        paths, items, parts = (rows[name] for name in ("image_name", "item_id", "evaluation_status"))
        if odd := sorted({*parts} - {"train", "query", "gallery"}):
            raise ValueError(f"expected evaluation_status train, query or gallery, found {few(odd)}")
        if elsewhere := [path for path, item in zip(paths, items) if item not in path.split("/")]:
            raise ValueError(f"expected each image in the folder of its item, found {few(elsewhere)}")
    images = [folder / "Img" / path for path in paths]
    return Annotations(source, images, [*items], parts.to_numpy("U7"), sorted({*items}))


def read_mnist(root: Path) -> Annotations:
    """MNIST/raw/: the four IDX files. The ten digits are in both parts: a closed set, unlike the others."""
    with official(root / "MNIST" / "raw") as folder:
        from torchvision.datasets import MNIST

        train, test = MNIST(root), MNIST(root, train=False)
        images, labels = np.concatenate([train.data, test.data]), np.concatenate([train.targets, test.targets])
        if len(images) != len(labels):
            raise ValueError(f"expected a label for each of the {len(images)} images, found {len(labels)}")
    split = np.repeat(["train", "test"], [len(train), len(test)])
    return Annotations(folder / "train-labels-idx1-ubyte", images, labels.astype(str).tolist(), split, [*"0123456789"])


@contextlib.contextmanager
def official(source: Path, member: str = "") -> Iterator[Path]:
    """Around a library's reader, whose errors may not name the files: those that are missing, or not as published."""
    try:
        yield existing(source)
    except FileNotFoundError:
        raise
    except Exception as error:
        kind = FileNotFoundError if "not found" in str(error) else ValueError  # as torchvision says it
        raise kind(f"{source / member}: not as it was published ({error!r})") from error


def read_omniglot(root: Path) -> Annotations:
    """omniglot/: images_background.zip (train) and images_evaluation.zip (test).

    A class is a character of an alphabet. The 105 x 105 drawings become 28 x 28, antialiased, ink white on black.
    """
    drawings: dict[Path, list[tuple[str, int]]] = {}  # names and checksums, by archive
    for name in ("images_background.zip", "images_evaluation.zip"):
        with official(root / "omniglot" / name) as archive, zipfile.ZipFile(archive) as file:
            listed = sorted((member.filename, member.CRC) for member in file.infolist())
            drawings[archive] = [entry for entry in listed if fnmatch(entry[0], f"{archive.stem}/*/*/*.png")]
            if not drawings[archive]:
                raise ValueError(f"expected {archive.stem}/<alphabet>/<character>/*.png, found none")
    # the checksum that an archive lists stays the same when a drawing is damaged
    written = [archive.stat().st_mtime_ns for archive in drawings]
    key = (OMNIGLOT_SIZE, Image.__version__, written, [*drawings.values()])
    shape = (sum(map(len, drawings.values())), OMNIGLOT_SIZE, OMNIGLOT_SIZE)
    drawn = chain(*starmap(_decoded, drawings.items()))
    images = mapped_array(cache_root() / "omniglot", key, shape, np.dtype(np.uint8), lambda: drawn)
    characters = [name.rsplit("/", 1)[0].split("/", 1)[1] for entries in drawings.values() for name, _ in entries]
    parts = np.repeat(["train", "test"], [len(entries) for entries in drawings.values()])
    return Annotations(root / "omniglot", images, characters, parts, sorted({*characters}))


def _decoded(archive: Path, drawings: list[tuple[str, int]]) -> Iterator[np.ndarray]:
    with zipfile.ZipFile(archive) as file:
        for name, _ in drawings:
            with official(archive, name), Image.open(io.BytesIO(file.read(name))) as image:
                if image.mode not in ("1", "L", "P", "RGB"):  # converting more bits to 8 would clip them to white
                    raise ValueError(f"pixels of mode {image.mode}, expected black and white")
                small = image.convert("L").resize((OMNIGLOT_SIZE, OMNIGLOT_SIZE), Image.Resampling.BILINEAR)
            yield 255 - np.asarray(small)


def few(items: list[str], shown: int = 5) -> str:
    """The first items and how many more there are, for error messages."""
    return ", ".join(items[:shown]) + (f" and {len(items) - shown} more" if len(items) > shown else "")


def existing(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path}: missing; data/README.md says where it must lie, DMLREPRO_DATA moves data/")
    return path
