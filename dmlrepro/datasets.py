"""Every data set as one manifest: images or file paths, class labels, split, query and gallery flags.

`load(name)` reads a set from its official layout below `data_root()`; `glyphs` needs no files at all. Labels are
contiguous, training classes first. A set with exactly the official counts carries its plain name, anything smaller is
"<name>-subset" and has to be asked for by that name, so that a partial copy never passes for the benchmark.
"""

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np


@dataclass(frozen=True, eq=False)
class Manifest:
    """A labelled image collection with a train and a test part.

    Attributes:
        name: "glyphs", "omniglot", "mnist", "cub", "cars", "sop", "inshop", or one of the latter with "-subset".
        images: uint8 array (N, H, W) or (N, H, W, 3), or a tuple of N file paths.
        labels: (N,) int64, contiguous: training classes 0..C_train-1, then test classes. Only "mnist", whose ten
            classes are in both parts, has the same labels 0..9 in both.
        split: (N,) str, "train" or "test".
        is_query: (N,) bool, test images that search; all of them unless the set defines queries.
        is_gallery: (N,) bool, test images that are searched; likewise.
        class_names: one name per label.
        corrupted: sorted indices of the training images whose label was replaced by `label_noise`.
    """

    name: str
    images: np.ndarray | tuple[str, ...]
    labels: np.ndarray
    split: np.ndarray
    is_query: np.ndarray
    is_gallery: np.ndarray
    class_names: tuple[str, ...]
    corrupted: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_train_classes(self) -> int:
        """Number of training classes; training labels are 0..num_train_classes-1."""
        return int(self.labels[self.split == "train"].max()) + 1

    def indices(self, split: str) -> np.ndarray:
        """Positions (int64, ascending) of the images of "train", "test", "query" or "gallery"."""
        masks = {
            "train": self.split == "train",
            "test": self.split == "test",
            "query": self.is_query,
            "gallery": self.is_gallery,
        }
        if split not in masks:
            raise ValueError(f"split must be one of {', '.join(masks)}, got {split!r}")
        return np.flatnonzero(masks[split])

    def digest(self) -> str:
        """Hex sha256 of all that determines the content, the same on every machine.

        Image files enter with their path below their common folder and their size in bytes, not with their pixels.
        """
        digest = hashlib.sha256(repr((self.name, self.class_names, self.images_digest)).encode())
        for array in (self.labels, self.split, self.is_query, self.is_gallery, self.corrupted):
            digest.update(repr((array.shape, array.dtype.str)).encode())
            digest.update(np.ascontiguousarray(array))
        return digest.hexdigest()

    @functools.cached_property
    def images_digest(self) -> str:
        """Hex sha256 of the images alone, whatever their labels."""
        if not isinstance(self.images, tuple):
            digest = hashlib.sha256(repr(self.images.shape).encode())
            digest.update(np.ascontiguousarray(self.images))
            return digest.hexdigest()
        folder = os.path.commonpath([os.path.dirname(path) for path in self.images])
        lines = (f"{Path(path).relative_to(folder).as_posix()} {os.path.getsize(path)}\n" for path in self.images)
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def repository_root() -> Path:
    """The repository: the nearest folder at or above the working directory with pyproject.toml and dmlrepro/,
    else the folder that holds this package."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "pyproject.toml").is_file() and (folder / "dmlrepro").is_dir():
            return folder
    return Path(__file__).resolve().parent.parent


def data_root() -> Path:
    """Where data sets and weights lie: environment variable DMLREPRO_DATA (relative to the repository), else data/."""
    return repository_root() / os.environ.get("DMLREPRO_DATA", "data")


def cache_root() -> Path:
    """Where rendered, decoded and trained things lie: DMLREPRO_CACHE (relative to the repository), else .cache/."""
    return repository_root() / os.environ.get("DMLREPRO_CACHE", ".cache")


def load(
    name: str,
    root: str | Path | None = None,
    *,
    label_noise: float = 0.0,
    seed: int = 0,
    images_per_class: int | None = None,
) -> Manifest:
    """Read a data set.

    Args:
        name: "glyphs", "omniglot", "mnist", "cub", "cars", "sop", "inshop"; with "-subset" for a partial copy.
        root: folder that holds the data sets, default `data_root()`.
        label_noise: fraction of the training images, 0 <= label_noise < 1, that get the label of a uniformly random
            other training class; which ones is in `Manifest.corrupted`.
        seed: of the label noise only.
        images_per_class: of glyphs only, default 24.

    Raises:
        ValueError: unknown name or a bad argument; data that contradict themselves or the official counts.
        FileNotFoundError: a file of the official layout is missing.
    """
    if not 0 <= label_noise < 1:
        raise ValueError(f"label_noise must be a fraction in [0, 1), got {label_noise}")
    if name == "glyphs":
        manifest = _glyphs(24 if images_per_class is None else images_per_class)
    else:
        raise ValueError(f"unknown data set {name!r}; there are glyphs")
    return _with_label_noise(manifest, label_noise, seed) if label_noise else manifest


def folds(manifest: Manifest, k: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    """Cross-validation over classes: k pairs (training class ids, validation class ids).

    The validation classes of the folds are k contiguous, disjoint runs of the training classes (Musgrave et al. 2020).
    """
    classes = np.arange(manifest.num_train_classes)
    if not 2 <= k <= len(classes):
        raise ValueError(f"k must be between 2 and the {len(classes)} training classes, got {k}")
    return [(np.setdiff1d(classes, held_out), held_out) for held_out in np.array_split(classes, k)]


def _with_label_noise(manifest: Manifest, fraction: float, seed: int) -> Manifest:
    train, num_classes = manifest.indices("train"), manifest.num_train_classes
    if num_classes < 2:
        raise ValueError(f"label_noise needs at least 2 training classes, {manifest.name} has {num_classes}")
    generator = np.random.default_rng(seed)
    corrupted = np.sort(generator.choice(train, round(fraction * len(train)), replace=False))
    labels = manifest.labels.copy()
    labels[corrupted] = (labels[corrupted] + generator.integers(1, num_classes, len(corrupted))) % num_classes
    return replace(manifest, labels=labels, corrupted=corrupted)


def manifest_of(name: str, images, train_labels, test_labels, class_names, is_query=None) -> Manifest:
    """A manifest whose images are the training images followed by the test images.

    is_query: (number of test images,) bool where queries and gallery differ, else every test image is both.
    """
    num_train, num_test = len(train_labels), len(test_labels)
    ours = np.ones(num_test, bool)
    before = np.zeros(num_train, bool)
    return Manifest(
        name=name,
        images=images,
        labels=np.concatenate([train_labels, test_labels]).astype(np.int64),
        split=np.repeat(["train", "test"], [num_train, num_test]),
        is_query=np.concatenate([before, ours if is_query is None else is_query]),
        is_gallery=np.concatenate([before, ours if is_query is None else ~is_query]),
        class_names=tuple(class_names),
        corrupted=np.empty(0, np.int64),
    )


def cached_array(folder: str, key: object, build: Callable[[], np.ndarray]) -> np.ndarray:
    """The array `build()` returns, kept as .npy below cache_root()/folder under the hash of `key`.

    Written to a temporary file and renamed, so that concurrent builders and killed ones leave a whole file or none.
    """
    path = cache_root() / folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.npy"
    if not path.is_file():
        array = build()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            try:
                np.save(file, array)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    return np.load(path)


def _glyphs(images_per_class: int) -> Manifest:
    import unicodedata
    from importlib.metadata import version

    from dmlrepro import glyphs

    if not isinstance(images_per_class, int) or images_per_class < 1:
        raise ValueError(f"images_per_class must be a positive integer, got {images_per_class!r}")
    train, test = glyphs.characters()
    source = Path(glyphs.__file__).read_bytes()
    key = (
        hashlib.sha256(source).hexdigest(),
        images_per_class,
        version("pillow"),
        version("matplotlib"),
        np.__version__,
    )
    images = cached_array(
        "glyphs",
        key,
        lambda: np.concatenate([glyphs.render(character, images_per_class) for character in train + test]),
    )
    labels = np.arange(len(train + test)).repeat(images_per_class)
    first_test = len(train) * images_per_class
    names = [f"{character} {unicodedata.name(character)}" for character in train + test]
    return manifest_of("glyphs", images, labels[:first_test], labels[first_test:], names)
