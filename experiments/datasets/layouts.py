"""Readers of the official file layouts: one function per data set, folder in, annotations out.

A library's reader is used where it reads all that the files say: MNIST by torchvision, SOP and a public copy of Cars
by pytorch-metric-learning. Its reader of CUB leaves out without a word what does not match, torchvision's of Omniglot
needs other folders than the published ones, and nobody's reads In-Shop with its gallery.

What holds for every set (no gaps, no empty split, the official counts, one numbering of classes) is checked in
manifests.py. Errors name the file, the expected and the actual content.
"""

import contextlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
from PIL import Image

OMNIGLOT_SIZE = 28  # pixels; the drawings are 105 x 105


@dataclass(frozen=True)
class Annotations:
    """What a layout says, in its own order and numbering.

    Attributes:
        source: the file that holds the labels, for error messages.
        images: uint8 array (N, H, W) or a list of N paths.
        class_ids: (N,) class numbers; official sets keep theirs.
        parts: (N,) "train", "test", "query" or "gallery".
        class_names: name of every class the layout declares, by number.
        open_set: training and test classes are different ones.
        own_name: what the reader's own images are called; empty for the official sets.
        notes: lines on how the annotations came about, for `data check`.
        labelled: False where nothing says which images belong together, so that each is a class of its own.
    """

    source: Path
    images: np.ndarray | list[Path] | list[str]
    class_ids: np.ndarray
    parts: np.ndarray
    class_names: dict[int, str]
    open_set: bool = True
    own_name: str = ""
    notes: tuple[str, ...] = ()
    labelled: bool = True


def read_cub(root: Path) -> Annotations:
    """CUB_200_2011/: images.txt, image_class_labels.txt, classes.txt, images/. Classes 1..100 train, 101..200 test."""
    folder = root / "CUB_200_2011"
    labels_file = folder / "image_class_labels.txt"
    names, files, classes = (keyed(path) for path in (folder / "classes.txt", folder / "images.txt", labels_file))
    if odd := sorted(files.keys() ^ classes.keys()):
        raise ValueError(
            f"{labels_file}: expected one row for each of the {len(files)} images in images.txt, found {len(classes)}; "
            f"image {odd[0]} is {'missing' if odd[0] in files else 'not in images.txt'}"
        )
    class_ids = np.array([number(classes[image], labels_file) for image in files])
    folders = [path.partition("/")[0] for path in files.values()]
    named = zip(files.values(), folders, class_ids)
    if wrong := [f"{path} of class {names[n]}" for path, place, n in named if names.get(n, place) != place]:
        raise ValueError(f"{labels_file}: expected every image in the folder of its class, found {few(wrong)}")
    images = [folder / "images" / path for path in files.values()]
    return Annotations(labels_file, images, class_ids, np.where(class_ids <= 100, "train", "test"), names)


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
    source = folder / "Eval" / "list_eval_partition.txt"
    lines = rows_of(source, 3, first=3)
    promised = number(existing(source).read_text(encoding="utf-8-sig").partition("\n")[0], source)
    if promised != len(lines):
        raise ValueError(f"{source}: line 1 promises {promised} rows, found {len(lines)}")
    for path, item, part in lines:
        if part not in ("train", "query", "gallery"):
            raise ValueError(f"{source}: expected evaluation_status train, query or gallery, found {part!r}")
        if item not in path.split("/"):
            raise ValueError(f"{source}: expected an image in the folder of its item {item}, found {path}")
    class_ids = [number(item.removeprefix("id_"), source) for _, item, _ in lines]
    names = {class_id: f"id_{class_id:08d}" for class_id in class_ids}
    images, parts = [folder / "Img" / path for path, *_ in lines], np.array([part for *_, part in lines])
    return Annotations(source, images, np.array(class_ids), parts, names)


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
    """omniglot/: images_background.zip (train) and images_evaluation.zip (test), or the folders they unpack to.

    A class is a character of an alphabet. The 105 x 105 drawings become 28 x 28, antialiased, ink white on black.
    """
    from experiments.files import cached_array

    names = {"train": "images_background.zip", "test": "images_evaluation.zip"}
    archives = {part: root / "omniglot" / name for part, name in names.items()}
    drawings = {part: _omniglot_drawings(archive) for part, archive in archives.items()}
    images = cached_array(
        "omniglot",
        (OMNIGLOT_SIZE, Image.__version__, drawings),
        lambda: np.stack([image for part in archives for image in _omniglot_images(archives[part], drawings[part])]),
    )
    characters = np.array([name.rsplit("/", 1)[0].split("/", 1)[1] for part in archives for name, _ in drawings[part]])
    classes, class_ids = np.unique(characters, return_inverse=True)
    parts = np.repeat(list(archives), [len(drawings[part]) for part in archives])
    return Annotations(archives["train"].parent, images, class_ids, parts, dict(enumerate(classes.tolist())))


def _omniglot_drawings(archive: Path) -> list[tuple[str, tuple[int, int]]]:
    """Names below omniglot/ and stamps of a part's drawings, sorted by name.

    A stamp holds a checksum or size and when the file on disk was written: the checksum that an archive lists for a
    drawing stays the same when the drawing is damaged, so a file that was written again has to be decoded again.
    """
    folder = archive.with_suffix("")
    if archive.is_file():
        written = archive.stat().st_mtime_ns
        with opened_zip(archive) as file:
            entries = [(member.filename, (member.CRC, written)) for member in file.infolist()]
    elif folder.is_dir():
        files = {path.relative_to(folder.parent).as_posix(): path.stat() for path in folder.rglob("*.png")}
        entries = [(name, (status.st_size, status.st_mtime_ns)) for name, status in files.items()]
    else:
        raise FileNotFoundError(f"{archive}: missing; expected this file or the folder {folder.name} it unpacks to")
    drawings = sorted(item for item in entries if fnmatch(item[0], f"{folder.name}/*/*/*.png"))
    if not drawings:
        raise ValueError(f"{archive}: expected {folder.name}/<alphabet>/<character>/*.png, found none")
    return drawings


def _omniglot_images(archive: Path, drawings: list[tuple[str, tuple[int, int]]]) -> Iterator[np.ndarray]:
    with opened_zip(archive) if archive.is_file() else contextlib.nullcontext() as file:
        for name, _ in drawings:
            try:
                data = file.read(name) if file else (archive.parent / name).read_bytes()
                with Image.open(io.BytesIO(data)) as image:
                    if image.mode not in ("1", "L", "P", "RGB"):  # converting more bits to 8 would clip them to white
                        raise OSError(f"pixels of mode {image.mode}, expected black and white")
                    small = image.convert("L").resize((OMNIGLOT_SIZE, OMNIGLOT_SIZE), Image.Resampling.BILINEAR)
            except (OSError, SyntaxError, zipfile.BadZipFile, zlib.error) as error:
                raise ValueError(f"{archive}: {name} is not a readable image ({error})") from error
            yield 255 - np.asarray(small)


def rows_of(path: Path, fields: int, first: int = 1) -> list[list[str]]:
    """The rows of a table whose columns are separated by blanks, from line `first` on."""
    try:
        lines = existing(path).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected text in UTF-8 ({error})") from error
    table = [(line, text.split(maxsplit=fields - 1)) for line, text in enumerate(lines, 1) if text.strip()]
    if wrong := [line for line, values in table if line >= first and len(values) != fields]:
        raise ValueError(f"{path}, line {wrong[0]}: expected {fields} fields separated by blanks")
    return [values for line, values in table if line >= first]


def keyed(path: Path) -> dict[int, str]:
    """A two-column table as a dictionary from its first column, a number, to its second."""
    table = rows_of(path, 2)
    found = {number(key, path): value for key, value in table}
    if len(found) < len(table):
        raise ValueError(f"{path}: expected every id once, found {len(found)} ids in {len(table)} rows")
    return found


def few(items: list[str], shown: int = 5) -> str:
    """The first items and how many more there are, for error messages."""
    return ", ".join(items[:shown]) + (f" and {len(items) - shown} more" if len(items) > shown else "")


def number(text: str, source: Path) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{source}: expected a whole number, found {text!r}")
    return int(text)


def existing(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path}: missing; data/README.md says where it must lie, DMLREPRO_DATA moves data/")
    return path


def opened_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path}: expected a whole zip archive, found a damaged or truncated one ({error})") from error
