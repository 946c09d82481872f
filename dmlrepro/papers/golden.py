"""Golden numbers for the regression check of a notebook, with tolerances that were measured, not chosen.

A golden value is the mean over seeds of a metric of one (method, setting). Its tolerance comes from replicas: the
same runs with initial weights perturbed by one part in ten thousand, which is what another machine's rounding does to
a training run, only larger. The tolerance never exceeds half the distance to a broken variant, the network as it is
before training.
"""

import math

import pandas as pd

from dmlrepro.evidence import results
from dmlrepro.papers import catalogue
from dmlrepro.training import runs

REPLICA_NOISE = 1e-4
DEVIATIONS = 4.0  # standard deviations of a mean over seeds
FLOOR = 0.3  # points: a test set of 150 classes x 24 images moves by 0.03 per query that flips


def accept(name: str) -> None:
    """Make `tests/golden/<notebook>.csv` from results/quick and print what moved."""
    notebook = catalogue.find(name)
    params = notebook.params.from_values({"profile": "quick"})
    table = results.read(results.output_folder("quick") / f"{params.notebook}.csv")
    new = results.golden_means(table)
    new["tolerance"] = _tolerances(new, table, notebook.specs(params), params)
    path = results.golden_path(params)
    if path.exists():
        old = pd.read_csv(path, dtype=dict.fromkeys(results.GOLDEN_IDENTITY, str), keep_default_na=False)
        joined = old.merge(new, on=results.GOLDEN_IDENTITY, how="outer", suffixes=("_old", "_new"))
        moved = joined[~((joined["value_old"] - joined["value_new"]).abs() < 1e-6)]
        print(f"{params.notebook}: {len(moved)} of {len(joined)} golden values moved")
        if len(moved):
            print(moved.to_string(index=False))
    else:
        print(f"{params.notebook}: {len(new)} golden values, the first ones")
    results.write_text(path, new.to_csv(index=False, float_format="%.6f", lineterminator="\n"))


def _tolerances(golden: pd.DataFrame, table: pd.DataFrame, specs: list, params) -> list[float]:
    trained = [spec for spec in specs if spec.loss is not None and spec.seed == 0]  # one seed shows the spread
    if not trained:  # a numerical study: deterministic up to rounding
        return [1e-3 * abs(value) + 1e-6 for value in golden["value"]]
    replicas = runs.run_all([spec.replace(initial_noise=REPLICA_NOISE) for spec in trained])
    noisy = results.tidy(replicas, params)
    identity = ["protocol", "method", "setting", "seed", "selection", "metric"]
    pairs = table.merge(noisy, on=identity, suffixes=("", "_replica"))
    squares = (pairs["value"] - pairs["value_replica"]) ** 2
    spread = squares.groupby(pairs["metric"]).mean().map(math.sqrt)
    seeds = table["seed"].nunique()
    untrained = golden[golden["method"] == "untrained"].set_index("metric")["value"]
    tolerances = []
    for row in golden.itertuples():
        if row.method == "untrained":
            tolerances.append(FLOOR)
            continue
        measured = DEVIATIONS * spread.get(row.metric, 0.0) / math.sqrt(seeds)
        broken = abs(row.value - untrained[row.metric]) / 2 if row.metric in untrained else math.inf
        tolerances.append(min(max(measured, FLOOR), broken))
    return tolerances
