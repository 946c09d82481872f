"""Readers of the official file layouts: one function per data set, folder in, annotations out.

A reader knows one layout and nothing else; what holds for every set (no gaps, no empty split, the official counts, one
numbering of classes) is checked in manifests.py. Errors name the file, what was expected and what was found.
"""

import codecs
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
        max_id: the largest class number the layout knows; they start at 1.
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
    max_id: int | None = None
    open_set: bool = True
    own_name: str = ""
    notes: tuple[str, ...] = ()
    labelled: bool = True


def read_cub(root: Path) -> Annotations:
    """CUB_200_2011/: images.txt, image_class_labels.txt, classes.txt, images/. Classes 1..100 train, 101..200 test."""
    folder = root / "CUB_200_2011"
    labels_file = folder / "image_class_labels.txt"
    names, files, classes = (keyed(path) for path in (folder / "classes.txt", folder / "images.txt", labels_file))
    if files.keys() != classes.keys():
        odd = sorted(files.keys() ^ classes.keys())
        raise ValueError(
            f"{labels_file}: expected one row for each of the {len(files)} images in images.txt, found {len(classes)}; "
            f"image {odd[0]} is {'missing' if odd[0] in files else 'not in images.txt'}"
        )
    class_ids = np.array([number(classes[image], f"{labels_file}, image {image}") for image in files])
    images = [folder / "images" / path for path in files.values()]
    named = [(path, names.get(class_id, first_folder(path))) for path, class_id in zip(files.values(), class_ids)]
    if wrong := [f"{path} of class {name}" for path, name in named if first_folder(path) != name]:
        raise ValueError(f"{labels_file}: expected every image in the folder of its class, found {few(wrong)}")
    return Annotations(labels_file, images, class_ids, np.where(class_ids <= 100, "train", "test"), names, max_id=200)


def read_cars(root: Path) -> Annotations:
    """Cars-196 in any of three public layouts, in Cars196/ or torchvision's stanford_cars/.

    The original has cars_annos.mat and car_ims/; the one in two parts cars_train/ and cars_test/, each with a file of
    annotations; pytorch-metric-learning's copy names.csv, anno_train.csv, anno_test.csv and a folder per class.
    Classes 1..98 train, 99..196 test, whatever the parts and flags of a layout say: those mix all classes.
    """
    folder, layout = cars_layout(root)
    source, images, class_ids, names, place = {
        "original": _cars_original,
        "two parts": _cars_in_two_parts,
        "by class": _cars_by_class,
    }[layout](folder)
    on_disk = {path for part in place for path in existing(part).rglob("*.jpg")}
    unlabelled = sorted(str(path.relative_to(folder)) for path in on_disk - set(images))
    if unlabelled:
        raise ValueError(
            f"{source}: expected a row for each of the {len(on_disk)} images in "
            f"{', '.join(f'{part.relative_to(folder).as_posix()}/' for part in place)}, found {len(images)} rows; none "
            f"for {unlabelled[0]}"
        )
    notes = () if layout == "original" else (f"read from the layout {layout!r} in {folder.name}/",)
    parts = np.where(class_ids <= 98, "train", "test")
    return Annotations(source, images, class_ids, parts, names, max_id=196, notes=notes)


def cars_layout(root: Path) -> tuple[Path, str]:
    """The folder of Cars-196 and its layout, "original" in Cars196/ where there is none."""
    for folder in (root / "Cars196", root / "stanford_cars"):
        if (folder / "car_ims").is_dir():
            return folder, "original"
        if (folder / "names.csv").is_file():
            return folder, "by class"
        if (folder / "cars_train").is_dir():
            return folder, "two parts"
    return root / "Cars196", "original"


# each gives the file of the labels, the images, their class ids, the class names and the folders that images lie in
_Cars = tuple[Path, list[Path], np.ndarray, dict[int, str], list[Path]]


def _cars_original(folder: Path) -> _Cars:
    source = existing(folder / "cars_annos.mat")
    paths, class_ids = _mat_rows(source, "relative_im_path")
    return source, [folder / path for path in paths], class_ids, _mat_names(source), [folder / "car_ims"]


def _cars_in_two_parts(folder: Path) -> _Cars:
    images, class_ids, place = [], [], []
    # cars_test_annos.mat of the original devkit has no classes; some copies put the file that has them in its place
    files = {"train": ["cars_train_annos.mat"], "test": ["cars_test_annos_withlabels.mat", "cars_test_annos.mat"]}
    for part, candidates in files.items():
        sources = [file for name in candidates for file in (folder / name, folder / "devkit" / name) if file.is_file()]
        if not sources:
            hint = (
                "; the names in cars_annos.mat are those of car_ims/ and fit neither part"
                * (folder / "cars_annos.mat").is_file()
            )
            raise FileNotFoundError(f"{folder / candidates[0]}: missing, here and in devkit/{hint}")
        nested = folder / f"cars_{part}" / f"cars_{part}"  # as Kaggle's copy unpacks
        place.append(nested if nested.is_dir() else nested.parent)
        names, ids = _mat_rows(sources[0], "fname")
        images += [place[-1] / name for name in names]
        class_ids.append(ids)
    meta = next((file for file in (folder / "devkit", folder) if (file / "cars_meta.mat").is_file()), folder / "devkit")
    return sources[0], images, np.concatenate(class_ids), _mat_names(existing(meta / "cars_meta.mat")), place


def _cars_by_class(folder: Path) -> _Cars:
    source = existing(folder / "names.csv")
    lines = source.read_text(encoding="utf-8-sig").splitlines()
    names = {number: line.strip().strip('"') for number, line in enumerate(lines, 1) if line.strip()}
    nested = folder / "car_data" / "car_data"
    place = existing(nested if nested.is_dir() else nested.parent)
    images, class_ids = [], []
    for part in ("train", "test"):
        table = existing(folder / f"anno_{part}.csv")
        for n, line in enumerate(table.read_text(encoding="utf-8-sig").splitlines(), 1):
            file, *_, class_id = line.split(",")
            class_ids.append(number(class_id, f"{table}, line {n}"))
            if class_ids[-1] not in names:
                raise ValueError(f"{table}, line {n}: expected a class from 1 to {len(names)}, found {class_ids[-1]}")
            # the folder of "Ram C/V Cargo Van Minivan 2012" has a dash for the slash
            images.append(place / part / names[class_ids[-1]].replace("/", "-") / file)
    return source, images, np.array(class_ids), names, [place]


def _mat_rows(source: Path, path_field: str) -> tuple[list[str], np.ndarray]:
    """File names and class ids of the struct array `annotations` of a MATLAB file."""
    annotations = np.atleast_1d(_mat_variable(source, "annotations"))
    for name in (path_field, "class"):
        if name not in (annotations.dtype.names or ()):
            remedy = "; cars_test_annos_withlabels.mat has the classes of cars_test/" * (name == "class")
            raise ValueError(
                f"{source}: expected MATLAB arrays `annotations` with {path_field} and class, found "
                f"{', '.join(annotations.dtype.names or ('no fields',))}{remedy}"
            )
    try:
        return [str(path) for path in annotations[path_field]], annotations["class"].astype(np.int64)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{source}: expected a number for every class ({error})") from error


def _mat_names(source: Path) -> dict[int, str]:
    return {n: str(name) for n, name in enumerate(np.atleast_1d(_mat_variable(source, "class_names")), 1)}


def _mat_variable(source: Path, name: str) -> np.ndarray:
    from scipy.io.matlab import MatReadError, loadmat

    try:
        return loadmat(source, squeeze_me=True)[name]
    except (KeyError, ValueError, TypeError, NotImplementedError, MatReadError) as error:
        raise ValueError(f"{source}: expected MATLAB arrays with `{name}`, found something else ({error})") from error


def read_sop(root: Path) -> Annotations:
    """Stanford_Online_Products/: Ebay_train.txt, Ebay_test.txt (image_id class_id super_class_id path), *_final/."""
    folder = root / "Stanford_Online_Products"
    images, class_ids, parts = [], [], []
    folders: dict[str, str] = {}
    for part in ("train", "test"):
        lines = rows(folder / f"Ebay_{part}.txt", 4, header=["image_id", "class_id", "super_class_id", "path"])
        for (_, class_id, super_class, path), where in lines:
            expected = folders.setdefault(super_class, first_folder(path))
            if first_folder(path) != expected:
                raise ValueError(
                    f"{where}: expected an image of super class {super_class} in {expected}/, found {path}"
                )
            images.append(folder / path)
            class_ids.append(number(class_id, where))
            parts.append(part)
    names = {class_id: str(class_id) for class_id in class_ids}
    return Annotations(folder / "Ebay_train.txt", images, np.array(class_ids), np.array(parts), names, max_id=22634)


def read_inshop(root: Path) -> Annotations:
    """InShop/: Eval/list_eval_partition.txt (count, header, rows image_name item_id evaluation_status), Img/img/."""
    folder = root / "InShop"
    source = folder / "Eval" / "list_eval_partition.txt"
    lines = rows(source, 3, header=["image_name", "item_id", "evaluation_status"], counted=True)
    images, class_ids, parts = [], [], []
    for (path, item, part), where in lines:
        if part not in ("train", "query", "gallery"):
            raise ValueError(f"{where}: expected evaluation_status train, query or gallery, found {part!r}")
        if item not in path.split("/"):
            raise ValueError(f"{where}: expected an image in the folder of its item {item}, found {path}")
        images.append(folder / "Img" / path)
        class_ids.append(number(item.removeprefix("id_"), where))
        parts.append(part)
    names = {class_id: f"id_{class_id:08d}" for class_id in class_ids}
    return Annotations(source, images, np.array(class_ids), np.array(parts), names, max_id=7982)


def read_mnist(root: Path) -> Annotations:
    """MNIST/raw/: the four IDX files. The ten digits are in both parts: a closed set, unlike the others."""
    folder = root / "MNIST" / "raw"
    parts = []
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images = read_idx(folder / f"{prefix}-images-idx3-ubyte", 3)
        labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte", 1)
        if len(images) != len(labels):
            raise ValueError(
                f"{folder / prefix}-labels-idx1-ubyte: expected a label for each of the {len(images)} images, "
                f"found {len(labels)}"
            )
        parts.append((images, labels.astype(np.int64), np.full(len(labels), part)))
    images, labels, split = (np.concatenate(arrays) for arrays in zip(*parts))
    names = {digit: str(digit) for digit in range(10)}
    return Annotations(folder / "train-labels-idx1-ubyte", images, labels, split, names, open_set=False)


def read_omniglot(root: Path) -> Annotations:
    """omniglot/: images_background.zip (train) and images_evaluation.zip (test), or the folders they unpack to.

    A class is a character of an alphabet. The 105 x 105 drawings become 28 x 28, antialiased, ink white on black.
    """
    from experiments.files import cached_array

    archives = {
        "train": root / "omniglot" / "images_background.zip",
        "test": root / "omniglot" / "images_evaluation.zip",
    }
    drawings = {part: _omniglot_drawings(archive) for part, archive in archives.items()}
    images = cached_array(
        "omniglot",
        (OMNIGLOT_SIZE, Image.__version__, drawings),
        lambda: np.stack([image for part in archives for image in _omniglot_images(archives[part], drawings[part])]),
    )
    characters = np.array([name.rsplit("/", 1)[0].split("/", 1)[1] for part in archives for name, _ in drawings[part]])
    names, class_ids = np.unique(characters, return_inverse=True)
    parts = np.repeat(list(archives), [len(drawings[part]) for part in archives])
    return Annotations(archives["train"].parent, images, class_ids, parts, dict(enumerate(names.tolist())))


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
        statuses = ((path, path.stat()) for path in folder.rglob("*.png"))
        entries = [
            (path.relative_to(folder.parent).as_posix(), (status.st_size, status.st_mtime_ns))
            for path, status in statuses
        ]
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


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """A uint8 array of `ndim` dimensions from an IDX file (big-endian header: type, dimensions, sizes)."""
    data = existing(path).read_bytes()
    shape = np.frombuffer(data[4 : 4 + 4 * ndim], ">u4").astype(int)
    expected = 4 + 4 * ndim + int(shape.prod())
    if data[:4] != bytes([0, 0, 8, ndim]) or len(shape) != ndim or len(data) != expected:
        raise ValueError(
            f"{path}: expected an IDX file of uint8 in {ndim} dimensions and whole, found {len(data)} bytes"
        )
    return np.frombuffer(data, np.uint8, offset=4 + 4 * ndim).reshape(shape)


def rows(
    path: Path, fields: int, header: list[str] | None = None, counted: bool = False
) -> list[tuple[list[str], str]]:
    """The lines of a table with columns separated by blanks, each as (fields, "file, line n").

    The last field may hold blanks. header: column names the file has to start with; counted: a line with the number of
    rows comes before them.
    """
    data = existing(path).read_bytes()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(f"{path}: expected text in UTF-8, found UTF-16; save it as UTF-8")
    lines = data.decode("utf-8-sig", errors="replace").splitlines()
    first = counted + (header is not None)
    columns = lines[first - 1].split() if header and len(lines) >= first else None
    if columns != header:
        raise ValueError(
            f"{path}: expected line {first} to be {' '.join(header or [])!r}, found {' '.join(columns or [])!r}"
        )
    table = [(line.split(maxsplit=fields - 1), f"{path}, line {n}") for n, line in enumerate(lines, 1) if n > first]
    table = [(values, where) for values, where in table if values]
    if counted and number(lines[0], f"{path}, line 1") != len(table):
        raise ValueError(f"{path}: line 1 promises {lines[0].strip()} rows, found {len(table)}")
    for values, where in table:
        if len(values) != fields:
            start = " ".join(values)[:80]
            raise ValueError(f"{where}: expected {fields} fields separated by blanks, found {len(values)} in {start!r}")
    return table


def keyed(path: Path) -> dict[int, str]:
    """A two-column table as a dictionary from its first column, a number, to its second."""
    table = {}
    for (key, value), where in rows(path, 2):
        if number(key, where) in table:
            raise ValueError(f"{where}: expected every id once, found {key} again")
        table[int(key)] = value
    return table


def first_folder(path: str) -> str:
    return path.partition("/")[0]


def few(items: list[str], shown: int = 5) -> str:
    """The first items and how many more there are, for error messages."""
    return ", ".join(items[:shown]) + (f" and {len(items) - shown} more" if len(items) > shown else "")


def number(text: str, where: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{where}: expected a whole number, found {text!r}")
    return int(text)


def existing(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: missing; data/README.md says where files must lie, DMLREPRO_DATA names another folder than data/"
        )
    return path


def opened_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path}: expected a whole zip archive, found a damaged or truncated one ({error})") from error
