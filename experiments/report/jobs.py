"""Training runs as jobs of their own, with what each needs: for clusters and for machines with GPUs.

The workflow's local default is one pool of processes, which imports torch once per core (`runs.run_all`).
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments.files import read_json, repository_root
from experiments.report import catalogue, plan
from experiments.study import Execution
from experiments.training import keys, runs
from experiments.training.spec import RunSpec

START = 5  # minutes until a job has imported torch and read its images
SLOWER = 3  # a job gets so many times the hours of `plan`, which are those of one A100 or one fast core
WITHOUT_GPU = 30  # and so many times as many where `plan` counts on a GPU and none is used
NOTEBOOK = 60  # minutes of a notebook whose runs are in the cache
HOST_MEGABYTES = 4000  # of a process with torch, its images and its results


def executions(path: Path) -> dict:
    """What the names of a workflow's executions stand for; ValueError for a file that does not say it."""
    remedy = "give the executions.json of a build, as in build/quick after `make results`, which makes it anew"
    grid = read_json(path, remedy)
    if not isinstance(grid, dict) or not {"profile", "executions"} <= set(grid):
        raise ValueError(f"{path} holds no profile and executions; {remedy}")
    return grid


def of_grid(path: Path, names: Sequence[str]) -> Iterator[Execution]:
    """Studies with the parameters of executions of the workflow; names: of executions, none: all."""
    grid = executions(path)
    if unknown := [name for name in names if name not in grid["executions"]]:
        raise ValueError(f"{path} has no {', '.join(unknown)}; it has {', '.join(grid['executions'])}")
    for name in names or grid["executions"]:
        execution = grid["executions"][name]
        study = catalogue.find(execution["notebook"])
        yield Execution(study, study.params.from_values({"profile": grid["profile"]} | execution["parameters"]))


def expand(grid: Mapping[str, Mapping], profile: str, *, cores: int, gpus: int) -> tuple[dict, dict]:
    """({id of a run: its spec as plain data}, index), each distinct run of a grid once.

    Args:
        grid: {name: {"notebook": ..., "parameters": {...}}}, as workflow/grid.py makes them.
        cores: threads of a run that does not say how many. gpus: how many share a run; 0: none is used.

    Returns:
        the index has "runs": {id: {"described", "threads", "mem_mb", "minutes", "gpus", "code": its files, relative to
        the repository}} and "executions": {name: {"runs": ids, "minutes", "mem_mb", "threads", "gpus"}}. The runs of a
        search are not among them, because each trial depends on those before: they are trained, with the time for it,
        by the notebook itself.

    Raises:
        ValueError: parameters that a notebook refuses; names the execution.
    """
    specs: dict[str, RunSpec] = {}
    ids: dict[str, list[str]] = {}
    trials: dict[str, int] = {}
    for name, execution in grid.items():
        study = catalogue.find(execution["notebook"])
        try:
            params = study.params.from_values({"profile": profile} | execution["parameters"])
            planned = {_id(spec): spec for spec in study.specs_untrained(params)}
        except (ValueError, TypeError) as error:
            raise type(error)(f"execution {name}: {error}") from error
        specs |= {key: spec for key, spec in planned.items() if key not in specs}
        ids[name], trials[name] = list(planned), params.search_trials
    needs = {}
    for key, row in zip(specs, plan.plan({"": list(specs.values())}, gpus=max(gpus, 1)).to_dict("records")):
        spec = specs[key]
        hours = row["hours"] * (WITHOUT_GPU if row["device"] == "gpu" and not gpus else 1)
        on_host = 0 if gpus else row["gigabytes"]  # else what `plan` counts lies on the GPU
        needs[key] = {
            "described": runs.named(spec),
            "threads": spec.threads or cores,
            "mem_mb": HOST_MEGABYTES + math.ceil(1000 * on_host),
            "minutes": START + math.ceil(60 * SLOWER * hours),
            "gpus": gpus,
            "code": [os.path.relpath(path, repository_root()) for path in keys.code_of(spec.loss, spec.scheme)],
        }
    rooms = {
        name: {
            "runs": own,
            "minutes": NOTEBOOK + trials[name] * sum(needs[key]["minutes"] for key in own),
            "mem_mb": max([HOST_MEGABYTES, *(needs[key]["mem_mb"] for key in own)]),
            "threads": max([1, *(needs[key]["threads"] for key in own)]),  # a run belongs to the number of its threads
            "gpus": gpus if own else 0,
        }
        for name, own in ids.items()
    }
    return {key: spec.as_dict() for key, spec in specs.items()}, {"runs": needs, "executions": rooms}


def _id(spec: RunSpec) -> str:
    """A name for what a spec trains, whatever machine, code and images it meets."""
    return hashlib.sha256(json.dumps(spec.as_dict(), sort_keys=True).encode()).hexdigest()[:16]


def train(path: Path) -> runs.RunResult:
    """Train the run whose spec a JSON file holds, or find it in the cache.

    Raises ValueError when the file is not one that `expand` gave.
    """
    try:
        spec = RunSpec(**json.loads(path.read_text(encoding="utf8")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is not the spec of a run: {error}") from error
    return runs.run(spec)
