"""The image files of a folder: any depth, with classes or without."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from experiments.datasets.own_images import SUFFIXES


class Image(NamedTuple):
    """A file: its path from the folder with slashes, its bytes, and when it was changed in ns."""

    path: str
    bytes: int
    changed: int

    @property
    def label(self) -> str:
        return self.path.rpartition("/")[0]


def listed(folder: Path) -> tuple[list[Image], list[str]]:
    """The image files below a folder at any depth, by path, and those whose names no text file can hold; hidden ones
    are left out, links are followed once.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it has no images.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder}: expected a folder of images, found {'a file' if folder.exists() else 'nothing'}"
        )
    images, unnamed, seen = [], [], set()
    for here, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not (name.startswith(".") or name == "__MACOSX"))
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        for name in files:
            place = Path(here, name)
            if name.startswith(".") or place.suffix.lower() not in SUFFIXES:
                continue
            path = place.relative_to(folder).as_posix()
            if not _is_text(path):
                unnamed.append(path.encode(errors="surrogateescape").decode(errors="backslashreplace"))
                continue
            with suppress(FileNotFoundError):  # a link to nothing, or removed by now
                status = place.stat()
                images.append(Image(path, status.st_size, status.st_mtime_ns))
    if not images:
        raise ValueError(f"{folder}: no images; expected files that end in {', '.join(SUFFIXES)}, at any depth")
    return sorted(images), sorted(unnamed)


def _is_text(path: str) -> bool:
    try:
        return not set("\r\n") & set(path) and bool(path.encode())
    except UnicodeEncodeError:
        return False
