"""How many steps the tail of a network needs: validation scores on the way, on classes that no table is about.

    python benchmarks/budget.py          birds, in the folder DMLREPRO_DATA; writes results/benchmarks/budget.csv

A loss of each kind at the profile small, with its settings as published and three times its learning rates, on the
first third of the training classes, as in the search of every method. The learning rate is constant, so that the
beginning of a run is a shorter run. From this table RECIPES has the steps of `small`; the exit status is 1 if one of
the losses, at the better of its two rates, gains more than GAIN from twice as many.
"""

import sys

import pandas as pd
import torch

from dmlrepro.evidence.results import output_folder
from dmlrepro.papers import rooms, timing
from dmlrepro.papers.methods import spec_of
from dmlrepro.papers.params import Params
from dmlrepro.training import loop, search

LOSSES = ("ProxyAnchor", "MultiSimilarity", "PFML", "MFCWMS")
FACTORS = (1.0, 3.0)  # of the learning rates
GAIN = 0.6  # points of MAP@R
METRIC = "MAP@R"


def curve(name: str, factor: float, params: Params) -> list[dict]:
    """Validation scores of a method every quarter of the steps of `params`, and as long again, in percent."""
    method, steps = rooms.methods()[name], params.steps or 0
    spec = search.on_thirds(spec_of(method, params))[0]
    spec = search.applied(spec, {"lr": spec.lr * factor}, method.rates)
    spec = spec.replace(steps=2 * steps, eval_every=steps // 4, keep_history=True)
    kept = [row for row in loop.train(spec).rows if row["selection"] == "every" and row["metric"] == f"val {METRIC}"]
    about = {"method": name, "dataset": spec.dataset, "train_from": spec.train_from, "lr": spec.lr}
    return [about | {"step": row["step"], f"val {METRIC}": 100 * row["value"]} for row in kept]


def main() -> bool:
    """Write the table; returns whether the steps of the recipe are enough."""
    torch.set_num_threads(1)
    params = Params.from_values({"profile": "small", "threads": 1})
    steps = params.steps or 0
    rows = [row for name in LOSSES for factor in FACTORS for row in curve(name, factor, params)]
    timing.write_table(rows, output_folder("benchmarks") / "budget.csv")
    best = pd.DataFrame(rows).groupby(["method", "step"])[f"val {METRIC}"].max().unstack()
    gain = best[2 * steps] - best[steps]
    return all(timing.within(f"{METRIC}, {name}, twice the steps", each, most=GAIN) for name, each in gain.items())


if __name__ == "__main__":
    sys.exit(not main())
