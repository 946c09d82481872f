"""The reader's own images: "folder:PATH", a folder per class, or "manifest:FILE.csv", a table of paths and labels.

Unless parts are named, half of the classes train, by SPLIT_SEED; without labels each image is a class of its own."""

import hashlib
import io
import os
import re
from collections import Counter
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pandas as pd

from experiments.datasets.layouts import Annotations, few

SPLIT_SEED = 0
# Pillow reads neither HEIC nor JPEG XL, but such a file is to be reported as unreadable, not left out without a word
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm")
SUFFIXES += (".pnm", ".jp2", ".avif", ".heic", ".heif", ".jxl")
# What systems and network disks put among images, beside names that begin with a dot: thumbnails, deleted files
SYSTEM = {"@eadir", "@recycle", "#recycle", "#snapshot", "$recycle.bin", "recycler", "system volume information"}
SYSTEM |= {"lost+found", "__macosx", "thumbs.db", "desktop.ini"}
YES, NO = ("true", "yes", "1", "1.0"), ("false", "no", "0", "0.0")


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
    if len(table) < 4:
        raise ValueError(f"{source}: expected at least 4 images, in folders by class or listed, found {len(table)}")
    if not (labelled := "label" in table):
        below = source if kind == "folder" else source.parent
        table["label"] = [os.path.relpath(path, below) for path in table["path"]]
        notes.append("no labels: each image counts as a class of its own, and nothing can be scored")
    _refuse(source, "names are not UTF-8; rename them", table["path"][table["path"].str.contains("[\ud800-\udfff]")])
    spelt = table["label"].drop_duplicates()
    alike = spelt[spelt.str.normalize("NFC").str.casefold().duplicated(keep=False)]
    _refuse(source, "classes differ only in upper and lower case or in how accents are stored; merge them", alike)
    labels = table["label"].str.normalize("NFC")
    names = sorted({*labels})
    if "split" not in table:
        # in the order of a hash, so that a class more or less moves at most one of the others to the other part
        order = sorted(names, key=lambda name: hashlib.sha256(f"{SPLIT_SEED}/{name}".encode()).digest())
        table["split"] = np.where(labels.isin(order[: (len(order) + 1) // 2]), "train", "test")
        notes.insert(0, f"split: half of the {len(names)} classes for each part, drawn by name with seed {SPLIT_SEED}")
    test = table[table["split"] == "test"]
    roles = test.reindex(columns=["query", "gallery"], fill_value="true").apply(lambda flags: flags.str.lower())
    wrong = roles[~roles.isin(YES + NO)].stack().dropna()
    _refuse(source, "test rows whose query or gallery is neither true nor false", wrong)
    query, gallery = roles["query"].isin(YES), roles["gallery"].isin(YES)
    _refuse(source, "test rows are neither query nor gallery; set one of the two", test["path"][~(query | gallery)])
    table.loc[test.index, "split"] = np.select([query & gallery, query], ["test", "query"], "gallery")
    name = normalize("NFC", source.name if kind == "folder" else source.stem)
    own_name = re.sub(r"[\s/\\:*?\"<>|,@]+", "_", name)[:40]
    parts = table["split"].to_numpy("<U7")
    return Annotations(source, [*table["path"]], [*labels], parts, names, own_name, (*notes,), labelled)


def read_folder(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """A folder per class, or train/ and test/ above these; images in sub-folders belong to the class above them.
    Where no class folder is, the images themselves, or those in train/ and test/, have no labels."""
    files, folders, ignored, errors = [], [], Counter[str](), list[OSError]()
    for place, below, names in os.walk(folder, onerror=errors.append, followlinks=True):
        inside = Path(place).relative_to(folder).parts
        if any(os.path.samefile(place, above) for above in Path(place).parents[: len(inside)]):
            raise ValueError(f"{place}: a link leads back to a folder above it; remove it")
        shown = {name for name in (*below, *names) if name[0] != "." and name.casefold() not in SYSTEM}
        ignored["hidden or of the system"] += len(below) + len(names) - len(shown)
        below[:] = shown.intersection(below)  # the others are not entered
        folders += [(*inside, name) for name in below]
        images = {n for n in shown.difference(below) if n.lower().endswith(SUFFIXES) and not Path(place, n).is_fifo()}
        ignored += Counter(f"{Path(name).suffix.lower()} files" for name in shown - {*below} - images)
        files += [(*inside, name) for name in images]
    if errors:
        raise errors[0]
    tops = sorted(path[0] for path in folders if len(path) == 1)
    in_parts = {"train", "test"} <= {name.casefold() for name in tops}
    if in_parts and len(tops) > 2:
        raise ValueError(f"{folder}: expected train/ and test/ alone, found {few(tops)}; move or rename the others")
    level = 1 + in_parts  # of the class folders
    classes = {path[:level] for path in folders if len(path) == level}
    kept = [path for path in files if len(path) > level or (len(path) == level and not classes)]
    ignored["images outside of a class folder"] = len(files) - len(kept)
    empty = pd.Series(["/".join(path) for path in sorted(classes - {path[:level] for path in kept})], dtype=object)
    _refuse(folder, "class folders without an image; remove them", empty)
    columns = [(path[0], path[level - 1], "/".join(path)) for path in kept]
    table = pd.DataFrame(columns, columns=["split", "label", "path"], dtype=object)
    order = table.assign(label=table["label"] if classes else "").apply(lambda column: column.str.normalize("NFC"))
    table = table.loc[order.sort_values([*table]).index].reset_index(drop=True)
    table["split"], table["path"] = table["split"].str.casefold(), f"{folder}/" + table["path"]
    counts = ", ".join(f"{count} {what}" for what, count in ignored.items() if count)
    notes = ["split: by the folders train/ and test/"] * in_parts + [f"ignored: {counts or 'nothing'}"]
    return table.drop(columns=["split"] * (not in_parts) + ["label"] * (not classes)), notes


def read_csv(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Columns path, from the folder of the file, and label; optional split (train; test or validation), query and
    gallery (true or false, for test rows; also is_query and is_gallery, as Open Metric Learning calls them). Commas,
    semicolons or tabs separate them. Without any column that could be meant as a label, the images have none."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        separator = max(",;\t", key=text.partition("\n")[0].count)  # spreadsheets of some languages write semicolons
        options = {"header": None, "dtype": object, "keep_default_na": False, "skip_blank_lines": False}
        table = pd.read_csv(io.StringIO(text), sep=separator, skipinitialspace=True, **options)
    except ValueError as error:  # also what pandas raises
        raise ValueError(f"{path}: expected a CSV file in UTF-8 with as many fields in each row ({error})") from error
    names = [str(name).strip().lower().removeprefix("is_") for name in table.loc[0]]
    known, table.index = {"path", "split", "query", "gallery"}, table.index + 1  # lines
    table = table[1:].set_axis(names, axis=1).fillna("")
    table = table[(table != "").any(axis=1)]
    named = "path" in names and len({*names}) == len(names) and ("label" in names or {*names} <= known)
    if not named or table.empty:
        found = f"{len(table)} below {few(names)}"
        raise ValueError(f"{path}: expected rows below the columns path and label, each once, by commas, found {found}")
    files, labels = table["path"], table.get("label", table["path"]).str.strip()
    lacking = files[(files == "") | labels.str.contains("^$|\n")]
    _refuse(path, "rows without a path, a label or a closing quote", lacking)
    table = table.apply(lambda column: column.str.strip())
    table["path"] = [os.path.normpath(path.parent / file) for file in files]
    within, own = (column.str.normalize("NFC") for column in (table["path"].str.split("/").str[-2], labels))
    odd = (within != own) & within.isin(own) & ((within == own).mean() > 0.5)
    _refuse(path, "images in the folder of another label; move them or correct it", (files + " as " + labels)[odd])
    notes = [f"columns that are not used: {', '.join(sorted({*names} - known - {'label'})) or 'none'}"]
    if "split" in names:
        words = table["split"].str.lower()
        test = "test" if "test" in {*words} else "validation"  # as Open Metric Learning calls it
        _refuse(path, f"rows whose split is neither train nor {test}", words[~words.isin(["train", test])])
        table["split"], notes = words.replace(test, "test"), ["split: by the column split", *notes]
    return table, notes


def _refuse(source: Path, what: str, bad: pd.Series) -> None:
    """Raise an error that counts the offenders and lists the first few, if there are any."""
    if len(bad):
        lines = [f"line {line}: {text}" for line, text in bad.items()] if source.is_file() else map(ascii, bad)
        raise ValueError(f"{source}: {len(bad)} {what}: {few([*lines])}")
