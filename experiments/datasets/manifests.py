"""Every data set as one manifest: images or file paths, class labels, split, query and gallery flags.

`load(name)` reads a set from its official layout below `data_root()`; `glyphs` needs no files at all. Labels are
contiguous, training classes first. A set with exactly the official counts carries its plain name, anything smaller is
"<name>-subset" and has to be asked for by that name, so that a partial copy never passes for the benchmark. The
reader's own images, "folder:PATH" or "manifest:FILE.csv", are called by their folder and a digest, "birds@1a2b3c4d".
"""

import functools
import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from experiments.datasets import glyphs, layouts, own_images
from experiments.datasets.layouts import few
from experiments.files import cache_root, data_root, mapped_array

DRAWN = tuple(glyphs.CHARACTERS)  # embedded sets, rendered from fonts
# images and classes per part, as published with each set
OFFICIAL = {
    "omniglot": {"train": (19280, 964), "test": (13180, 659)},
    "mnist": {"train": (60000, 10), "test": (10000, 10)},
    "cub": {"train": (5864, 100), "test": (5924, 100)},
    "cars": {"train": (8054, 98), "test": (8131, 98)},
    "sop": {"train": (59551, 11318), "test": (60502, 11316)},
    "inshop": {"train": (25882, 3997), "query": (14218, 3985), "gallery": (12612, 3985)},
}


@dataclass(frozen=True, eq=False)
class Manifest:
    """A labelled image collection with a train and a test part."""

    # of DRAWN or OFFICIAL, one of the latter with "-subset", or, of the reader's own images, "birds@1a2b3c4d"
    name: str
    images: np.ndarray | tuple[str, ...]  # uint8 array (N, H, W) or (N, H, W, 3), or N file paths
    # (N,) int64, contiguous: training classes 0..C_train-1, then test classes; of "mnist" 0..9 in both parts
    labels: np.ndarray
    split: np.ndarray  # (N,) str, "train" or "test"
    is_query: np.ndarray  # (N,) bool, test images that search; all of them unless the set defines queries
    is_gallery: np.ndarray  # (N,) bool, test images that are searched; likewise
    class_names: tuple[str, ...]  # one name per label
    corrupted: np.ndarray  # sorted indices of the training images whose label was replaced by `label_noise`

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_train_classes(self) -> int:
        """Training labels are 0..num_train_classes-1."""
        return int(self.labels[self.split == "train"].max()) + 1

    def indices(self, split: str) -> np.ndarray:
        """Positions (int64, ascending) of the images of "train", "test", "query" or "gallery"."""
        parts = {"train": self.split == "train", "test": self.split == "test"}
        parts |= {"query": self.is_query, "gallery": self.is_gallery}
        if split not in parts:
            raise ValueError(f"split must be one of {', '.join(parts)}, got {split!r}")
        return np.flatnonzero(parts[split])

    def digest(self) -> str:
        """Hex sha256 of all that determines the content, the same on every machine.

        Image files enter with their path below their common folder and their size in bytes, not with their pixels:
        editing a picture in place without changing its size goes unnoticed.
        """
        digest = hashlib.sha256(repr((self.name, self.class_names, self.images_digest)).encode())
        for array in (self.labels, self.split, self.is_query, self.is_gallery, self.corrupted):
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    @functools.cached_property
    def images_digest(self) -> str:
        """Hex sha256 of the images alone, whatever their labels."""
        if not isinstance(self.images, tuple):
            digest = hashlib.sha256(repr(self.images.shape).encode())
            digest.update(np.ascontiguousarray(self.images).data)
            return digest.hexdigest()
        start = len(os.path.join(os.path.commonpath({os.path.dirname(path) for path in self.images}), ""))
        lines = (f"{path[start:].replace(os.sep, '/')} {os.path.getsize(path)}\n" for path in self.images)
        # names of files may come decomposed from macOS; all others store what was typed, which is composed
        return hashlib.sha256(unicodedata.normalize("NFC", "".join(lines)).encode()).hexdigest()


def load(name: str, *, label_noise: float = 0.0, seed: int = 0, images_per_class: int | None = None) -> Manifest:
    """Read a data set below `data_root()`.

    Args:
        name: as in `Manifest`, or "folder:PATH" or "manifest:FILE.csv" for the reader's own images (see own_images.py).
        label_noise: fraction of the training images, 0 <= label_noise < 1, that get the label of a uniformly random
            other training class; which ones is in `Manifest.corrupted`.
        seed: seeds the label noise and nothing else.
        images_per_class: how many images to draw of each class, default 24; only "glyphs" and "symbols" take it.

    Raises:
        ValueError: unknown name or a bad argument; data that contradict themselves or the official counts.
        FileNotFoundError: a file of the official layout is missing.
    """
    if not 0 <= label_noise < 1:
        raise ValueError(f"label_noise must be a fraction in [0, 1), got {label_noise}")
    if images_per_class is not None and (not isinstance(images_per_class, int) or images_per_class < 1):
        raise ValueError(f"images_per_class must be a positive integer, got {images_per_class!r}")
    if name in DRAWN:
        manifest = _drawn(name, images_per_class or 24)
    elif images_per_class is not None:
        raise ValueError(f"images_per_class is for {' and '.join(DRAWN)} only, which are drawn, not for {name}")
    else:
        manifest, _ = present(name)
        if manifest.name != name and not is_own(name):
            expected = ("" if name in OFFICIAL else "fewer than ") + _describe(OFFICIAL[name.removesuffix("-subset")])
            found = f"{_describe(_counts(manifest))}: this is {manifest.name!r}, ask for it by that name"
            raise ValueError(f"{name}: expected {expected}; found {found}")
    if not label_noise:
        return manifest
    train, num_classes = manifest.indices("train"), manifest.num_train_classes
    if num_classes < 2:
        raise ValueError(f"label_noise needs at least 2 training classes, {manifest.name} has {num_classes}")
    generator = np.random.default_rng(seed)
    corrupted = np.sort(generator.choice(train, round(label_noise * len(train)), replace=False))
    labels = manifest.labels.copy()
    labels[corrupted] = (labels[corrupted] + generator.integers(1, num_classes, len(corrupted))) % num_classes
    return replace(manifest, labels=labels, corrupted=corrupted)


def is_own(name: str) -> bool:
    """Whether a name, of a data set or of its manifest, means the reader's own images."""
    return str(name).startswith(("folder:", "manifest:")) or "@" in str(name)


def check(name: str) -> str:
    """A table of what is there under a name, with or without "-subset": counts, class sizes, digest, official or not.

    Raises what `load` raises, except for counts that differ from the official ones.
    """
    manifest, notes = present(name)
    official = OFFICIAL.get(str(name).removesuffix("-subset"), {})
    lines = [f"{'part':8}{'images':>8}{'classes':>9}{'per class':>12}{'official':>18}"]
    for part, (images, classes) in _counts(manifest).items():
        sizes = np.unique(manifest.labels[manifest.indices(part)], return_counts=True)[1]
        published = "{} / {}".format(*official[part]) if part in official else "-"
        lines.append(f"{part:8}{images:8}{classes:9}{f'{sizes.min()}..{sizes.max()}':>12}{published:>18}")
    stranded = len(manifest.indices("query")) - int(_retrievable(manifest).sum())
    lines += [
        f"queries without another gallery image of their class, left out of retrieval scores: {stranded}",
        *notes,
        f"digest {manifest.digest()}",
        f"official counts: {('yes' if manifest.name in OFFICIAL else 'no') if official else 'not applicable'}",
        f"name to load it by: {manifest.name}" if not is_own(name) else f"name in results: {manifest.name}",
    ]
    return "\n".join(lines)


@functools.lru_cache(maxsize=2)  # a run asks several times, and a process has many runs on the same images
def _drawn(name: str, images_per_class: int) -> Manifest:
    train, test = glyphs.CHARACTERS[name]
    key = (glyphs.SOURCE_DIGEST, images_per_class, version("pillow"), version("matplotlib"), np.__version__)
    shape, kind = (len(train + test) * images_per_class, glyphs.SIZE, glyphs.SIZE), np.dtype(np.uint8)
    drawn = (glyphs.render(character, images_per_class) for character in train + test)
    images = mapped_array(cache_root() / name, key, shape, kind, lambda: drawn)
    labels = np.arange(len(train + test)).repeat(images_per_class)
    names = (f"{character} {unicodedata.name(character)}" for character in train + test)
    return _of_parts(name, images, labels, np.where(labels < len(train), "train", "test"), names)


def _of_parts(name: str, images: Any, labels: np.ndarray, parts: np.ndarray, class_names: Iterable[str]) -> Manifest:
    """A manifest without label noise; parts: "train", "test", "query" or "gallery" of each image."""
    split = np.where(parts == "train", "train", "test")
    is_query, is_gallery = np.isin(parts, ["test", "query"]), np.isin(parts, ["test", "gallery"])
    return Manifest(name, images, labels, split, is_query, is_gallery, tuple(class_names), np.empty(0, np.int64))


def present(name: str) -> tuple[Manifest, tuple[str, ...]]:
    """What is there under a name, with or without "-subset", whole or in part, and notes on how it was read.

    Raises what `load` raises, except for counts that differ from the official ones.
    """
    if name in DRAWN:
        return _drawn(name, 24), ()
    root, base = data_root(), str(name).removesuffix("-subset")
    if is_own(name):
        found = own_images.read(name, root)
    elif base in OFFICIAL:
        try:
            found = getattr(layouts, f"read_{base}")(root)
        except FileNotFoundError as error:
            fetch = f"`python -m experiments data fetch {base}` downloads the set or says how to get it"
            raise FileNotFoundError(f"{error}; {fetch}") from error
    else:
        raise ValueError(
            f"unknown data set {name!r}; there are {', '.join(DRAWN)}, {', '.join(OFFICIAL)}, each of the latter also "
            "-subset, and your own images as folder:PATH or manifest:FILE.csv"
        )
    source, own_name, classes, labels = found.source, found.own_name, found.classes, np.asarray(found.labels)

    def wrong(expected: str, instead: str) -> ValueError:
        return ValueError(f"{source}: expected {expected}, found {instead}")

    if repeated := [name for name, times in Counter(classes).items() if times > 1]:
        raise wrong("classes of different names", f"{few(repeated)} more than once")
    declared = f"images of each of the {len(classes)} declared classes"
    if empty := sorted({*classes} - {*labels.tolist()}):
        raise wrong(declared, f"class {few(empty)} without an image")
    if undeclared := sorted({*labels.tolist()} - {*classes}):
        raise wrong(declared, f"images of undeclared class {few(undeclared)}")
    paths = [str(path) for path in found.images] if isinstance(found.images, list) else []
    if missing := [path for path in paths if not os.path.isfile(path)]:
        raise FileNotFoundError(f"{source}: lists {len(missing)} files that are missing: {few(missing)}")
    is_train, least = found.parts == "train", 2 if own_name else 1  # training takes two classes
    trained, tested = {*labels[is_train].tolist()}, {*labels[~is_train].tolist()}
    if len(trained) < least or not tested:
        expected = f"at least {least} classes to train on and another one to test on"
        raise wrong(expected, f"{len(trained)} and {len(tested)}")
    shared = [name for name in classes if name in trained & tested]
    if shared and base != "mnist":  # a closed set: the ten digits are in both parts
        remedy = "; give each class to one part, or name no parts, then half of the classes are for testing"
        both = f"{len(shared)} of {len(classes)} in both: {few(shared)}{remedy if own_name else ''}"
        raise wrong("other classes in test than in train", both)
    if repeated := [path for path, times in Counter(paths).items() if times > 1]:
        raise ValueError(f"{source}: lists {len(repeated)} files more than once: {few(repeated)}")

    order = np.argsort(~is_train, kind="stable")
    images = tuple(paths[i] for i in order) if paths else np.asarray(found.images)[order]
    label_of = {name: label for label, name in enumerate(sorted(classes, key=lambda name: name not in trained))}
    numbers = np.array([label_of[name] for name in labels[order]])
    manifest = _of_parts(own_name or base, images, numbers, found.parts[order], label_of)
    if not _retrievable(manifest).any():
        raise wrong("a test class with a query and another gallery image", "none")
    if own_name:
        named = replace(manifest, name=f"{own_name}@{manifest.digest()[:8]}")
        vars(named)["images_digest"] = manifest.images_digest  # which asks for the size of each file
        return named, found.notes
    counts = _counts(manifest)
    if any(images > OFFICIAL[base][part][0] for part, (images, _) in counts.items()):
        raise wrong(f"at most {_describe(OFFICIAL[base])}", _describe(counts))
    return (manifest if counts == OFFICIAL[base] else replace(manifest, name=f"{base}-subset")), found.notes


def _retrievable(manifest: Manifest) -> np.ndarray:
    """Which queries, in the order of `indices("query")`, have another gallery image of their class to find."""
    in_gallery = np.bincount(manifest.labels[manifest.is_gallery], minlength=len(manifest.class_names))
    queries = manifest.indices("query")
    return in_gallery[manifest.labels[queries]] > manifest.is_gallery[queries]


def _counts(manifest: Manifest) -> dict[str, tuple[int, int]]:
    """Images and classes of each part; test is split into query and gallery where these differ."""
    same = np.array_equal(manifest.is_query, manifest.is_gallery)
    names = ("train", "test") if same else ("train", "query", "gallery")
    parts = {part: manifest.labels[manifest.indices(part)] for part in names}
    return {part: (len(labels), len(np.unique(labels))) for part, labels in parts.items()}


def _describe(counts: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{part} {images} images of {classes} classes" for part, (images, classes) in counts.items())
