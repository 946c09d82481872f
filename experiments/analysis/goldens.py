"""Golden numbers for the regression check of a notebook, with tolerances that were measured, not chosen.

A golden value is the mean over seeds of a metric of one (protocol, method, setting). Another processor rounds
logarithms and powers otherwise, and training amplifies that: after some steps two processors hold different networks.
The tolerance of a value, how far apart their means may lie, is WIDTH standard deviations of a mean over REPEATS: the
same runs from initial weights that differ by one part in ten thousand, which is rounding, only larger. It is pooled
over the rows of a metric in the notebook, or that of the row where it is larger; methods that stop early are pooled
apart, because validation picks another step in some repeats.

No tolerance exceeds half of the value, or half the distance to the network before training, but where the value lies so
near to it that repeats cannot tell the two apart.
"""

import math
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.comparing import UNTRAINED
from experiments.analysis.results import in_percent
from experiments.analysis.tables import START
from experiments.files import repository_root

METRICS = ("R@1", "MAP@R", "W2", "W2/delta")  # what a golden file keeps; all of a table that has none of them
IDENTITY = ["protocol", "method", "setting", "metric"]
REPEATS = 4  # of the first seed, beside the run itself
WIDTH = 5 * math.sqrt(2)  # standard deviations of a value that the difference of two of them may have
NEAR = 3.0 * math.sqrt(2)  # within so many the half distance to the network before training bounds no tolerance
ROUNDING = 1e-3  # of a value that training does not reach, what another processor may change
TIES = 0.3  # points: nearest neighbours that are nearly tied, also of an untrained network


def folder() -> Path:
    return repository_root() / "tests" / "golden"


def check(table: pd.DataFrame, params: Any) -> None:
    """Print whether the means over seeds match the golden run within its tolerances. The sentence is the regression
    test: it holds no raw number, so the same line on two machines means that both agree."""
    path = folder() / f"{params.notebook}.csv"
    if not path.exists():
        print(f"no golden run for {params.notebook} yet: make update-golden")
        return
    golden = read(path)
    if params.stem != params.notebook or params.profile != "quick":
        print("parameters differ from the golden run (profile quick): not compared")
        return
    outside, names = missed(table, golden), ", ".join(dict.fromkeys(golden["metric"]))
    if outside.empty:
        runs = golden.groupby(["method", "setting"]).ngroups
        print(f"{names} of {runs} runs within tolerance of the golden run: yes")
    else:
        print(f"{names} within tolerance of the golden run: no", outside.to_string(index=False), sep="\n")


def read(path: Path) -> pd.DataFrame:
    """A golden file: protocol, method, setting, metric, value (the mean over seeds) and tolerance."""
    return pd.read_csv(path, dtype=dict.fromkeys(IDENTITY, str), keep_default_na=False)


def missed(table: pd.DataFrame, golden: pd.DataFrame) -> pd.DataFrame:
    """Rows of the golden table that the new means miss, with both values, how far the mean `moved` and the tolerance; a
    row that the new table lacks is missed, with NaN."""
    new = means(table, golden["metric"].unique()).drop(columns="seeds")
    joined = golden.merge(new, on=IDENTITY, how="left", suffixes=("", "_"))
    joined = joined.rename(columns={"value": "golden", "value_": "new"})
    joined = joined.assign(moved=(joined["new"] - joined["golden"]).abs())
    return joined[~(joined["moved"] <= joined["tolerance"])]  # NaN compares false


def means(table: pd.DataFrame, metrics: Iterable[str] = METRICS) -> pd.DataFrame:
    """The mean over seeds of the metrics that a golden file keeps, and of how many: columns value and seeds."""
    last = table[table["selection"] == "last"]
    kept = last[last["metric"].isin([*metrics])]
    kept = last if kept.empty else kept
    return kept.groupby(IDENTITY, as_index=False).agg(value=("value", "mean"), seeds=("value", "size"))


def deviations(repeats: list[pd.DataFrame], early: Collection[str] = ()) -> "pd.Series[float]":
    """The standard deviation of each golden value that varies from repeat to repeat, pooled, by IDENTITY. repeats: of
    one seed, once per repeat. early: methods that stop early."""
    if not repeats:
        return pd.Series(dtype=float)
    variances = pd.concat([table.set_index(IDENTITY)["value"] for table in repeats], axis=1).var(axis=1, ddof=1)
    variances = variances[variances > 1e-12]  # an untrained network and a study beside the runs do not vary
    metric, method = (variances.index.get_level_values(name) for name in ("metric", "method"))
    pooled = variances.groupby([metric, method.isin(early)]).transform("mean")
    return pooled.combine(variances, max) ** 0.5


def tolerances(golden: pd.DataFrame, deviation: "pd.Series[float]") -> list[float]:
    """The tolerance of every golden value, see `means`, in its order; deviation: of the notebook, see `deviations`."""
    before = golden[golden["method"] == (START if START in set(golden["method"]) else "untrained")]
    column = []
    for row in golden.itertuples():
        of_mean = deviation.get((row.protocol, row.method, row.setting, row.metric), 0.0) / math.sqrt(row.seeds)
        trained = not deviation.empty and in_percent(row.metric)
        tolerance = max(ROUNDING * abs(row.value), 1e-6, TIES if trained else 0.0)
        if of_mean:
            tolerance = min(max(tolerance, WIDTH * of_mean), abs(row.value) / 2)
        alike = before[(before["metric"] == row.metric) & (before["protocol"] == row.protocol)]
        if row.method not in UNTRAINED and len(alike):
            broken = (row.value - alike["value"]).abs().min() / 2
            tolerance = min(tolerance, broken) if broken > NEAR * of_mean else tolerance
        column.append(tolerance)
    return column
