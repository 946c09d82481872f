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

import numpy as np
import pandas as pd

from dmlrepro.evidence import results
from dmlrepro.evidence.tables import COLUMNS
from dmlrepro.papers import catalogue
from dmlrepro.training import runs

REPLICAS = 2  # of the first seed, beside the run itself
FALSE_ALARMS = 1e-3  # runs of all notebooks, on a processor that rounds otherwise, in which a check fails by chance
VALUES = 2000  # more than all golden files hold
ALIKE = 5.0  # degrees of freedom that the other methods are worth at most: they are few, and may resemble by chance
NEAR = 3.0  # standard deviations within which a value cannot be told from that of the untrained network
ROUNDING = 1e-3  # of a value that training does not reach, what another processor may change
TIES = 0.3  # points: nearest neighbours that are nearly tied, also of an untrained network


def accept(names: Iterable[str]) -> None:
    """Make `tests/golden/<notebook>.csv` of those notebooks that save a table, from results/quick; print what moved.

    The spread of the values is measured on all notebooks whose values vary alike, whichever of them are asked for,
    because each is drawn to the others.

    Raises:
        ValueError: a table is missing or not as it was saved; then no golden value is replaced.
    """
    params_of = {name: quick(entry) for name in names if (entry := catalogue.find(name)).table is not None}
    paths = {name: results.output_folder("quick") / f"{params.notebook}.csv" for name, params in params_of.items()}
    tables = {name: results.read(path) for name, path in paths.items()}
    spread: dict[str, pd.DataFrame] = {}
    alike: dict[tuple, dict] = {}
    for name, entry in catalogue.notebooks().items():
        alike.setdefault(kind(entry), {})[name] = entry
    for notebooks in (each for each in alike.values() if not params_of.keys().isdisjoint(each)):
        early = set().union(*(stopping_early(entry) for entry in notebooks.values()))
        spread |= spreads({name: replicas(entry) for name, entry in notebooks.items()}, early)
    for name, params in params_of.items():
        new = results.golden_means(tables[name])
        new["tolerance"] = tolerances(new, spread.get(params.notebook), stopping_early(catalogue.find(name)))
        new = new.drop(columns="seeds")
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


def drift(folder: Path, names: Iterable[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How far the tables of a folder, just made, lie from the golden values.

    Args:
        folder: holds `<notebook>.csv`; a missing table counts as if all its values were outside.
        names: of notebooks; those without golden values are left out.

    Raises:
        FileNotFoundError: there is no such folder.

    Returns:
        a row per notebook: how many values, how many moved, how many are outside their tolerance, and the largest move
        as a share of its tolerance with whose it is; and the values outside, a row each.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}; give one that holds tables, as build/quick after `make results`")
    rows, outside = [], []
    for name in names:
        params = quick(catalogue.find(name))
        if not results.golden_path(params).exists():
            continue
        path = folder / f"{params.notebook}.csv"
        table = results.read(path) if path.exists() else pd.DataFrame(columns=COLUMNS)
        golden = results.read_golden(results.golden_path(params))
        beside = results.beside_golden(table, golden)
        share = (beside["moved"] / beside["tolerance"]).fillna(math.inf)
        beyond = beside[~(beside["moved"] <= beside["tolerance"])]
        worst = beside.loc[share.idxmax()]
        row = {"notebook": params.notebook, "values": len(beside), "moved": int((beside["moved"] > 1e-6).sum())}
        whose = " ".join(filter(None, (worst["method"], worst["setting"], worst["metric"])))
        rows.append(row | {"outside": len(beyond), "of tolerance": share.max(), "largest": whose})
        outside.append(beyond.assign(notebook=params.notebook))
    return pd.DataFrame(rows), pd.concat(outside) if outside else pd.DataFrame()


def quick(notebook: catalogue.Notebook):
    return notebook.params.from_values({"profile": "quick"})


def kind(notebook: catalogue.Notebook) -> tuple[bool, frozenset[str]]:
    """What notebooks must have in common for their values to vary alike: whether they train heads on a frozen trunk,
    which amplify rounding far less than whole networks do, and by which schemes, one of which may stop early."""
    trained = [spec for spec in notebook.specs_untrained(quick(notebook)) if spec.loss]
    return any(spec.train_from == "head" for spec in trained), frozenset(spec.scheme for spec in trained)


def stopping_early(notebook: catalogue.Notebook) -> set[str]:
    """The methods whose scheme ends a problem early and begins the next."""
    specs = notebook.specs_untrained(quick(notebook))
    return {spec.method for spec in specs if spec.scheme == "chance_constrained"}


def replicas(notebook: catalogue.Notebook) -> list[pd.DataFrame]:
    """The golden values of the first seed alone, once for each replica; empty for a notebook that trains nothing."""
    params = quick(notebook)
    specs = [spec for spec in notebook.specs(params) if spec.seed == 0]
    if all(spec.loss is None for spec in specs):
        return []
    numbered = [
        [spec.replace(replica=number * (spec.loss is not None)) for spec in specs] for number in range(REPLICAS + 1)
    ]
    runs.run_all([spec for some in numbered for spec in some])  # side by side
    return [results.golden_means(notebook.table(runs.run_all(some), params)) for some in numbered]


def spreads(drawn: Mapping[str, list[pd.DataFrame]], early: Collection[str] = ()) -> dict[str, pd.DataFrame]:
    """By notebook, how much a value varies from replica to replica: columns variance and freedom, indexed by method and
    metric, of those that vary.

    drawn: by notebook, the golden values of one seed, once per replica. early: methods that share one variance.
    """
    identity = results.GOLDEN_IDENTITY
    parts, of_early = {}, []
    for name, tables in drawn.items():
        if tables:
            variances = pd.concat([table.set_index(identity)["value"] for table in tables], axis=1).var(axis=1, ddof=1)
            varying = variances[variances > 1e-12]  # an untrained network and a study beside the runs do not vary
            of_early.append(variances[variances.index.isin(early, level="method")].rename("variance").reset_index())
            group = varying.groupby(level=["method", "metric"]).agg(["mean", "size"])
            parts[name] = group.assign(freedom=(len(tables) - 1) * group["size"])
    if not parts:
        return {}
    pooled = pd.concat(parts, names=["notebook"])
    found = pd.concat([moderated(group) for _, group in pooled.groupby(level="metric")])
    shared = pd.concat(of_early).drop_duplicates()  # several notebooks read one run
    shared = shared[shared["metric"].isin(found.index.unique("metric"))]
    for metric, values in shared.groupby("metric")["variance"]:
        theirs = found.index.isin(early, level="method") & (found.index.get_level_values("metric") == metric)
        found.loc[theirs, ["variance", "freedom"]] = values.mean(), REPLICAS * len(values)
    return {name: group.droplevel("notebook") for name, group in found.groupby(level="notebook")}


def tolerances(golden: pd.DataFrame, spread: pd.DataFrame | None, early: Collection[str] = ()) -> list[float]:
    """The tolerance of every golden value, in its order.

    Args:
        golden: as `results.golden_means` makes them, a row per protocol, method, setting and metric.
        spread: of the same notebook, see `spreads`; None where nothing is trained.
        early: methods that stop early, which the untrained network's value does not bound: a head may stop near it.
    """
    untrained = golden[golden["method"] == "untrained"]
    found = []
    for row in golden.itertuples():
        deviation = 0.0
        tolerance = max(ROUNDING * abs(row.value), 1e-6)
        if spread is not None and results.in_percent(row.metric):
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
        found.append(tolerance)
    return found


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
