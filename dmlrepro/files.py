"""Where things lie, and writing files so that nobody ever sees half of one."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that replaces it, atomically, when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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


def cached_array(folder: str, key: object, build: Callable[[], np.ndarray]) -> np.ndarray:
    """The array `build()` returns, kept as .npy below cache_root()/folder under the hash of `key`."""
    path = cache_root() / folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.npy"
    if not path.is_file():
        array = build()
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, array)
    return np.load(path)
