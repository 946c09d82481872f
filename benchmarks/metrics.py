"""Seconds and memory of R@8 with MAP@R where every image searches all others, beside the bare product of matrices.

    python benchmarks/metrics.py            all cases, about ten minutes; writes results/benchmarks/metrics.csv
    python benchmarks/metrics.py --quick    one small case, seconds; prints, writes nothing

product    `retrieval(embeddings, labels, ks=(8,), measures=("MAP@R",))`
matmul     the N x N x D product in float32, block by block, and nothing done with it
PML        pytorch-metric-learning's AccuracyCalculator, which has no R@8: P@1 with MAP@R
faiss      a flat index of unit vectors searched for the nine nearest, the image itself among them: no measure at all

MAP@R of the product and of PML is compared first. The forms take turns in one process, and their seconds are medians;
memory is the rise of the peak of a process of its own, beside the embeddings. Only ratios within one run carry over to
another machine; the exit status is 1 if one misses its limit. One thread of a CPU.
"""

import argparse
import json
import logging
import statistics
import sys
from typing import NamedTuple

import torch
from torch import Tensor

from dmlrepro.evidence.results import output_folder
from dmlrepro.papers import timing
from dmlrepro.retrieval import retrieval


class Case(NamedTuple):
    """Gaussian classes of five images, within which they deviate three times as much as the classes do."""

    size: int
    dim: int
    repeats: int


CASES = {
    "tiny": Case(500, 8, 1),
    "quick": Case(5000, 64, 1),
    "20,000": Case(20_000, 512, 3),
    "sop": Case(60_502, 512, 1),
}
MEASURED = ("20,000", "sop")
LIMITS = {(case, "seconds", "matmul"): 1.5 for case in MEASURED}
MEGABYTES = 1000


def problem(case: Case) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(case.size) // 5
    centers = torch.randn(int(labels[-1]) + 1, case.dim, generator=generator)
    return centers[labels] + 3 * torch.randn(case.size, case.dim, generator=generator), labels


def product(points: Tensor, labels: Tensor) -> float:
    """MAP@R."""
    return retrieval(points, labels, ks=(8,), measures=("MAP@R",))["MAP@R"]


def matmul(points: Tensor, labels: Tensor) -> None:
    for block in points.split(1024):
        block @ points.T


def calculator(points: Tensor, labels: Tensor) -> float:
    """MAP@R of PML."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    measures = ("precision_at_1", "mean_average_precision_at_r")
    unit = torch.nn.functional.normalize(points, dim=1)
    by = AccuracyCalculator(include=measures, k="max_bin_count", device=torch.device("cpu"))
    return by.get_accuracy(unit, labels)["mean_average_precision_at_r"]


def flat_index(points: Tensor, labels: Tensor) -> None:
    import faiss

    unit = torch.nn.functional.normalize(points, dim=1).numpy()
    index = faiss.IndexFlatIP(unit.shape[1])
    index.add(unit)
    index.search(unit, 9)


FORMS = {"product": product, "matmul": matmul, "PML": calculator, "faiss": flat_index}


def one_thread() -> None:
    import faiss

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    logging.getLogger("PML").setLevel(logging.ERROR)  # it says which k it takes


def seconds(name: str) -> dict[str, float]:
    """Median seconds of the forms, which take turns; AssertionError if MAP@R differs from PML's."""
    one_thread()
    tiny = problem(CASES["tiny"])
    found = {form: call(*tiny) for form, call in FORMS.items()}  # loads what any call needs, too
    if abs(found["product"] - found["PML"]) > 1e-5:
        raise AssertionError(f"MAP@R is {found['product']}, PML's is {found['PML']}")
    data, times = problem(CASES[name]), {form: [] for form in FORMS}
    for _ in range(CASES[name].repeats):
        for form, call in FORMS.items():
            times[form].append(timing.seconds(lambda call=call: call(*data), "cpu"))
    return {form: statistics.median(values) for form, values in times.items()}


def megabytes(name: str) -> float:
    """Rise of this process's peak memory while the product computes."""
    one_thread()
    product(*problem(CASES["tiny"]))
    data = problem(CASES[name])
    return timing.process_peak_bytes(lambda: product(*data), "cpu") / 1e6


def main(names) -> list[dict]:
    rows = []
    for name in names:
        shape = {"case": name, "size": CASES[name].size, "dim": CASES[name].dim}
        for form, value in timing.apart(__file__, "seconds", name).items():
            rows.append(shape | {"form": form, "metric": "seconds", "value": value})
        value = timing.apart(__file__, "megabytes", name)
        rows.append(shape | {"form": "product", "metric": "megabytes", "value": value})
    return rows


def judge(rows: list[dict]) -> bool:
    """Print every ratio and the memory; whether all that have a limit keep it."""
    by_case: dict[str, dict] = {}
    kept = []
    for row in rows:
        if row["metric"] == "seconds":
            by_case.setdefault(row["case"], {})[row["form"]] = row["value"]
        else:
            kept.append(timing.within(f"{row['case']}: megabytes", row["value"], most=MEGABYTES))
    kept.append(timing.ratios_within([(name, "seconds", values) for name, values in by_case.items()], LIMITS))
    return all(kept)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one small case, nothing written")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # one measurement, arguments and result as JSON
    options = parser.parse_args()
    if options.measure:
        kind, *arguments = json.loads(options.measure)
        print(json.dumps({"seconds": seconds, "megabytes": megabytes}[kind](*arguments)))
        sys.exit()
    rows = main(("quick",) if options.quick else MEASURED)
    passed = judge(rows)
    if not options.quick:
        timing.write_table(rows, output_folder("benchmarks") / "metrics.csv")
    sys.exit(not passed)
