"""What `plan --measure` says a run takes against what it takes, in seconds of CPU time on one thread.

    python benchmarks/planning.py        birds, in the folder DMLREPRO_DATA; writes results/benchmarks/planning.csv

Of each notebook the two kinds of run with the most steps in all, one run of each: first its parts are timed, then it is
trained. Activations below a tail are there by then, and not counted. The exit status is 1 if the sums
of a notebook are further apart than the limit.
"""

import sys
from collections.abc import Iterator

import harness
import pandas as pd

from experiments import timing
from experiments.analysis.saving import output_folder
from experiments.report import catalogue, plan, stopwatch
from experiments.training import loop
from experiments.training.device import reuse_freed_memory
from experiments.training.spec import RunSpec

NOTEBOOKS = ("10", "22", "31", "41", "50")
KINDS = 2  # of run, of each notebook
APART = 1.5  # times


def kinds_of(notebook: str) -> list[RunSpec]:
    """A run of each kind of a notebook's that trains, the kind with the most steps in all its runs first."""
    study = catalogue.find(notebook)
    specs = study.specs_untrained(study.params.from_values({"profile": "small", "dataset": "cub-subset", "threads": 1}))
    steps: dict[str, int] = {}
    first: dict[str, RunSpec] = {}
    for spec in filter(lambda spec: spec.loss, specs):
        kind = stopwatch.kind_of(spec)
        steps[kind] = steps.get(kind, 0) + (spec.steps or 0)
        first.setdefault(kind, spec)
    return [first[kind] for kind in sorted(steps, key=lambda kind: -steps[kind])]


def measured(notebook: str) -> Iterator[dict]:
    for spec in kinds_of(notebook)[:KINDS]:
        # of two runs the first pays for activations that they share
        planned = plan.plan({notebook: [spec, spec.replace(seed=spec.seed + 1)]}, speed=stopwatch.measured)
        seconds = timing.seconds(lambda spec=spec: loop.train(spec), device="cpu")
        yield {
            "notebook": notebook,
            "method": spec.method,
            "setting": spec.setting,
            "train_from": spec.train_from or "",
            "steps": spec.steps,
            "planned_seconds": 3600 * float(planned["hours"].iloc[1]),
            "seconds": seconds,
        }


def within_limit(rows: list[dict]) -> bool:
    sums = pd.DataFrame(rows).groupby("notebook")[["planned_seconds", "seconds"]].sum()
    ratios = (sums["planned_seconds"] / sums["seconds"]).items()
    kept = [
        harness.within(f"{name}, planned over measured", ratio, most=APART, least=1 / APART) for name, ratio in ratios
    ]
    return all(kept)


if __name__ == "__main__":
    reuse_freed_memory()
    with timing.threads(1):
        rows = []
        for notebook in NOTEBOOKS:
            for row in measured(notebook):
                rows.append(row)
                print(row, flush=True)
    harness.write_table(rows, output_folder("benchmarks") / "planning.csv")
    sys.exit(not within_limit(rows))
