"""The environment variables of this package: nothing else reads them. An empty one counts as unset.

DMLREPRO_DATA: folder of data sets and weights, see `files.data_root`.
DMLREPRO_CACHE: folder of what is rendered, decoded and trained, see `files.cache_root`.
DMLREPRO_RESULTS: folder of tables; results/ without it.
DMLREPRO_RECORD: folder of stored runs and searches; results/ without it.
DMLREPRO_TRAIN: 0 executes notebooks from stored runs alone; 1, as without it, trains what is missing.
DMLREPRO_CHECKPOINT_SECONDS: between two checkpoints of a run; 300 without it.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def folder(variable: str) -> Path | None:
    """The folder that a variable names, `~` expanded; None where it is unset. A relative one counts from the
    repository."""
    value = os.environ.get(variable)
    try:
        return Path(value).expanduser() if value else None
    except RuntimeError as error:  # no such user
        raise ValueError(f"environment variable {variable}={value}: {error}") from error


@contextmanager
def unset(variable: str) -> Iterator[None]:
    value = os.environ.pop(variable, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[variable] = value


def number(variable: str, default: float) -> float:
    """The number, finite and at least 0, that a variable gives; ValueError where it gives something else."""
    if not (value := os.environ.get(variable)):
        return default
    with suppress(ValueError):
        if 0 <= float(value) < math.inf:
            return float(value)
    raise ValueError(f"environment variable {variable} must be a finite number, at least 0, got {value!r}")


def trains() -> bool:
    return number("DMLREPRO_TRAIN", 1) != 0
