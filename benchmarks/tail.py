"""The tail of a network on cached activations against the whole network and against a head: seconds and retrieval.

    python benchmarks/tail.py            birds, in the folder DMLREPRO_DATA; writes results/benchmarks/tail.csv
    python benchmarks/tail.py --quick    glyphs, seconds; prints, writes nothing

ProxyAnchor at the profile small, everything in float32 on one thread. Each form is trained for equally many steps, and
scored on the test classes, means over seeds. Steps of all forms alternate in one process, whole steps of the loop with
their batches; `ratio` is the median over rounds, which a busy machine slows alike. Seconds are of CPU time.
What the tail is ahead by is paid once for all runs on a data set: `once_seconds`, the activations of all images. The
exit status is 1 if a limit is missed.
"""

import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from unittest import mock

import harness
import torch

from experiments import timing
from experiments.methods import BASELINES, spec_of
from experiments.params import Params
from experiments.study import Study
from experiments.training import batches, loop
from experiments.training.device import device_for_training, reuse_freed_memory
from experiments.training.keys import device_name
from experiments.training.spec import RunSpec

PLAIN = Study("tail", Params)
FASTER = 3.0  # so many times, at least, a step of the tail is faster than one of the whole network
BEHIND = 1.5  # points that the tail may be behind it
AHEAD = 4.0  # points of MAP@R, at least, that the tail is ahead of a head
METRICS = ("R@1", "MAP@R")
SEEDS, ROUNDS = 2, 15


def forms_of(profile: str, **values) -> dict[str, RunSpec]:
    """The three runs that are compared. A head has the rates that were right for it: ten times those of a network."""
    changes = {"tail": {}, "whole": {"train_from": ""}, "head": {"train_from": "head", "lr": 1e-3}}
    params = {
        form: PLAIN.configured({"profile": profile, "threads": 1} | values | change) for form, change in changes.items()
    }
    return {form: spec_of(BASELINES["ProxyAnchor"], parameters) for form, parameters in params.items()}


def stepper(spec: RunSpec, rounds: int) -> Callable[[], None]:
    """A call that takes one step of the loop."""
    device = device_for_training()
    spec = spec.replace(steps=rounds)
    task, network = loop.prepare(spec, device)
    state = loop.begin(task, network.train())
    stream = task.train_batches(0, rounds, device)

    def step() -> None:
        loop.train_step(state, *next(stream))

    return step


def once_seconds(spec: RunSpec) -> float:
    """Seconds of the activations of a data set, whose images are decoded already, computed anew."""
    device = device_for_training()
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, DMLREPRO_CACHE=folder):
        batches.test_images(spec, batches.load_dataset(spec), [0])  # decodes them
        return timing.seconds(lambda: loop.prepare(spec, device), device.type)


def scores(spec: RunSpec, seeds: int) -> dict[str, float]:
    """Means over seeds of what the last step has, in percent."""
    by_metric: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for seed in range(seeds):
        rows = loop.train(spec.replace(seed=seed)).rows
        for metric, values in by_metric.items():
            values += [100 * row["value"] for row in rows if (row["selection"], row["metric"]) == ("last", metric)]
    return {metric: statistics.mean(values) for metric, values in by_metric.items()}


def main(specs: Mapping[str, RunSpec], seeds: int, rounds: int) -> tuple[list[dict], bool]:
    """Rows of the table, and whether every limit is kept."""
    torch.set_num_threads(1)
    reuse_freed_memory()
    device = device_for_training().type
    taken = timing.in_turn({name: stepper(spec, rounds + 1) for name, spec in specs.items()}, rounds, device)
    ratio = {name: statistics.median(a / b for a, b in zip(taken[name], taken["tail"])) for name in specs}
    means = {name: scores(spec, seeds) for name, spec in specs.items()}
    rows = [
        {
            "case": spec.dataset,
            "form": name,
            "backbone": spec.backbone,
            "train_from": spec.train_from or "",
            "cached_views": spec.cached_views or "",
            "device": device_name(),
            "precision": spec.precision,
            "steps": spec.steps,
            "seeds": seeds,
            "metric": "seconds",
            "value": statistics.median(taken[name]),
            "ratio": ratio[name] if name != "tail" else None,
            "once_seconds": once_seconds(spec) if spec.train_from else 0.0,
        }
        | means[name]
        for name, spec in specs.items()
    ]
    behind = {metric: means["whole"][metric] - means["tail"][metric] for metric in METRICS}
    kept = [harness.within("seconds of a step, whole network over tail", ratio["whole"], least=FASTER)]
    kept += [harness.within(f"{metric}, whole network less tail", gap, most=BEHIND) for metric, gap in behind.items()]
    kept.append(harness.within("MAP@R, tail less head", means["tail"]["MAP@R"] - means["head"]["MAP@R"], least=AHEAD))
    return rows, all(kept)


if __name__ == "__main__":
    quick = harness.options(__doc__).quick
    quick_forms = forms_of("quick", train_from="block3", steps=20)
    given = (quick_forms, 1, 3) if quick else (forms_of("small", dataset="cub-subset"), SEEDS, ROUNDS)
    rows, passed = main(*given)
    harness.finish("tail", rows, passed or quick, quick)
