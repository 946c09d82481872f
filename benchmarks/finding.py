"""Seconds of finding images in an index, over those of a float64 ranking and of a search in blocks by torch.

    python benchmarks/finding.py            1,000 queries in 100,000 vectors of 128 numbers; writes a table
    python benchmarks/finding.py --quick    a small case, seconds; prints, writes nothing

product    `finding.nearest`: faiss where it is installed, on vectors mapped from a file as in an index
torch      the same in blocks by torch, which is what runs without faiss
float64    `retrieval.nearest`, whose lists do not depend on rounding

All three must give the same neighbours, but for one in a thousand that rounding may swap. They take turns in one
process on one thread; only ratios within one run carry over to another machine. Reading and embedding the queries is
left out. The exit status is 1 if a ratio misses its limit.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import harness
import numpy as np

from dmlrepro import retrieval
from experiments import timing
from experiments.analysis.saving import output_folder
from experiments.deploy import finding


class Case(NamedTuple):
    queries: int
    vectors: int
    dim: int
    k: int = 10


CASES = {"index": Case(1000, 100_000, 128)}
QUICK = {"quick": Case(50, 5000, 32)}
REPEATS = 3
LIMITS = {("index", "seconds", "float64"): 1.0}


def measure(name: str, case: Case) -> list[dict]:
    """A row per form; AssertionError if they find other images."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((case.vectors, case.dim)).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    queries = np.ascontiguousarray(points[: case.queries])
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "vectors.npy"), points)
        vectors = np.load(Path(folder, "vectors.npy"), mmap_mode="r")
        forms = {
            "product": lambda: finding.nearest(queries, vectors, case.k)[0],
            "torch": lambda: finding.blockwise(queries, vectors, case.k)[0],
            "float64": lambda: retrieval.nearest(queries, case.k, gallery=vectors).numpy(),
        }
        neighbours = {form: np.sort(call(), axis=1) for form, call in forms.items()}
        for form, rows in neighbours.items():
            if (rows != neighbours["float64"]).mean() > 1e-3:
                raise AssertionError(f"{name}: {form} finds other images than float64")
        times = timing.in_turn(forms, REPEATS, "cpu")
    shape = {"case": name, **case._asdict()}
    return [
        shape | {"form": form, "metric": "seconds", "value": statistics.median(seconds)}
        for form, seconds in times.items()
    ]


def main(cases: dict[str, Case]) -> list[dict]:
    with timing.threads(1):
        return [row for name, case in cases.items() for row in measure(name, case)]


def judge(rows: list[dict]) -> bool:
    """Print every ratio; whether all that have a limit keep it."""
    by_case: dict[str, dict[str, float]] = {}
    for row in rows:
        by_case.setdefault(row["case"], {})[row["form"]] = row["value"]
    return harness.ratios_within([(name, "seconds", values) for name, values in by_case.items()], LIMITS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one small case, nothing written")
    options = parser.parse_args()
    rows = main(QUICK if options.quick else CASES)
    passed = judge(rows)
    if not options.quick:
        harness.write_table(rows, output_folder("benchmarks") / "finding.csv")
    sys.exit(not passed)
