"""Readers of the official file layouts: one function per data set, folder in, annotations out.

A library's reader is used where it reads all that the files say: MNIST by torchvision, CUB, SOP and a public copy of
Cars by pytorch-metric-learning. Torchvision's of Omniglot needs other folders than the published ones, and nobody's
reads In-Shop with its gallery.

What holds for every set (no gaps, no empty split, the official counts, one numbering of classes) is checked in
manifests.py. Errors name the file, the expected and the actual content.
"""

import contextlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
from PIL import Image

from experiments.files import cached_array

OMNIGLOT_SIZE = 28  # pixels; the drawings are 105 x 105


@dataclass(frozen=True)
class Annotations:
    """What a layout says, in its own order and numbering."""

    source: Path  # the file that holds the labels, for error messages
    images: np.ndarray | list[Path] | list[str]  # uint8 (N, H, W), or N paths
    class_ids: np.ndarray  # (N,) class numbers; official sets keep theirs
    parts: np.ndarray  # (N,) "train", "test", "query" or "gallery"
    class_names: dict[int, str]  # of every class the layout declares
    open_set: bool = True  # training and test classes are different ones
    own_name: str = ""  # what the reader's own images are called
    notes: tuple[str, ...] = ()  # how the annotations came about, for `data check`
    labelled: bool = True  # False where nothing says which images belong together: each is a class of its own


def read_cub(root: Path) -> Annotations:
    """CUB_200_2011/: images.txt, image_class_labels.txt, classes.txt, images/. Classes 1..100 train, 101..200 test."""
    files = ("image_class_labels.txt", "images.txt", "classes.txt")
    source, listed, classes = (existing(root / "CUB_200_2011" / name) for name in files)
    with official(source):
        from pytorch_metric_learning.datasets import CUB

        found = CUB(root)  # it leaves out what does not match
        rows = [len(path.read_text(encoding="utf8").splitlines()) for path in (source, listed)]
        if {*rows} != {len(found)}:
            what = "images with a class from 1 to 200"
            raise ValueError(f"expected {max(rows)} {what}, each under the same id in both tables, found {len(found)}")
        table = [line.split() for line in classes.read_text(encoding="utf8").splitlines()]
        names = {int(number): name for number, name in table}
        folders = [Path(path).parent.name for path in found.paths]
        named = zip(found.paths, folders, found.labels)
        if wrong := [f"{path} of class {names[n]}" for path, place, n in named if names.get(n, place) != place]:
            raise ValueError(f"expected every image in the folder of its class, found {few(wrong)}")
    class_ids = np.array(found.labels)
    return Annotations(source, found.paths, class_ids, np.where(class_ids <= 100, "train", "test"), names)


def read_cars(root: Path) -> Annotations:
    """Cars196/ as published, cars_annos.mat and car_ims/, or pytorch-metric-learning's copy, names.csv and car_data/.

    Classes 1..98 train, 99..196 test, whatever the parts and flags of a layout say: those mix all classes.
    """
    folder, copy = root / "Cars196", is_copy_of_cars(root)
    source = existing(folder / ("names.csv" if copy else "cars_annos.mat"))
    with official(source):
        if copy:
            from pytorch_metric_learning.datasets import Cars196

            parts = [Cars196(folder, part) for part in ("train", "test")]
            images = [Path(path) for part in parts for path in part.paths]
            class_ids = np.array([label for part in parts for label in part.labels])
            names = source.read_text(encoding="utf8").strip().splitlines()
        else:
            from scipy.io import loadmat

            tables = loadmat(source, squeeze_me=True)
            rows = np.atleast_1d(tables["annotations"])
            images, class_ids = [folder / path for path in rows["relative_im_path"]], rows["class"].astype(np.int64)
            names = np.atleast_1d(tables["class_names"]).tolist()
    on_disk = set(existing(folder / ("car_data" if copy else "car_ims")).rglob("*.jpg"))
    if unlabelled := sorted(str(path.relative_to(folder)) for path in on_disk - set(images)):
        raise ValueError(f"{source}: expected a row for each of the {len(on_disk)} images, none for {unlabelled[0]}")
    notes = ("read from pytorch-metric-learning's copy",) * copy
    numbered = {number: str(name) for number, name in enumerate(names, 1)}
    return Annotations(source, images, class_ids, np.where(class_ids <= 98, "train", "test"), numbered, notes=notes)


def is_copy_of_cars(root: Path) -> bool:
    return (root / "Cars196" / "names.csv").is_file()


def read_sop(root: Path) -> Annotations:
    """Stanford_Online_Products/: Ebay_train.txt, Ebay_test.txt (image_id class_id super_class_id path), *_final/."""
    source = root / "Stanford_Online_Products" / "Ebay_train.txt"
    existing(source)
    with official(source):
        from pytorch_metric_learning.datasets import StanfordOnlineProducts

        train, test = (StanfordOnlineProducts(root, part) for part in ("train", "test"))
    class_ids = np.array(train.labels + test.labels)
    names = {class_id: str(class_id) for class_id in class_ids.tolist()}
    if len({(n, Path(path).parent) for n, path in zip(class_ids, train.paths + test.paths)}) > len(names):
        raise ValueError(f"{source.parent}: expected all images of a class in one folder of a super-class")
    parts = np.repeat(["train", "test"], [len(train), len(test)])
    return Annotations(source, train.paths + test.paths, class_ids, parts, names)


def read_inshop(root: Path) -> Annotations:
    """InShop/: Eval/list_eval_partition.txt (count, header, rows image_name item_id evaluation_status), Img/img/."""
    folder = root / "InShop"
    source = existing(folder / "Eval" / "list_eval_partition.txt")
    with official(source):
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
        class_ids = items.str.removeprefix("id_").astype(np.int64).to_numpy()
    names = {class_id: f"id_{class_id:08d}" for class_id in class_ids.tolist()}
    return Annotations(source, [folder / "Img" / path for path in paths], class_ids, parts.to_numpy("U7"), names)


def read_mnist(root: Path) -> Annotations:
    """MNIST/raw/: the four IDX files. The ten digits are in both parts: a closed set, unlike the others."""
    source = existing(root / "MNIST" / "raw") / "train-labels-idx1-ubyte"
    with official(source.parent):
        from torchvision.datasets import MNIST

        train, test = MNIST(root), MNIST(root, train=False)
        images, labels = np.concatenate([train.data, test.data]), np.concatenate([train.targets, test.targets])
        if len(images) != len(labels):
            raise ValueError(f"expected a label for each of the {len(images)} images, found {len(labels)}")
    split = np.repeat(["train", "test"], [len(train), len(test)])
    return Annotations(source, images, labels, split, {digit: str(digit) for digit in range(10)}, open_set=False)


@contextlib.contextmanager
def official(source: Path) -> Iterator[None]:
    """Around a library's reader, whose errors may not name the files: those that are not what was published."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        kind = FileNotFoundError if "not found" in str(error) else ValueError  # as torchvision says it
        raise kind(f"{source}: not as it was published ({error!r})") from error


def read_omniglot(root: Path) -> Annotations:
    """omniglot/: images_background.zip (train) and images_evaluation.zip (test).

    A class is a character of an alphabet. The 105 x 105 drawings become 28 x 28, antialiased, ink white on black.
    """
    drawings: dict[Path, list[tuple[str, int]]] = {}  # names and checksums, by archive
    for name in ("images_background.zip", "images_evaluation.zip"):
        archive = existing(root / "omniglot" / name)
        with official(archive), zipfile.ZipFile(archive) as file:
            listed = sorted((member.filename, member.CRC) for member in file.infolist())
            drawings[archive] = [entry for entry in listed if fnmatch(entry[0], f"{archive.stem}/*/*/*.png")]
            if not drawings[archive]:
                raise ValueError(f"expected {archive.stem}/<alphabet>/<character>/*.png, found none")
    # the checksum that an archive lists stays the same when a drawing is damaged
    written = [archive.stat().st_mtime_ns for archive in drawings]
    images = cached_array(
        "omniglot",
        (OMNIGLOT_SIZE, Image.__version__, written, [*drawings.values()]),
        lambda: np.stack([image for archive in drawings for image in _decoded(archive, drawings[archive])]),
    )
    characters = [name.rsplit("/", 1)[0].split("/", 1)[1] for entries in drawings.values() for name, _ in entries]
    classes, class_ids = np.unique(characters, return_inverse=True)
    parts = np.repeat(["train", "test"], [len(entries) for entries in drawings.values()])
    return Annotations(root / "omniglot", images, class_ids, parts, dict(enumerate(classes.tolist())))


def _decoded(archive: Path, drawings: list[tuple[str, int]]) -> Iterator[np.ndarray]:
    with zipfile.ZipFile(archive) as file:
        for name, _ in drawings:
            with official(archive / name), Image.open(io.BytesIO(file.read(name))) as image:
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
