"""Seconds that importing the library takes beyond torch, in fresh processes.

    python benchmarks/imports.py            ten processes, a minute; writes results/benchmarks/imports.csv
    python benchmarks/imports.py --quick    one process; prints, writes nothing

product    every loss of the five papers, vmf, samplers and metrics, after torch and numpy
torch      torch and numpy themselves

Medians over the processes, after one that leaves the bytecode. The exit status is 1 if the product takes more than a
tenth of a second, which a loaded or slow machine may need for other reasons: then its ratio to torch's time says more.
"""

import argparse
import importlib
import json
import os
import statistics
import sys
import time

LIMIT = 0.1  # seconds
MODULES = (
    *(
        f"losses.{name}"
        for name in (
            "potential_field",
            "nivmf",
            "mean_field",
            "chance_constrained",
            "piecewise_linear",
            "unlabelled",
        )
    ),
    "vmf",
    "samplers",
    "metrics",
)


def seconds_of(modules: tuple[str, ...]) -> float:
    started = time.perf_counter()
    for name in modules:
        importlib.import_module(name)
    return time.perf_counter() - started


def measure() -> dict[str, float]:
    """Of this process, which must have imported neither."""
    return {
        "torch": seconds_of(("torch", "numpy")),
        "product": seconds_of(tuple(f"dmlrepro.{name}" for name in MODULES)),
    }


def main(processes: int) -> list[dict]:
    import harness

    from experiments.training.keys import device_name

    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process compiles anew
    harness.apart(__file__)
    measured = [harness.apart(__file__) for _ in range(processes)]
    shape = {"modules": len(MODULES), "device": device_name()}
    return [
        shape | {"form": form, "metric": "seconds", "value": statistics.median(seconds[form] for seconds in measured)}
        for form in ("product", "torch")
    ]


def judge(rows: list[dict]) -> bool:
    """Print seconds and ratio; whether the limit is kept."""
    import harness

    values = {row["form"]: row["value"] for row in rows}
    harness.within("import: seconds over torch's", values["product"] / values["torch"])
    return harness.within("import: seconds beyond torch", values["product"], most=LIMIT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one process, nothing written")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure()))
        sys.exit()
    rows = main(1 if options.quick else 10)
    passed = judge(rows)
    if not options.quick:
        import harness

        from experiments.analysis.saving import output_folder

        harness.write_table(rows, output_folder("benchmarks") / "imports.csv")
    sys.exit(not passed)
