"""The environment variables of this package: nothing else reads them. An empty one counts as unset.

DMLREPRO_DATA: folder of data sets and weights, see `files.data_root`.
DMLREPRO_CACHE: folder of what is rendered, decoded and trained, see `files.cache_root`.
DMLREPRO_RESULTS: folder of tables; results/ without it.
DMLREPRO_RECORD: folder of stored runs and searches; results/ without it.
DMLREPRO_TRAIN: 0 executes notebooks from stored runs alone; 1, as without it, trains what is missing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def folder(variable: str) -> Path | None:
    """The folder that a variable names, `~` expanded, a relative one counts from the repository; None: it is unset."""
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None


@contextmanager
def unset(variable: str) -> Iterator[None]:
    value = os.environ.pop(variable, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[variable] = value


def trains() -> bool:
    value = os.environ.get("DMLREPRO_TRAIN") or "1"
    if value not in ("0", "1"):
        raise ValueError(f"environment variable DMLREPRO_TRAIN must be 0 or 1, got {value!r}")
    return value == "1"
