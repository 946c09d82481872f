"""The five papers and what is known of them without a run: data/papers.csv, errata.csv, disk.csv, published effects."""

import functools

import pandas as pd

from experiments.analysis import claims
from experiments.files import repository_root

SEVERITIES = ("changes results", "changes a formula", "a misprint")


@functools.cache
def papers() -> pd.DataFrame:
    """The rows of `claims.papers`, by paper."""
    return pd.DataFrame.from_dict(claims.papers(), orient="index")


@functools.cache
def errata() -> pd.DataFrame:
    """What is wrong in the papers and their released code, what changes results first: paper, severity, where, wrong,
    reading (ours), file, test (which shows it)."""
    return _read("errata.csv").sort_values(
        "severity", key=lambda column: column.map(SEVERITIES.index), kind="stable", ignore_index=True
    )


@functools.cache
def effects() -> pd.DataFrame:
    """Published differences: claim_id, comparison, dataset, metric, value in points; ours: the comparison of the
    claim's test that is like it, empty where none is."""
    return _read("published/effects.csv").astype({"value": float})


@functools.cache
def disk() -> pd.DataFrame:
    """Gigabytes of packages and data sets: what, the profile from which on it is needed, download, decoded images."""
    return _read("disk.csv").replace("", "0").astype({"download": float, "decoded": float})


def _read(name: str) -> pd.DataFrame:
    return pd.read_csv(repository_root() / "data" / name, dtype=str, keep_default_na=False)
