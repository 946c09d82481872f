"""The reader's own images: a folder per class, or a CSV file of paths and labels, read into the same annotations.

"folder:PATH" is a folder with a sub-folder per class, or with train/ and test/ above these. "manifest:FILE.csv" has the
columns path, label and, if wanted, split, query and gallery (also is_query and is_gallery, as Open Metric Learning
calls them); its paths count from the folder of the CSV file. A PATH counts from the data folder. Where nothing names
the parts, half of the classes are for training: which ones follows from their names and SPLIT_SEED alone. A folder
without sub-folders and a table without the column label are images without labels, each a class of its own.
"""

import csv
import hashlib
import io
import os
import re
import unicodedata
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.datasets.layouts import Annotations, few
from experiments.files import replacing

SPLIT_SEED = 0
# Files with these endings are images. HEIC and JPEG XL, which Pillow cannot read, are among them so that such files
# are reported as unreadable rather than left out without a word.
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif", ".heic", ".heif", ".jxl"),
)
VALIDATION_WORDS = {"val", "valid", "validation"}
COLUMNS = {"is_query": "query", "is_gallery": "gallery"}  # Open Metric Learning's names are read as ours
SPLITS = {"train": "train", "test": "test", "validation": "test"}  # Open Metric Learning calls the test part validation
FLAGS = {"true": True, "yes": True, "1": True, "1.0": True, "false": False, "no": False, "0": False, "0.0": False}


def read(name: str, root: Path) -> Annotations:
    """The annotations behind "folder:PATH" or "manifest:FILE.csv".

    Raises:
        ValueError: a layout that contradicts itself or has too few classes; the first few offenders are listed.
        FileNotFoundError: a missing folder or file, or a link to one.
    """
    kind, _, place = str(name).partition(":")
    if not place.strip():
        raise ValueError(f"{name!r}: expected a path after the colon, as in folder:birds or manifest:birds/images.csv")
    path = Path(os.path.abspath(root / os.path.expanduser(place)))
    if not (path.is_dir() if kind == "folder" else path.is_file()):
        expected, other = ("a folder", "manifest:") if kind == "folder" else ("a CSV file", "folder:")
        actual = f"something else, is it {other}{place}?" if path.exists() else "nothing"
        raise FileNotFoundError(f"{path}: expected {expected}, found {actual} (relative paths count from {root})")
    return read_folder(path) if kind == "folder" else read_csv(path)


def training_classes(names: list[str]) -> set[str]:
    """The half of the classes (the larger one, if their number is odd) that trains where nothing else is said.

    Classes are ordered by the sha256 of SPLIT_SEED and their name, so the split is the same on every machine, and a
    class more or less moves at most one of the others to the other part.
    """
    order = sorted(names, key=lambda name: hashlib.sha256(f"{SPLIT_SEED}/{name}".encode()).digest())
    return set(order[: (len(order) + 1) // 2])


def read_folder(folder: Path) -> Annotations:
    """A folder per class, or train/ and test/ above these; images in sub-folders belong to the class above them.

    Where no class folder is, the images themselves, or those in train/ and test/, are images without labels.
    """
    odd: dict[str, list[str]] = defaultdict(list)  # whatever lies there and is no image of a class, by kind
    tops = _class_folders(folder, odd)
    words = {name.casefold() for name in tops}
    in_parts = {"train", "test"} <= words
    if (in_parts and len(tops) > 2) or (not in_parts and "train" in words and words <= {"train"} | VALIDATION_WORDS):
        raise ValueError(
            f"{folder}: expected train/ and test/ and nothing else, or a folder per class, found "
            f"{few([f'{name}/' for name in tops])}; move or rename the others (a folder of validation images to test/)"
        )
    parts = {name.casefold(): _class_folders(path, odd) for name, path in tops.items()} if in_parts else {"": tops}
    images, labels, found_parts, deep = [], [], [], 0
    for part, classes in parts.items():
        for name, path in classes.items():
            files = sorted(_images_below(path, odd), key=canonical)
            deep += sum(os.path.dirname(file) != path for file in files)
            images += files
            labels += [name] * len(files)
            found_parts += [part] * len(files)
    _refuse(folder, sorted(odd["cyclic"]), "links lead back to a folder above them", "remove them")
    _refuse(folder, sorted(odd["broken"]), "links lead to nothing", "remove or mend them", FileNotFoundError)
    suffixes = Counter(os.path.splitext(path)[1].lower() or "no suffix" for path in odd["other"])
    ignored = f"ignored: {len(odd['hidden'])} hidden, {len(odd['other'])} other files"
    ignored += f" ({few([f'{count} {suffix}' for suffix, count in suffixes.most_common()])})" if suffixes else ""
    said_by = "by the folders train/ and test/"
    if not any(parts.values()):
        places = {path: name.casefold() for name, path in tops.items()} if in_parts else {str(folder): ""}
        images = sorted((path for path in odd["stray"] if os.path.dirname(path) in places), key=canonical)
        given = [places[os.path.dirname(path)] for path in images] if in_parts else None
        return _unlabelled(folder, folder.name, images, given, said_by, [ignored])
    stray = f"{len(odd['stray'])} images outside of a class folder"
    stray += f" ({few(sorted(odd['stray']))})" if odd["stray"] else ""
    notes = [f"{ignored}, {stray}", f"images in sub-folders, which belong to the class folder above them: {deep}"]
    declared = [name for classes in parts.values() for name in classes]
    given = found_parts if in_parts else None
    return _annotations(folder, folder.name, images, labels, declared, given, said_by, notes)


def read_csv(path: Path) -> Annotations:
    """Columns path and label; optional split (train; test or validation), query and gallery (true or false).

    Without the column label, and with no column that could be meant as one, the images have no labels. Columns are
    separated by commas, semicolons or tabs. Where most images lie in a folder named like their label, one that lies in
    the folder of another label is an error.

    Flags count for test rows only; without them every test image is both.
    """
    columns, lines = _columns(path)
    texts = columns.get("label")
    rows = zip(lines, columns["path"], texts or columns["path"])
    empty = [f"line {line}" for line, file, label in rows if not file.strip() or not label]
    _refuse(path, empty, "rows without a path or a label", "fill them in or remove them")
    images = [os.path.normpath(os.path.join(path.parent, file)) for file in columns["path"]]
    first: dict[str, int] = {}
    repeated = []
    for line, image in zip(lines, images):
        if first.setdefault(image, line) != line:
            repeated.append(f"line {line} and line {first[image]}: {image}")
    _refuse(path, repeated, "rows repeat an image", "keep one row for each image")
    folders = [canonical(os.path.basename(os.path.dirname(image))) for image in images]
    labels = [canonical(label) for label in texts or ()]
    if sum(folder == label for folder, label in zip(folders, labels)) > len(labels) / 2:
        known = set(labels)
        rows = zip(lines, columns["path"], labels, folders)
        odd = [f"line {n}: {p} as {label}" for n, p, label, folder in rows if folder != label and folder in known]
        _refuse(path, odd, "images lie in the folder of another label", "correct the labels or move the images")
    given = None
    if "split" in columns:
        bad = [f"line {n}: {word!r}" for n, word in zip(lines, columns["split"]) if word.lower() not in SPLITS]
        _refuse(path, bad, "rows whose split is none of train, test, validation", "correct them or drop the column")
        words = Counter(word.lower() for word in columns["split"])
        if words["test"] and words["validation"]:
            raise ValueError(f"{path}: expected train and test, or train and validation in split, found all three")
        given = [SPLITS[word.lower()] for word in columns["split"]]
    unused = [name for name in columns if name not in ("path", "label", "split", "query", "gallery")]
    notes = [f"columns that are not used: {', '.join(unused) or 'none'}"]
    by = "by the column split"
    if texts is None:
        annotations = _unlabelled(path, path.stem, images, given, by, notes)
    else:
        annotations = _annotations(path, path.stem, images, list(texts), list(texts), given, by, notes)
    test = np.flatnonzero(annotations.parts == "test")
    roles = np.ones((2, len(test)), bool)
    for role, name in zip(roles, ("query", "gallery")):
        if name in columns:
            values = [columns[name][row].lower() for row in test]
            bad = [f"line {lines[row]}: {value!r}" for row, value in zip(test, values) if value not in FLAGS]
            _refuse(path, bad, f"test rows whose {name} is neither true nor false", "correct them")
            role[:] = [FLAGS[value] for value in values]
    neither = [f"line {lines[row]}: {columns['path'][row]}" for row in test[~roles.any(0)]]
    _refuse(path, neither, "test rows are neither query nor gallery", "set one of the two, or remove them")
    annotations.parts[test] = np.select([roles.all(0), roles[0]], ["test", "query"], "gallery")
    return annotations


def write_csv(manifest: Any, path: Path) -> None:
    """Store a manifest of files, with its split, as a new CSV file that "manifest:FILE.csv" reads; without labels it
    has no column for them.

    Raises FileExistsError where the file is there already, ValueError for a manifest without files.
    """
    if not isinstance(manifest.images, tuple):
        raise ValueError(f"{manifest.name} has no image files that a CSV file could list")
    if path.exists():
        raise FileExistsError(f"{path} exists and stays as it is; name another file")
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", *["label"] * manifest.labelled, "split", "query", "gallery"])
        flags = zip(manifest.is_query.tolist(), manifest.is_gallery.tolist())
        for image, label, part, roles in zip(manifest.images, manifest.labels, manifest.split, flags):
            place = os.path.relpath(image, path.absolute().parent)
            names = [manifest.class_names[label]] if manifest.labelled else []
            rows.writerow([place, *names, part, *(roles if part == "test" else ("", ""))])


def canonical(path: str) -> str:
    """A path in the spelling that all systems share: slashes, and composed characters (macOS decomposes them)."""
    return unicodedata.normalize("NFC", path.replace(os.sep, "/"))


def _annotations(
    source: Path,
    name: str,
    images: list[str],
    labels: list[str],
    declared: list[str],
    parts: list[str] | None,
    split_by: str,
    notes: list[str],
) -> Annotations:
    """Annotations of images with text labels; without parts, the classes are split in halves."""
    readable = [text.encode("utf-8", "backslashreplace").decode() for text in (*images, *declared)]
    undecodable = [shown for text, shown in zip((*images, *declared), readable) if text != shown]
    _refuse(source, undecodable, "file names are not UTF-8", "rename them")
    spellings = defaultdict(set)
    for label in declared:
        spellings[canonical(label).casefold()].add(label)
    alike = [" and ".join(sorted(group)) for group in spellings.values() if len(group) > 1]
    _refuse(source, alike, "classes differ only in upper and lower case or in how accents are stored", "merge them")
    labels = [canonical(label) for label in labels]
    names = sorted({canonical(label) for label in declared})
    if parts is None:
        train = training_classes(names)
        parts = ["train" if label in train else "test" for label in labels]
        split_by = f"half of the {len(names)} classes for each part, drawn by their names with seed {SPLIT_SEED}"
    in_train, in_test = ({label for label, part in zip(labels, parts) if part == which} for which in ("train", "test"))
    if len(in_train | in_test) == len(names) and (len(in_train) < 2 or not in_test):
        raise ValueError(
            f"{source}: expected at least 2 classes to train on and another one to test on, found {len(in_train)} and "
            f"{len(in_test)} ({few(names)}); add classes"
        )
    number = {label: index for index, label in enumerate(names)}
    return Annotations(
        source=source,
        images=images,
        class_ids=np.array([number[label] for label in labels]),
        parts=np.array(parts, "<U7"),
        class_names=dict(enumerate(names)),
        own_name=re.sub(r"[\s/\\:*?\"<>|,@]+", "_", unicodedata.normalize("NFC", name))[:40] or "images",
        notes=(f"split: {split_by}", *notes),
    )


def _unlabelled(
    source: Path, name: str, images: list[str], parts: list[str] | None, split_by: str, notes: list[str]
) -> Annotations:
    """Annotations of images of which nothing says that some belong together: each is a class of its own, called by its
    path; without parts, the images are split in halves."""
    if len(images) < 4:
        raise ValueError(
            f"{source}: expected a folder per class, or at least 4 images without labels, found {len(images)} images; "
            "sort images into folders, or list them with their labels in a CSV file and use manifest:FILE.csv"
        )
    below = source if source.is_dir() else source.parent
    names = [os.path.relpath(image, below) for image in images]
    notes = [*notes, "no labels: each image counts as a class of its own, and nothing can be scored"]
    return replace(_annotations(source, name, images, names, names, parts, split_by, notes), labelled=False)


def _class_folders(folder: str | Path, odd: dict[str, list[str]]) -> dict[str, str]:
    """The visible folders in a folder, sorted by name; what else lies there goes to `odd`."""
    folders = {}
    for entry, kind in _entries(folder):
        if kind == "folder":
            folders[entry.name] = entry.path
        else:
            odd["stray" if kind == "image" else kind].append(entry.path)
    return dict(sorted(folders.items(), key=lambda item: canonical(item[0])))


def _images_below(folder: str, odd: dict[str, list[str]], above: tuple = ()) -> list[str]:
    """Image files at any depth; links are followed, and those that lead back to a folder `above` go to `odd`."""
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:
        odd["cyclic"].append(folder)
        return []
    images = []
    for entry, kind in _entries(folder):
        if kind == "folder":
            images += _images_below(entry.path, odd, (*above, here))
        else:
            (images if kind == "image" else odd[kind]).append(entry.path)
    return images


def _entries(folder: str | Path):
    """(entry, kind) of all that lies in a folder; kind is "folder", "image", "hidden", "broken" (a link) or "other"."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name == "__MACOSX":
                yield entry, "hidden"
            elif entry.is_symlink() and not os.path.exists(entry.path):
                yield entry, "broken"
            elif entry.is_dir():
                yield entry, "folder"
            else:
                is_image = entry.is_file() and os.path.splitext(entry.name)[1].lower() in SUFFIXES
                yield entry, "image" if is_image else "other"


def _columns(path: Path) -> tuple[dict[str, list[str]], list[int]]:
    """The columns of a CSV file by name and the line that each row ends on; blank lines are skipped.

    Values are stripped, paths only of leading blanks, because a file's name may end in one.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
        separator = max(",;\t", key=text.partition("\n")[0].count)  # spreadsheets of some languages write semicolons
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True)
        header = [name.strip().lower() for name in next(reader, [])]
        rows = [(row, reader.line_num) for row in reader if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: expected a CSV file in UTF-8, found something else ({error})") from error
    header = [COLUMNS.get(name, name) for name in header]
    unlabelled = "label" not in header and set(header) <= {"path", "split", "query", "gallery"}
    if "path" not in header or not ("label" in header or unlabelled) or len(set(header)) < len(header):
        raise ValueError(
            f"{path}: expected the columns path and label, each column once, separated by commas, semicolons or tabs, "
            f"found {few(header) or 'nothing'}; a table of images without labels has no column but path and split"
        )
    uneven = [f"line {line} has {len(row)}" for row, line in rows if len(row) != len(header)]
    _refuse(
        path, uneven, f"rows without exactly {len(header)} fields", "a separator within a field needs quotes around it"
    )
    if not rows:
        raise ValueError(f"{path}: expected a row for each image, found only the header")
    columns = dict(zip(header, zip(*(row for row, _ in rows))))
    stripped = {name: [value.strip() for value in values] for name, values in columns.items() if name != "path"}
    return stripped | {"path": list(columns["path"])}, [line for _, line in rows]


def _refuse(source: Path, bad: list[str], what: str, remedy: str, error: type[Exception] = ValueError) -> None:
    """Raise an error that counts the offenders and lists the first few, if there are any."""
    if bad:
        raise error(f"{source}: {len(bad)} {what}: {few(bad)}; {remedy}")
