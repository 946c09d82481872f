"""Golden numbers for the regression check of a notebook, with tolerances that were measured, not chosen.

A golden value is the mean over seeds of a metric of one (protocol, method, setting). Another processor rounds
logarithms and powers otherwise, and training amplifies that: after some hundred steps two processors hold different
networks. The tolerance of a value says how far apart their means may lie. It comes from replicas, the same runs from
initial weights that differ by one part in ten thousand, which is rounding, only larger:

- The variance of a value among the replicas of one seed is pooled over the settings of its method. Few replicas know a
  variance badly, so it is drawn towards the methods beside it by as much as they resemble each other, and the quantile
  is Student's with the degrees of freedom that this leaves (the moderated t of Smyth, Stat. Appl. Genet. Mol. Biol. 3,
  2004): the worse a variance is known, the heavier the tail.
- A run of all notebooks compares hundreds of values. The quantile is that of FALSE_ALARMS for all of them together.
- No tolerance exceeds half the distance to a broken variant, the network as it is before training.
"""

import math

import numpy as np
import pandas as pd

from dmlrepro.evidence import results
from dmlrepro.papers import catalogue
from dmlrepro.training import runs

REPLICAS = 3  # per seed, beside the run itself
FALSE_ALARMS = 1e-3  # runs of all notebooks, on a processor that rounds otherwise, in which a check fails by chance
VALUES = 1000  # more than all golden files hold
# What a value that training does not reach may move by, of its size: a study without training, an untrained network,
# whose nearest neighbours are nearly tied.
ROUNDING, UNTRAINED = 1e-3, 0.3


def accept(name: str) -> None:
    """Make `tests/golden/<notebook>.csv` from results/quick and print what moved."""
    notebook = catalogue.find(name)
    params = notebook.params.from_values({"profile": "quick"})
    table = results.read(results.output_folder("quick") / f"{params.notebook}.csv")
    new = results.golden_means(table)
    new["tolerance"] = tolerances(new, replicas(notebook, params), table["seed"].nunique())
    path = results.golden_path(params)
    if path.exists():
        old = results.read_golden(path)
        joined = old.merge(new, on=results.GOLDEN_IDENTITY, how="outer", suffixes=("_old", "_new"))
        moved = joined[~((joined["value_old"] - joined["value_new"]).abs() < 1e-6)]
        print(f"{params.notebook}: {len(moved)} of {len(joined)} golden values moved")
        if len(moved):
            print(moved.to_string(index=False))
    else:
        print(f"{params.notebook}: {len(new)} golden values, the first ones")
    results.write_text(path, new.to_csv(index=False, float_format="%.6f", lineterminator="\n"))


def replicas(notebook, params) -> list[pd.DataFrame]:
    """The golden values of the first seed alone, once for each replica; empty for a notebook that trains nothing."""
    specs = [spec for spec in notebook.specs(params) if spec.seed == 0]
    if all(spec.loss is None for spec in specs):
        return []
    numbered = [
        [spec.replace(replica=number * (spec.loss is not None)) for spec in specs] for number in range(REPLICAS + 1)
    ]
    runs.run_all([spec for some in numbered for spec in some])  # side by side
    return [results.golden_means(notebook.table(runs.run_all(some), params)) for some in numbered]


def tolerances(golden: pd.DataFrame, drawn: list[pd.DataFrame], seeds: int) -> list[float]:
    """The tolerance of every golden value, in its order.

    Args:
        golden: golden values, a row per protocol, method, setting and metric.
        drawn: the same of one seed, once per replica.
        seeds: number of seeds of which a golden value is the mean.
    """
    rounding = [max(ROUNDING * abs(value), 1e-6) for value in golden["value"]]
    if not drawn:
        return rounding
    identity = results.GOLDEN_IDENTITY
    wide = pd.concat([table.set_index(identity)["value"] for table in drawn], axis=1)
    variances = wide.var(axis=1, ddof=1)
    moving = variances[variances > 0]  # a study beside the runs is the same in every replica
    pooled = moderated(moving.groupby(level=["method", "metric"]).agg(["mean", "size"]), len(drawn) - 1)
    untrained = golden[golden["method"] == "untrained"].set_index("metric")["value"]
    found = []
    for row, least in zip(golden.itertuples(), rounding):
        if row.method == "untrained":
            found.append(UNTRAINED if row.metric.startswith(results.IN_PERCENT) else least)
            continue
        measured = 0.0
        if tuple(getattr(row, name) for name in identity) in moving.index:
            variance, freedom = pooled.loc[(row.method, row.metric)]
            measured = quantile(freedom) * math.sqrt(2 * variance / seeds)  # of the difference of two means
        broken = abs(row.value - untrained[row.metric]) / 2 if row.metric in untrained else math.inf
        found.append(min(max(measured, least), broken))
    return found


def quantile(freedom: float) -> float:
    """What the difference of two equal means exceeds, in its estimated standard deviation, once in FALSE_ALARMS runs of
    VALUES comparisons."""
    from scipy import stats

    return float(stats.t.isf(FALSE_ALARMS / VALUES / 2, freedom))


def moderated(pooled: pd.DataFrame, freedom: int) -> pd.DataFrame:
    """Variances drawn towards those of the other methods with the same metric: columns variance and freedom.

    Args:
        pooled: indexed by method and metric; columns mean, of `size` variances with `freedom` degrees of freedom each.
    """
    parts = []
    for _, group in pooled.groupby(level="metric"):
        own = freedom * group["size"]
        prior, weight = prior_variance(group["mean"].to_numpy(), own.to_numpy())
        total = own + weight
        # an infinite weight means that the methods do not differ: all have the prior's variance
        variance = (weight * prior + own * group["mean"]) / total if math.isfinite(weight) else prior
        parts.append(pd.DataFrame({"variance": variance, "freedom": total}, index=group.index))
    return pd.concat(parts)


def prior_variance(variances: np.ndarray, freedom: np.ndarray) -> tuple[float, float]:
    """The scaled inverse chi-square distribution of which the true variances are draws: its scale, and how many degrees
    of freedom it is worth; by the moments of the log variances (Smyth 2004, Sec. 6.2). A single variance has none."""
    from scipy import optimize, special

    if len(variances) < 2:
        return 0.0, 0.0
    logs = np.log(variances) - special.digamma(freedom / 2) + np.log(freedom / 2)
    excess = logs.var(ddof=1) - special.polygamma(1, freedom / 2).mean()
    if excess <= 1e-8:  # they differ by no more than chance
        return float(np.average(variances, weights=freedom)), math.inf
    half = optimize.brentq(lambda x: special.polygamma(1, x) - excess, 1e-4, 1e9)
    return float(np.exp(logs.mean() + special.digamma(half) - np.log(half))), float(2 * half)
