"""What a profile would cost before anything is run: every run of the notebooks, its hours and its memory.

With `stopwatch.measured` each kind of run is set up on its own images, where they are here, and its parts are timed: a
step, what precedes an epoch, an evaluation of each sort; hours are their sum, and activations that runs share are
counted once. Else hours are those of one device: images over throughput, the loss of each step, and the ranking of each
evaluation, whose images cost a third of training's. Several GPUs share the images of a run, and what they say to each
other is not counted.
"""

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.datasets.manifests import is_own
from experiments.params import Params
from experiments.report import catalogue, searches, throughput, work
from experiments.report.stopwatch import Parts
from experiments.report.throughput import PRODUCTS, Throughput
from experiments.training import records, runs, search
from experiments.training.spec import RunSpec


def plan(
    specs_by_notebook: dict[str, list[RunSpec]],
    trials: Mapping[str, int] | None = None,
    *,
    gpus: int = 1,
    speed: Callable[[RunSpec], Throughput | Parts] = throughput.stated,
) -> pd.DataFrame:
    """One row per run in the order of the notebooks.

    Columns: notebook, dataset, backbone, dim, protocol, method, setting, seed, fold, epochs, hours (of one device),
    device, throughput (its source), memory in GB of each of the `gpus` that share a run, and trials of a search before
    the run, by notebook. A run that an earlier row has already costs nothing: `hours` is 0 and `throughput` is
    "shared". speed: or `stopwatch.measured`.
    """
    if gpus < 1:
        raise ValueError(f"gpus must be at least 1, got {gpus}")
    work.own_counts.cache_clear()
    seen, paid, rows = set(), set(), []

    def speed_of(spec: RunSpec) -> Throughput | Parts:
        pace = speed(spec)
        if not isinstance(pace, Parts) or pace not in paid:
            paid.add(pace)
            return pace
        return dataclasses.replace(pace, once=0.0)

    for notebook, specs in specs_by_notebook.items():
        for spec in specs:
            identity = json.dumps(spec.as_dict(), sort_keys=True)
            row = {"notebook": notebook} | _row(spec, speed_of, gpus, shared=identity in seen)
            rows.append(row | {"trials": (trials or {}).get(notebook, 0) if spec.loss is not None else 0})
            seen.add(identity)
    return pd.DataFrame(rows)


def grouped(table: pd.DataFrame) -> pd.DataFrame:
    """The same with the seeds and folds of a method in one row: `runs` of them, hours summed."""
    same = ["notebook", "dataset", "backbone", "dim", "protocol", "method", "setting"]
    return (
        table.assign(shared=table["throughput"] == "shared")
        .groupby(same, sort=False, dropna=False)
        .agg(
            runs=("seed", "size"),
            epochs=("epochs", "max"),
            hours=("hours", "sum"),
            device=("device", "first"),
            throughput=("throughput", "first"),
            gigabytes=("gigabytes", "max"),
        )
        .reset_index()
    )


def by_notebook(table: pd.DataFrame) -> pd.DataFrame:
    """Hours of each notebook on each data set, by kind of device; a run that several read counts for the first."""
    return table.groupby(["notebook", "dataset", "device"], sort=False, as_index=False)["hours"].sum()


def totals(table: pd.DataFrame, gpus: int = 1) -> list[str]:
    """Lines under the table: hours per kind of device, how long so many GPUs take, and what a search would add."""
    distinct = table[table["throughput"] != "shared"]
    names = {"gpu": "GPU hours", "cpu": "CPU core hours"}
    lines = [f"{len(table)} runs, {len(distinct)} of them distinct"]
    lines += [f"total {group['hours'].sum():.3g} {names[kind]}" for kind, group in distinct.groupby("device")]
    if gpus > 1 and (alone := distinct.loc[distinct["device"] == "gpu", "hours"].sum()):
        lines.append(f"on {gpus} GPUs at least {alone / gpus:.3g} hours")
    tuned = distinct[(distinct["trials"] > 0) & (distinct["seed"] == 0)]
    if not tuned.empty:
        hours = (tuned["trials"] * tuned["hours"]).sum()
        number = ", ".join(map(str, sorted(set(tuned["trials"]))))
        lines.append(f"tuning these methods first ({number} trials each) takes another {hours:.3g} hours")
    return lines


def recorded(notebook: str, params: Params) -> str:
    """How many runs of a notebook are on record already, in words; "" where there is no record, or nothing that could
    be compared with it because the images or the weights are not here."""
    file = records.file_of(params.profile, notebook)
    specs = catalogue.find(notebook).specs_untrained(params)
    if file is None or not records.files(file.parent) or work.problems(specs):
        return ""
    return f"{notebook}: {sum(runs.on_record(specs, file))} of {len(specs)} runs are on record"


def searching(
    names: Iterable[str],
    params_of: Callable[[type[Params]], Params],
    speed: Callable[[RunSpec], Throughput | Parts] = throughput.stated,
) -> str:
    """The searches that these notebooks would take and that are not there yet, and their core-hours, in words; "" where
    there are none."""
    wanted: dict[Path, searches.Wanted] = {}
    for study in map(catalogue.find, names):
        if _takes_searches(params_of(study.params)):
            with contextlib.suppress(
                ValueError
            ):  # one that varies a condition of searches, as the batch size, has none
                wanted |= {tuning.path: tuning for tuning in searches.wanted([study], params_of)}
    missing = [tuning for tuning in wanted.values() if not tuning.path.exists()]
    if not missing:
        return ""
    table = plan({"": [tuning.spec.replace(fold=0) for tuning in missing]}, speed=speed)
    of_each = ", ".join(tuning.about["method"] for tuning in missing)
    hours = search.RUNS * table["hours"].sum()
    return f"{len(missing)} searches of {search.RUNS} runs each are not there yet, {hours:.3g} hours: {of_each}"


def _takes_searches(params: Params) -> bool:
    return params.profile == searches.PROFILE and not is_own(params.dataset)


def _row(spec: RunSpec, speed_of: Callable[[RunSpec], Throughput | Parts], gpus: int, *, shared: bool) -> dict:
    speed = throughput.of_backbone(spec.backbone) if shared else speed_of(spec)
    run = work.of(spec)
    return {
        "dataset": spec.dataset,
        "backbone": spec.backbone,
        "dim": spec.embedding_size or 0,
        "protocol": spec.protocol,
        "method": spec.method,
        "setting": spec.setting,
        "seed": spec.seed,
        "fold": -1 if spec.fold is None else spec.fold,
        "epochs": round(run.epochs, 1),
        "hours": 0.0 if shared else _hours(spec, run, speed),
        "device": speed.device,
        "throughput": "shared" if shared else speed.source,
        "gigabytes": round(work.gigabytes(spec, gpus if speed.device == "gpu" else 1), 2),
    }


def _hours(spec: RunSpec, run: work.Work, speed: Throughput | Parts) -> float:
    if isinstance(speed, Parts):
        steps = speed.epoch * math.ceil(run.epochs) + speed.step * run.steps
        return (speed.start + speed.once + steps + speed.look * run.looks + speed.final * run.finals) / 3600
    features = work.network(spec.backbone, spec.image_size or speed.size)[0]
    pixels = (spec.image_size or speed.size) ** 2 / speed.size**2
    evaluate = speed.evaluated or 3 * speed.images
    loss = speed.loss
    if loss is None:
        loss = 6 * spec.batch_size * work.loss_parameters(spec) / PRODUCTS[speed.device]
    ranking = 2 * run.compared * (spec.embedding_size or features) / PRODUCTS[speed.device]
    images = pixels * (run.trained / speed.images + run.evaluated / evaluate)
    return (images + run.steps * loss + ranking) / 3600


def table_of(
    notebooks: Iterable[str], params_of: Callable[[type[Params]], Params], **how: Any
) -> tuple[pd.DataFrame, list[str]]:
    """The plan of notebooks by name and its `work.problems`; `params_of(params_class)` gives the parameters each is run
    with, `how` goes to `plan`."""
    specs, trials = {}, {}
    for name in notebooks:
        study = catalogue.find(name)
        params = params_of(study.params)
        if params.search_trials:  # what it finds has the cost of the default values
            trials[params.notebook] = params.search_trials
        specs[params.notebook] = study.specs_untrained(params)
    return plan(specs, trials, **how), work.problems(spec for runs in specs.values() for spec in runs)
