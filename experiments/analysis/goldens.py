"""Golden numbers for the regression check of a notebook, with tolerances that were measured, not chosen.

A golden value is the mean over seeds of a metric of one (protocol, method, setting). Another processor rounds
logarithms and powers otherwise, and training amplifies that: after some hundred steps two processors hold different
networks. The tolerance of a value says how far apart their means may lie. It comes from replicas, the same runs from
initial weights that differ by one part in ten thousand, which is rounding, only larger:

- The variance of a value among the replicas of one seed is pooled over the settings of its method in the notebook. Few
  replicas know a variance badly, so it is drawn towards those of all other methods and notebooks by as much as they
  resemble each other, and the quantile is Student's with the degrees of freedom that this leaves (the moderated t of
  Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004): the worse a variance is known, the heavier the tail.
- A method that stops when validation says so stops at another step in some replicas and at the same in others, so few
  of them tell nothing about it. All methods that stop early share one variance.
- A run of all notebooks compares hundreds of values. The quantile is that of FALSE_ALARMS for all of them together.
- No tolerance exceeds half the distance to a broken variant, the network as it is before training, but where a value
  lies within a few standard deviations of it: on blurred images a trained network is no better than an untrained one.
  None exceeds half of the value.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis.comparing import UNTRAINED
from experiments.analysis.results import in_percent
from experiments.files import repository_root

METRICS = ("R@1", "MAP@R", "W2", "W2/delta")  # what a golden file keeps; all of a table that has none of them
IDENTITY = ["protocol", "method", "setting", "metric"]
REPLICAS = 2  # of the first seed, beside the run itself
FALSE_ALARMS = 1e-3  # runs of all notebooks, on a processor that rounds otherwise, in which a check fails by chance
VALUES = 2000  # more than all golden files hold
ALIKE = 5.0  # degrees of freedom that the other methods are worth at most: they are few, and may resemble by chance
NEAR = 3.0  # standard deviations within which a value cannot be told from that of the untrained network
ROUNDING = 1e-3  # of a value that training does not reach, what another processor may change
TIES = 0.3  # points: nearest neighbours that are nearly tied, also of an untrained network


# --- values -----------------------------------------------------------------------------------------------------------


def folder() -> Path:
    return repository_root() / "tests" / "golden"


def path_of(params: Any) -> Path:
    return folder() / f"{params.notebook}.csv"


def check(table: pd.DataFrame, params: Any) -> None:
    """Print whether the means over seeds match the golden run within its tolerances.

    The sentence is the regression test: it holds no raw number, so the same line on two machines means that both
    agree. A run with other parameters than the golden one says so and is not compared.
    """
    path = path_of(params)
    if not path.exists():
        print(f"no golden run for {params.notebook} yet: make accept")
        return
    golden = read(path)
    if params.stem != params.notebook or params.profile != "quick":
        print("parameters differ from the golden run (profile quick): not compared")
        return
    outside = missed(table, golden)
    names = ", ".join(dict.fromkeys(golden["metric"]))
    if alike := seeds_that_agree(table):
        print(f"{names} within tolerance of the golden run: no, seeds of {alike} agree to the last digit")
        return
    if outside.empty:
        print(
            f"{names} of {golden.groupby(['method', 'setting']).ngroups} runs within tolerance of the golden run: yes"
        )
        return
    print(f"{names} within tolerance of the golden run: no")
    print(outside.to_string(index=False))


def read(path: Path) -> pd.DataFrame:
    """A golden file: protocol, method, setting, metric, value (the mean over seeds) and tolerance."""
    return pd.read_csv(path, dtype=dict.fromkeys(IDENTITY, str), keep_default_na=False)


def seeds_that_agree(table: pd.DataFrame) -> str:
    """The first method whose seeds all have the same retrieval scores, as if one seed were used for all; else "".

    The network before training is left out: the features of a pretrained one know no seed.
    """
    scores = table[(table["selection"] == "last") & (table["metric"] == "MAP@R") & ~table["method"].isin(UNTRAINED)]
    for (_, method, _), values in scores.groupby(["protocol", "method", "setting"])["value"]:
        if len(values) > 1 and values.nunique() == 1:
            return method
    return ""


def missed(table: pd.DataFrame, golden: pd.DataFrame) -> pd.DataFrame:
    """Rows of the golden table that the new means miss, with the golden and the new value and the tolerance."""
    joined = beside(table, golden)
    return joined[~(joined["moved"] <= joined["tolerance"])]  # a missing row compares false


def beside(table: pd.DataFrame, golden: pd.DataFrame) -> pd.DataFrame:
    """The golden table with the mean of the new table, `new`, and how far it `moved`; NaN where it has none."""
    new = means(table, golden["metric"].unique()).drop(columns="seeds")
    joined = golden.merge(new, on=IDENTITY, how="left", suffixes=("", "_"))
    joined = joined.rename(columns={"value": "golden", "value_": "new"})
    return joined.assign(moved=(joined["new"] - joined["golden"]).abs())


def means(table: pd.DataFrame, metrics: Iterable[str] = METRICS) -> pd.DataFrame:
    """Mean over seeds of the metrics that a golden file keeps, and of how many seeds: columns value and seeds. Of a
    table that has none of them all are kept."""
    last = table[table["selection"] == "last"]
    kept = last[last["metric"].isin([*metrics])]
    kept = last if kept.empty else kept
    return kept.groupby(IDENTITY, as_index=False).agg(value=("value", "mean"), seeds=("value", "size"))


# --- tolerances -------------------------------------------------------------------------------------------------------


def spreads(drawn: Mapping[str, list[pd.DataFrame]], early: Collection[str] = ()) -> dict[str, pd.DataFrame]:
    """By notebook, how much a value varies from replica to replica: columns variance and freedom, indexed by method and
    metric, of those that vary.

    drawn: by notebook, the golden values of one seed, once per replica. early: methods that share one variance.
    """
    parts, of_early = {}, []
    for name, tables in drawn.items():
        if tables:
            variances = pd.concat([table.set_index(IDENTITY)["value"] for table in tables], axis=1).var(axis=1, ddof=1)
            varying = variances[variances > 1e-12]  # an untrained network and a study beside the runs do not vary
            of_early.append(variances[variances.index.isin(early, level="method")].rename("variance").reset_index())
            group = varying.groupby(level=["method", "metric"]).agg(["mean", "size"])
            parts[name] = group.assign(freedom=(len(tables) - 1) * group["size"]).astype(float)
    if not parts:
        return {}
    pooled = pd.concat(parts, names=["notebook"])
    spread = pd.concat([moderated(group) for _, group in pooled.groupby(level="metric")])
    shared = pd.concat(of_early).drop_duplicates()  # several notebooks read one run
    shared = shared[shared["metric"].isin(spread.index.unique("metric"))]
    for metric, values in shared.groupby("metric")["variance"]:
        theirs = spread.index.isin(early, level="method") & (spread.index.get_level_values("metric") == metric)
        spread.loc[theirs, ["variance", "freedom"]] = values.mean(), REPLICAS * len(values)
    return {name: group.droplevel("notebook") for name, group in spread.groupby(level="notebook")}


def tolerances(golden: pd.DataFrame, spread: pd.DataFrame | None, early: Collection[str] = ()) -> list[float]:
    """The tolerance of every golden value, in its order.

    Args:
        golden: as `means` makes them, a row per protocol, method, setting and metric.
        spread: of the same notebook, see `spreads`; None where nothing is trained.
        early: methods that stop early, which the untrained network's value does not bound: a head may stop near it.
    """
    untrained = golden[golden["method"] == "untrained"]
    column = []
    for row in golden.itertuples():
        deviation = 0.0
        tolerance = max(ROUNDING * abs(row.value), 1e-6)
        if spread is not None and in_percent(row.metric):
            tolerance = max(tolerance, TIES)
        if spread is not None and (row.method, row.metric) in spread.index:
            variance, freedom = spread.loc[(row.method, row.metric)]
            deviation = math.sqrt(2 * variance / row.seeds)  # of the difference of two means
            tolerance = max(tolerance, quantile(freedom) * deviation)
            tolerance = min(tolerance, abs(row.value) / 2)
        alike = untrained[untrained["metric"] == row.metric]
        if row.method not in {"untrained", *early} and len(alike):
            same = alike[alike["protocol"] == row.protocol]
            broken = (row.value - (same if len(same) else alike)["value"]).abs().min() / 2
            tolerance = min(tolerance, broken) if broken > NEAR * deviation else tolerance
        column.append(tolerance)
    return column


def quantile(freedom: float) -> float:
    """What the difference of two equal means exceeds, in its estimated standard deviation, once in FALSE_ALARMS runs of
    VALUES comparisons."""
    from scipy import stats

    return float(stats.t.isf(FALSE_ALARMS / VALUES / 2, freedom))


def moderated(pooled: pd.DataFrame) -> pd.DataFrame:
    """Variances of one metric drawn towards each other: columns variance and freedom, in the same order.

    pooled: columns mean, a variance, and freedom, its degrees of freedom.
    """
    own = pooled["freedom"]
    prior, weight = prior_variance(pooled["mean"].to_numpy(), own.to_numpy())
    weight = min(weight, ALIKE)
    variance = (weight * prior + own * pooled["mean"]) / (weight + own)
    return pd.DataFrame({"variance": variance, "freedom": weight + own}, index=pooled.index)


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
