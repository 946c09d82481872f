"""Seconds and memory of retrieval measures where every image searches all others, beside the bare product of matrices.

    python benchmarks/metrics.py            all cases, about ten minutes; writes results/benchmarks/metrics.csv
    python benchmarks/metrics.py --quick    one small case, seconds; prints, writes nothing

product    `retrieval(embeddings, labels)`: R@K, P@1, RP and MAP@R
deep       `retrieval(embeddings, labels, measures=MEASURES)`, mAP@1000 as well: lists of 1,000
matmul     the N x N x D product in float32, block by block, and nothing done with it
PML        pytorch-metric-learning's AccuracyCalculator: precision at 1, R-precision, MAP@R; it has no R@K
PML deep   the same with k = 1000 and mean average precision, which is mAP@1000 where no class has more than 1,000

What product and PML, deep and PML deep both measure is compared first. The forms take turns in one process on one
thread, and their seconds are those of the processor, the least of all turns, so that what else runs on the machine
counts for little; memory is the rise of the peak of a process of its own, beside the embeddings. Only ratios within one
run carry over to another machine; the exit status is 1 if one misses its limit.

faiss, which PML searches with, and the product where lists are short, brings matrix products of its own, on some
processors faster than torch's. Below 1,024 images the product ranks in float64, and below 2,100 lists of 1,000.
"""

import logging
import time
from typing import NamedTuple

import harness
import torch
from torch import Tensor

from dmlrepro.retrieval import MEASURES, retrieval


class Case(NamedTuple):
    """Gaussian classes, within which images deviate three times as much as the classes do."""

    size: int
    dim: int
    repeats: int
    of_class: int = 5


CASES = {
    "tiny": Case(500, 8, 1),
    "quick": Case(5000, 64, 1),
    "2,500": Case(2500, 256, 5),
    "6,000": Case(6000, 256, 5),
    "12,000": Case(12_000, 256, 3),
    "12,000 in 12": Case(12_000, 256, 3, 1000),
    "sop": Case(60_502, 512, 1),
}
MEASURED = ("2,500", "6,000", "12,000", "12,000 in 12", "sop")
LIMITS = {
    **{(case, "seconds", "matmul"): 1.3 for case in ("2,500", "6,000", "12,000", "sop")},
    ("12,000 in 12", "seconds", "matmul"): 3.5,  # lists of 1,000 in which every twelfth is a hit
    **{(case, "seconds", "PML"): 1.0 for case in MEASURED},
    **{(f"{case}, deep", "seconds", "matmul"): 2.5 for case in ("12,000", "sop")},
    **{(f"{case}, deep", "seconds", "PML deep"): 1.0 for case in ("2,500", "6,000", "12,000", "12,000 in 12")},
}
MEGABYTES = 1000


def problem(case: Case) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(case.size) // case.of_class
    centers = torch.randn(int(labels[-1]) + 1, case.dim, generator=generator)
    return centers[labels] + 3 * torch.randn(case.size, case.dim, generator=generator), labels


Found = tuple[float, ...]


def product(points: Tensor, labels: Tensor) -> Found:
    return _values(retrieval(points, labels))


def deep(points: Tensor, labels: Tensor) -> Found:
    return _values(retrieval(points, labels, measures=MEASURES))


def _values(measures: dict[str, float]) -> Found:
    return tuple(measures[name] for name in ("P@1", "RP", "MAP@R", "mAP@1000") if name in measures)


def matmul(points: Tensor, labels: Tensor) -> Found:
    for block in points.split(1024):
        block @ points.T
    return ()


SHALLOW = ("precision_at_1", "r_precision", "mean_average_precision_at_r")


def calculator(points: Tensor, labels: Tensor) -> Found:
    return _of_pml(points, labels, SHALLOW, "max_bin_count")


def deep_calculator(points: Tensor, labels: Tensor) -> Found:
    return _of_pml(points, labels, (*SHALLOW, "mean_average_precision"), min(1000, len(points) - 1))


def _of_pml(points: Tensor, labels: Tensor, measures: tuple[str, ...], k: int | str) -> Found:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    by = AccuracyCalculator(include=measures, k=k, device=torch.device("cpu"))
    accuracy = by.get_accuracy(torch.nn.functional.normalize(points, dim=1), labels)
    return tuple(accuracy[name] for name in measures)


FORMS = {"product": product, "deep": deep, "matmul": matmul, "PML": calculator, "PML deep": deep_calculator}
DEEP, OURS = ("matmul", "PML deep"), {"PML deep": "deep"}
SLOW = {("sop", "PML deep")}  # minutes, of lists that nobody asks PML for


def one_thread() -> None:
    import faiss

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    logging.getLogger("PML").setLevel(logging.ERROR)  # it says which k it takes


def seconds(name: str) -> dict[str, float]:
    """Seconds of the processor for each form, which take turns; AssertionError if a measure differs from PML's."""
    one_thread()
    tiny = problem(CASES["tiny"])
    measures = {form: call(*tiny) for form, call in FORMS.items()}  # loads what any call needs, too
    for ours, theirs in (("product", "PML"), ("deep", "PML deep")):
        if max(abs(a - b) for a, b in zip(measures[ours], measures[theirs], strict=True)) > 1e-5:
            raise AssertionError(f"{ours} has {measures[ours]}, {theirs} {measures[theirs]}")
    data, times = problem(CASES[name]), {form: [] for form in FORMS if (name, form) not in SLOW}
    for _ in range(CASES[name].repeats):
        for form in times:
            started = time.process_time()
            FORMS[form](*data)
            times[form].append(time.process_time() - started)
    return {form: min(values) for form, values in times.items()}


def megabytes(name: str) -> float:
    """Rise of this process's peak memory while the product computes."""
    one_thread()
    product(*problem(CASES["tiny"]))
    data = problem(CASES[name])
    return harness.process_peak_bytes(lambda: product(*data), "cpu") / 1e6


def main(names) -> list[dict]:
    rows = []
    for name in names:
        case = CASES[name]
        shape = {"case": name, "images": case.size, "dim": case.dim, "of_class": case.of_class}
        for form, value in harness.apart(__file__, "seconds", name).items():
            rows.append(shape | {"form": form, "metric": "seconds", "value": value})
        value = harness.apart(__file__, "megabytes", name)
        rows.append(shape | {"form": "product", "metric": "megabytes", "value": value})
    return rows


def judge(rows: list[dict]) -> bool:
    """Print every ratio and the memory; whether all that have a limit keep it."""
    by_case: dict[str, dict[str, float]] = {}
    kept = []
    for row in rows:
        if row["metric"] == "seconds":
            by_case.setdefault(row["case"], {})[row["form"]] = row["value"]
        else:
            kept.append(harness.within(f"{row['case']}: megabytes", row["value"], most=MEGABYTES))
    measured = []
    for name, values in by_case.items():
        for case, form, others in ((name, "product", ("matmul", "PML")), (f"{name}, deep", "deep", DEEP)):
            beside = {other: values[other] for other in others if other in values}
            measured.append((case, "seconds", {"product": values[form]} | beside))
    kept.append(harness.ratios_within(measured, LIMITS))
    return all(kept)


if __name__ == "__main__":
    quick = harness.options(__doc__, {"seconds": seconds, "megabytes": megabytes}).quick
    rows = main(("quick",) if quick else MEASURED)
    harness.finish("metrics", harness.with_ratios(rows, OURS), judge(rows), quick)
