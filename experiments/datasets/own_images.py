"""The reader's own images: "folder:PATH", a folder per class, or "manifest:FILE.csv", a table of paths and labels.

Unless parts are named, half of the classes train, by SPLIT_SEED."""

import csv
import hashlib
import os
import re
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pandas as pd

from experiments.datasets.layouts import Annotations, few

SPLIT_SEED = 0
# Pillow reads neither HEIC nor JPEG XL, but such a file is to be reported as unreadable, not left out without a word
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm")
SUFFIXES += (".pnm", ".jp2", ".avif", ".heic", ".heif", ".jxl")
HIDDEN = (".", "@", "#recycle", "$RECYCLE")  # how names begin that systems and network disks put among images


def read(name: str, root: Path) -> Annotations:
    """The annotations behind "folder:PATH" or "manifest:FILE.csv"; a relative path counts from `root`. Raises
    ValueError where it contradicts itself, with the first few offenders, and FileNotFoundError."""
    kind, _, place = str(name).partition(":")
    if not place.strip():
        raise ValueError(f"{name!r}: expected a path after the colon, as in folder:birds or manifest:birds/images.csv")
    source = Path(os.path.abspath(root / os.path.expanduser(place)))
    if not (source.is_dir() if kind == "folder" else source.is_file()):
        wanted = "a folder (a CSV file is manifest:)" if kind == "folder" else "a CSV file (a folder is folder:)"
        raise FileNotFoundError(f"{source}: expected {wanted}; relative paths count from {root}")
    table, notes = read_folder(source) if kind == "folder" else read_csv(source)
    _refuse(source, "names are not UTF-8; rename them", table["path"][table["path"].str.contains("[\ud800-\udfff]")])
    labels = table["label"].str.strip().str.normalize("NFC")
    names = sorted({*labels})
    spelt = labels.drop_duplicates()
    alike = spelt[spelt.str.casefold().duplicated(keep=False)]
    _refuse(source, "classes differ only in upper and lower case; merge them", alike)
    if "split" not in table:
        # in the order of a hash, so that a class more or less moves at most one of the others to the other part
        order = sorted(names, key=lambda name: hashlib.sha256(f"{SPLIT_SEED}/{name}".encode()).digest())
        table["split"] = np.where(labels.isin(order[: (len(order) + 1) // 2]), "train", "test")
        notes.insert(0, f"split: half of the {len(names)} classes for each part, drawn by name with seed {SPLIT_SEED}")
    test = table[table["split"] == "test"]
    roles = test.reindex(columns=["query", "gallery"], fill_value="true").apply(lambda flags: flags.str.lower())
    query, gallery = roles["query"] == "true", roles["gallery"] == "true"
    wrong = ~roles.isin(["true", "false"]).all(axis=1) | ~(query | gallery)
    _refuse(source, "test rows without true or false in query and gallery, one true at least", test["path"][wrong])
    alone, both = gallery & ~query, query & gallery
    if both.any():
        remedy = "or let no image be both"
        _refuse(
            source, f"gallery images that are no queries, beside images that are both; {remedy}", test["path"][alone]
        )
    table.loc[test.index, "split"] = np.select([query & gallery, query], ["test", "query"], "gallery")
    name = normalize("NFC", source.name if kind == "folder" else source.stem)
    own_name = re.sub(r"[\s/\\:*?\"<>|,@]+", "_", name)[:40]
    parts = table["split"].to_numpy("<U7")
    return Annotations(source, [*table["path"]], [*labels], parts, names, own_name, (*notes,))


def read_folder(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """A folder per class, or train/ and test/ above these; images in sub-folders belong to the class above them."""
    files, ignored, errors = [], 0, list[OSError]()
    for place, below, names in os.walk(folder, onerror=errors.append, followlinks=True):
        inside = Path(place).relative_to(folder).parts
        if any(os.path.samefile(place, above) for above in Path(place).parents[: len(inside)]):
            raise ValueError(f"{place}: a link leads back to a folder above it; remove it")
        below[:] = [name for name in below if not name.startswith(HIDDEN)]  # the others are not entered
        images = [name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith(HIDDEN)]
        files += [(*inside, name) for name in images]
        ignored += len(names) - len(images)
    if errors:
        raise errors[0]
    tops = {path[0] for path in files if len(path) > 1}
    in_parts = {"train", "test"} <= tops
    if in_parts and len(tops) > 2:
        found = few(sorted(tops))
        raise ValueError(f"{folder}: expected train/ and test/ alone, found {found}; move or rename the others")
    level = 1 + in_parts  # of the class folders
    kept = [path for path in files if len(path) > level]
    if not kept:
        above = f"{folder}/train and {folder}/test" if in_parts else folder
        raise ValueError(
            f"{above}: no image lies in a folder of its class; make a folder per class, or give labels in a table, "
            "manifest:FILE.csv"
        )
    kept.sort(key=lambda path: [normalize("NFC", part) for part in path])
    columns = {"path": ["/".join((str(folder), *path)) for path in kept], "label": [path[level - 1] for path in kept]}
    if in_parts:
        columns["split"] = [path[0] for path in kept]
    counts = f"{ignored} files that are hidden or no images, {len(files) - len(kept)} images outside of a class folder"
    notes = ["split: by the folders train/ and test/"] * in_parts + [f"ignored: {counts}"]
    return pd.DataFrame(columns, dtype=object), notes


def read_csv(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Columns path, from the folder of the file, and label; optional split (train or test), query and gallery (true or
    false, for test rows)."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True, strict=True)
            numbered = [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: expected a CSV file in UTF-8 ({error})") from error
    names = [*(reader.fieldnames or ())]
    if not numbered or not {"path", "label"} <= {*names} or len({*names}) < len(names):
        found = f"{len(numbered)} below {few(names)}"
        raise ValueError(f"{path}: expected rows below the columns path and label, each once, by commas, found {found}")
    lines, rows = zip(*numbered)
    table = pd.DataFrame(rows, index=lines, columns=names, dtype=object)
    bad = [None in row or None in row.values() or not (row["path"].strip() and row["label"].strip()) for row in rows]
    _refuse(path, "rows without a path or a label, or of more or fewer fields than the first line", table["path"][bad])
    table["path"] = [os.path.normpath(path.parent / file) for file in table["path"]]
    unused = sorted({*names} - {"path", "label", "split", "query", "gallery"})
    notes = [f"columns that are not used: {', '.join(unused) or 'none'}"]
    if "split" in table:
        wrong = table["split"][~table["split"].isin(["train", "test"])]
        _refuse(path, "rows whose split is neither train nor test", wrong)
        notes.insert(0, "split: by the column split")
    return table, notes


def _refuse(source: Path, what: str, bad: pd.Series) -> None:
    """Raise an error that counts the offenders and lists the first few, if there are any."""
    if len(bad):
        lines = [f"line {line}: {text}" for line, text in bad.items()] if source.is_file() else map(ascii, bad)
        raise ValueError(f"{source}: {len(bad)} {what}: {few([*lines])}")
