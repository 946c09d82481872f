"""What `small` trains with: steps, lengths of CCP's problems, PLM's delta, chosen on classes that no table is about.

    python benchmarks/regimes.py steps problems letters delta     writes results/benchmarks/regimes_<question>.csv

Every run validates on the first third of the training classes, as in the search of every method, and is scored on its
way: rates are constant, so that the beginning of a run is a shorter run. The data sets lie in the folder DMLREPRO_DATA.

steps     the tail of a network on birds, a loss of each kind at its own rate and at three times that. RECIPES has three
          quarters of the steps shown; the exit status is 1 if a loss, at its better rate, gains more than GAIN from all
problems  CCP on the same tail: each of its losses within the batch, as one problem, and with a new problem every so
          many steps
letters   the same of two losses on Omniglot, a small network from scratch
delta     PLM on birds, the tail and a head, by the distance that it asks of dissimilar points
"""

import argparse
import sys
from collections.abc import Callable, Iterator

import harness
import pandas as pd
import torch

from experiments import papers
from experiments.analysis.saving import output_folder
from experiments.ccp.ablations import AlternatingParams
from experiments.ccp.methods import LOSSES, ccp_spec
from experiments.methods import spec_of
from experiments.params import Params
from experiments.plm.ablations import PlmDeltaParams, ablation_delta
from experiments.training import loop, protocols, search
from experiments.training.device import reuse_freed_memory
from experiments.training.spec import RunSpec

KINDS = ("ProxyAnchor", "MultiSimilarity", "PFML", "MFCWMS")  # a loss of each kind
GAIN = 0.6  # points of MAP@R and of R@1
METRICS = ("val MAP@R", "val R@1")
LOOKS = 8  # at a run on its way

Runs = Iterator[tuple[str, str, RunSpec]]  # method, what is varied, run


def steps() -> Runs:
    params = Params.from_values({"profile": "small"})
    for name in KINDS:
        method = papers.methods()[name]
        spec = spec_of(method, params)
        for factor in (1.0, 3.0):
            varied = search.applied(spec, {"lr": spec.lr * factor}, method.rates)
            yield name, f"lr={varied.lr:g}", varied.replace(steps=4 * (spec.steps or 0) // 3)


def problems(dataset: str = "cub-subset", losses=tuple(LOSSES), lengths=(100, 50, 25)) -> Runs:
    params = AlternatingParams.from_values({"profile": "small", "dataset": dataset})
    for loss in losses:
        yield loss, "in the batch", ccp_spec(loss, params)
        yield loss, "one problem", ccp_spec(f"{loss}-Proxy", params)
        for length in lengths:
            alternating = {"problem_steps": length, "problem_patience": None}
            yield loss, f"problem_steps={length}", ccp_spec(f"{loss}-CCP-L", params, scheme=alternating)


def letters() -> Runs:
    yield from problems("omniglot", ("C1", "C2"), (100, 25))


def delta() -> Runs:
    for values in ({}, {"train_from": "head", "steps": 1500}):
        params = PlmDeltaParams.from_values({"profile": "small", "deltas": [0.5, 1.0, 1.5, 2.0]} | values)
        for spec in ablation_delta(params):
            if spec.loss and spec.seed == 0:
                yield spec.method, f"train_from={spec.train_from};{spec.setting}", spec


QUESTIONS: dict[str, Callable[[], Runs]] = {
    question.__name__: question for question in (steps, problems, letters, delta)
}


def curve(method: str, varied: str, spec: RunSpec) -> list[dict]:
    """Validation scores of a run on its way, in percent; training that diverges has none."""
    looks = {"eval_every": (spec.steps or LOOKS) // LOOKS, "eval_every_epochs": None, "monitor": "MAP@R"}
    judged = {"fold": 0, "folds": search.FOLDS, "seed": protocols.TUNING_SEED, "threads": 1}
    ends = {"keep_history": True, "patience": None, "restore_best": False}
    try:
        rows = loop.train(spec.replace(**looks | judged | ends)).rows
    except FloatingPointError as error:
        print(f"{method}, {varied}: {error}", file=sys.stderr)
        return []
    about = {"method": method, "varied": varied, "dataset": spec.dataset, "train_from": spec.train_from or ""}
    kept = [row for row in rows if row["selection"] == "every" and "network" not in row]
    by_step: dict[int, dict] = {}
    for row in kept:
        if row["metric"] in METRICS:
            by_step.setdefault(row["step"], about | {"step": row["step"]})[row["metric"]] = 100 * row["value"]
    print(f"{method}, {varied}: {by_step[max(by_step)]}", flush=True)
    return list(by_step.values())


def enough(rows: list[dict]) -> bool:
    """Whether three quarters of the steps are enough for every loss at its better rate."""
    best = pd.DataFrame(rows).groupby(["method", "step"])[list(METRICS)].max().unstack()
    kept = True
    for metric in METRICS:
        for name, scores in best[metric].iterrows():
            gain = scores[scores.index[-1]] - scores[3 * scores.index[-1] // 4]
            kept &= harness.within(f"{metric}, {name}, a third more steps", gain, most=GAIN)
    return kept


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("questions", nargs="+", choices=QUESTIONS)
    torch.set_num_threads(1)
    reuse_freed_memory()
    kept = True
    for question in parser.parse_args().questions:
        rows = [row for run in QUESTIONS[question]() for row in curve(*run)]
        harness.write_table(rows, output_folder("benchmarks") / f"regimes_{question}.csv")
        kept &= question != "steps" or enough(rows)
    sys.exit(not kept)
