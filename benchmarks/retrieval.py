"""Seconds of ranking a gallery: by the search in float32 that the product does, and all in float64 as before.

    python benchmarks/retrieval.py            all cases, about two minutes; writes results/benchmarks/retrieval.csv
    python benchmarks/retrieval.py --quick    one small case, seconds; prints, writes nothing

product    `retrieval_per_query`: blocks sized for the device, a search in float32, what decides the list in float64
torch      the same without faiss, which searches for short lists on a CPU
float64    every pair in float64, in the blocks of a CPU's cache (2^21 distances)

All give the same bytes, which is checked first. They take turns in one process, and their seconds are medians; only
ratios within one run carry over to another machine. The gallery has the size of SOP's test set; some of its images are
the queries, which flatters float64, because the search prepares the gallery once. The device is that of training; one
thread on a CPU. The exit status is 1 if a ratio misses its limit.
"""

import contextlib
import statistics
import sys
from collections.abc import Iterator
from typing import NamedTuple

import harness
import torch
from torch import Tensor

from dmlrepro import retrieval
from experiments import timing
from experiments.training.device import device_for_training
from experiments.training.keys import device_name


class Case(NamedTuple):
    """Gaussian classes of five images; `spread` is their deviation within a class over that between classes."""

    gallery: int
    queries: int
    dim: int = 512
    spread: float = 3.0


CASES = {"sop": Case(60_502, 1500), "sop, D = 128": Case(60_502, 1500, dim=128)}
QUICK = {"quick": Case(33_000, 200, dim=64)}
REPEATS = 3
LIMITS = {("sop", "seconds", "torch"): 1.1, ("sop", "seconds", "float64"): 1.0}


def problem(case: Case, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(case.gallery) // 5
    centers = torch.randn(int(labels[-1]) + 1, case.dim, generator=generator)
    points = centers[labels] + case.spread * torch.randn(case.gallery, case.dim, generator=generator)
    return points.to(device), labels.to(device)


@contextlib.contextmanager
def with_constant(name: str, value: int) -> Iterator[None]:
    before = getattr(retrieval, name)
    setattr(retrieval, name, value)
    try:
        yield
    finally:
        setattr(retrieval, name, before)


def measure(name: str, case: Case, device: torch.device) -> list[dict]:
    """A row per form; AssertionError if their measures differ in a byte."""
    points, labels = problem(case, device)
    some = torch.arange(0, case.gallery, case.gallery // case.queries, device=device)[: case.queries]

    ids = {"query_ids": some, "gallery_ids": torch.arange(case.gallery, device=device)}
    arguments = {"gallery": points, "gallery_labels": labels} | ids

    def product():
        return retrieval.retrieval_per_query(points[some], labels[some], **arguments)

    def by_torch():
        with with_constant("FAISS_CANDIDATES", 0):
            return product()

    def float64():
        block = max(1, retrieval.CPU_BLOCK // case.gallery)
        with with_constant("SMALLEST_SEARCH", sys.maxsize):
            return retrieval.retrieval_per_query(points[some], labels[some], **arguments, block=block)

    expected = float64()
    for search, measures in (("product", product()), ("torch", by_torch())):
        if not all(torch.equal(measures[measure], expected[measure]) for measure in expected):
            raise AssertionError(f"{name}: the search in float32 of {search} gives other measures than float64")
    times = timing.in_turn({"product": product, "torch": by_torch, "float64": float64}, REPEATS, device.type)
    shape = {"case": name, "gallery": case.gallery, "queries": case.queries, "dim": case.dim, "device": device_name()}
    return [
        shape | {"form": form, "metric": "seconds", "value": statistics.median(seconds)}
        for form, seconds in times.items()
    ]


def main(cases: dict[str, Case]) -> list[dict]:
    device = device_for_training()
    with timing.threads(1):
        return [row for name, case in cases.items() for row in measure(name, case, device)]


def judge(rows: list[dict]) -> bool:
    """Print every ratio; whether all that have a limit keep it."""
    by_case: dict[str, dict[str, float]] = {}
    for row in rows:
        by_case.setdefault(row["case"], {})[row["form"]] = row["value"]
    return harness.ratios_within([(name, "seconds", values) for name, values in by_case.items()], LIMITS)


if __name__ == "__main__":
    quick = harness.options(__doc__).quick
    rows = main(QUICK if quick else CASES)
    harness.finish("retrieval", harness.with_ratios(rows), judge(rows), quick)
