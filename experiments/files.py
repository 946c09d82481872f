"""Where things lie, and files of which nobody ever sees half a one.

What this package keeps is made in a temporary folder beside its place, flushed to the disk and renamed. What a disk or
another program has damaged since is found by checksums when it is read, and refused by name.
"""

import errno
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from experiments import variables

TEMPORARY = ".dmlrepro-"  # how the names of temporary folders begin
DAY = 24 * 3600  # seconds after which the maker of a temporary folder is taken for dead
# how libraries that write checkpoints say that a disk is full, where Python itself gives a number
FULL = "(?s)^SafetensorError: .*I/O error|inline_container.cc"
SUMS = "SHA256SUMS"  # as `sha256sum` writes it and `sha256sum --check` reads it


class FullDisk(OSError):
    """A disk is full: whatever is made next would be lost as well, so nothing goes on after it."""


@contextmanager
def temporary_folder(place: Path) -> Iterator[Path]:
    """An empty folder inside `place`, removed at the end; what killed processes left a day ago is removed first."""
    place.mkdir(parents=True, exist_ok=True)
    for left in place.glob(f"{TEMPORARY}*"):
        with suppress(FileNotFoundError):  # another process has just done so
            if time.time() - left.stat().st_mtime > DAY:
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=TEMPORARY, ignore_cleanup_errors=True) as made:
        yield Path(made)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A path at which nothing is yet; the file or folder that the block makes there becomes `path` when it ends
    without an error, at once and safe from a power cut. A folder that is there by then stays. Raises as `explained`."""
    with explained(path.parent), temporary_folder(path.parent) as folder:
        temporary = folder / path.name
        yield temporary
        _flush([*temporary.rglob("*"), temporary])  # else the new name may survive a power cut and the content not
        try:
            os.replace(temporary, path)
        except OSError:
            if not (temporary.is_dir() and path.is_dir()):
                raise
        _flush([path.parent])


@contextmanager
def explained(place: Path) -> Iterator[None]:
    """Around what writes to a file or folder: FullDisk and PermissionError name it and the variable that moves it."""
    try:
        yield
    except Exception as error:
        full: object = re.search(FULL, f"{type(error).__name__}: {error}")
        if isinstance(error, OSError):
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise PermissionError(f"cannot write to {place} ({error}); {_elsewhere(place)}") from error
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if not full:
            raise
        remedy = f"free space there, or {_elsewhere(place)}, and start again; what is finished, and the last checkpoint"
        raise FullDisk(f"cannot write to {place} ({error}): {remedy}, stay") from error


def _elsewhere(place: Path) -> str:
    for variable, root in (("DMLREPRO_CACHE", cache_root()), ("DMLREPRO_DATA", data_root())):
        if place.is_relative_to(root):
            return f"set {variable} to another folder"
    return "set DMLREPRO_RESULTS, for tables, and DMLREPRO_RECORD, for stored runs and searches, to other folders"


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf8")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """No two processes of a machine are in such a block with the same path at a time; one that is killed leaves it."""
    with explained(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock")).acquire()
    with lock:
        yield


def _flush(paths: Iterable[Path]) -> None:
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_once(path: Path) -> str:
    """`sha256`, computed once in a process unless size or time change: that of 30 GB of images takes half a minute."""
    state = path.stat()
    return _sha256_as_of(path, state.st_size, state.st_mtime_ns)


_sha256_as_of = functools.cache(lambda path, *state: sha256(path))


def read_json(path: Path, remedy: str) -> Any:
    """What a JSON file holds; ValueError names the file and says the remedy where it is none or only a part of one."""
    try:
        return json.loads(path.read_text(encoding="utf8"))
    except ValueError as error:
        raise ValueError(f"{path} is no complete JSON file ({error}); {remedy}") from error


SIGNATURE = "sha256"  # the entry of a signed JSON file that is the digest of all others


def signed(entries: Mapping[str, Any]) -> str:
    """The JSON text of an object whose last entry is the sha256 of all others."""
    others = {name: value for name, value in entries.items() if name != SIGNATURE}
    digest = hashlib.sha256(json.dumps(others, indent=1).encode()).hexdigest()
    return json.dumps(others | {SIGNATURE: digest}, indent=1) + "\n"


def read_signed(path: Path, remedy: str) -> dict[str, Any]:
    """What a signed JSON file holds; ValueError names the file and says the remedy where it is not what was written."""
    content = read_json(path, remedy)
    if not isinstance(content, dict) or signed(content) != path.read_text(encoding="utf8"):
        raise ValueError(f"{path} is not what was written: its sha256 is not the one that it holds; {remedy}")
    return content


def write_checksums(folder: Path) -> None:
    """List the sha256 of every file of a folder in its SHA256SUMS, for `refuse_damaged`."""
    (folder / SUMS).write_text("".join(f"{line}\n" for line in sorted(_sums(folder))), encoding="utf8")


def refuse_damaged(folder: Path) -> None:
    """ValueError names a folder that does not hold the files that its SHA256SUMS lists, and no others."""
    sums = folder / SUMS
    listed = {*sums.read_text(encoding="utf8", errors="replace").splitlines()} if sums.is_file() else set()
    wrong = sorted({line.partition("  ")[2] or SUMS for line in listed ^ _sums(folder)})
    if wrong or not listed:
        what = ", ".join(wrong) or "nothing there"
        raise ValueError(f"{folder} is damaged ({what}: not what {SUMS} lists); remove it, and it is made anew")


def _sums(folder: Path) -> set[str]:
    return {f"{sha256_once(path)}  {path.name}" for path in folder.iterdir() if path.name != SUMS}


def repository_root() -> Path:
    """The repository: the nearest folder at or above the working directory whose pyproject.toml is this project's, else
    the clone that this package is imported from."""
    return _repository_above(Path.cwd())


@functools.cache  # every RunSpec asks for it
def _repository_above(here: Path) -> Path:
    for folder in (here, *here.parents):
        project = folder / "pyproject.toml"
        if project.is_file() and b'\nname = "dmlrepro"\n' in project.read_bytes() and (folder / "dmlrepro").is_dir():
            return folder
    return Path(__file__).resolve().parents[1]


def data_root() -> Path:
    """Where data sets and weights lie: environment variable DMLREPRO_DATA, relative to the repository, else data/."""
    return repository_root() / (variables.folder("DMLREPRO_DATA") or "data")


def cache_root() -> Path:
    """Where rendered, decoded and trained things lie: DMLREPRO_CACHE, relative to the repository, else .cache/."""
    return repository_root() / (variables.folder("DMLREPRO_CACHE") or ".cache")


def kept_folder(place: Path, build: Callable[[Path], None]) -> Path:
    """The folder at `place`, which `build` fills once: it is given an empty folder. Of several processes one builds,
    the others wait. Raises as `refuse_damaged`."""
    if place.is_dir():
        refuse_damaged(place)
        return place
    with locked(place):
        if not place.is_dir():
            with atomic_write(place) as made:
                made.mkdir()
                build(made)
                write_checksums(made)
    return place


def mapped_array(
    folder: Path, key: object, shape: tuple[int, ...], dtype: np.dtype, build: Callable[[], Iterable[np.ndarray]]
) -> np.ndarray:
    """The read-only array whose rows `build()` gives, in parts of any length, kept in `folder` under the hash of `key`,
    see `kept_folder`. It is mapped into memory, so that processes share what they read of it."""

    def write(made: Path) -> None:  # not through a mapping: where the disk is full, that would be a signal
        with (made / "array.npy").open("wb") as file:
            form = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, form)
            for rows in build():
                file.write(np.ascontiguousarray(rows, dtype).data)

    return np.load(kept_folder(folder / _name_of(key), write) / "array.npy", mmap_mode="r")


def _name_of(key: object) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]
