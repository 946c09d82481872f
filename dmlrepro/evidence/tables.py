"""The grammar of a results table: its columns, cells such as "PFML;alpha=3..6", and effects by seed.

A cell of the results table is written "METHOD" or "METHOD;name=value;other=low..high": the named settings must match
and every other setting of the row must be at its default (DEFAULTS); a range averages the levels found in it.
"A - B" subtracts cell B from cell A, seed by seed. A number is a constant. A metric "X / Y" is metric X over metric Y
of the same run. Rows of a study without images have dataset "synthetic" and belong to every data set of their
experiment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

CONTEXT = ["experiment", "profile", "dataset", "backbone", "dim", "protocol"]  # numbers are compared within one context
IDENTITY = ["paper", *CONTEXT, "method", "setting", "seed", "selection", "step", "metric"]  # no two rows share it
COLUMNS = [*IDENTITY, "value"]
HITS = [*CONTEXT, "method", "setting", "seed", "class_id", "hits", "queries"]  # R@1 as counts, a row per test class

DEFAULTS = {"label_noise": 0.0, "retrieval": "cosine"}  # what a row that does not name these settings has
SYNTHETIC = "synthetic"  # the dataset of a study without images
CURVE = "curve"  # the setting of a run that repeats another and keeps its evaluations, for a figure alone

# (method, metric) -> setting -> seed -> value; a value may be an array, one number per resampling of the classes
Cells = dict[tuple[str, str], dict[str, dict[int, Any]]]


# --- rows -------------------------------------------------------------------------------------------------------------


def chosen(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at the step chosen on validation classes, where a metric has them, else at the last one: what is
    measured on a finished run, such as a distance, has no other."""
    import pandas as pd

    run = [*CONTEXT, "method", "setting", "seed", "metric"]
    validated = pd.MultiIndex.from_frame(table.loc[table["selection"] == "val_best", run])
    at_best = pd.MultiIndex.from_frame(table[run]).isin(validated)
    return table[table["selection"] == np.where(at_best, "val_best", "last")]


def final_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that `chosen` keeps, at the last step of each run.

    Raises ValueError if the table lacks columns or holds two values for one run.
    """
    import pandas as pd

    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise ValueError(f"table lacks the columns {missing}; a results table has {COLUMNS}")
    rows = table[COLUMNS].copy()
    for name in COLUMNS:
        if name in ("seed", "step", "value"):
            rows[name] = pd.to_numeric(rows[name])
        elif name != "dim":
            rows[name] = rows[name].astype(object).where(rows[name].notna(), "").astype(str)
    rows = chosen(rows)
    run = [*CONTEXT, "method", "setting", "seed", "metric"]
    last = rows.groupby(run, dropna=False)["step"].transform("max")
    rows = rows[(rows["step"] == last) | last.isna()].drop_duplicates([*run, "value"])
    twice = rows[rows.duplicated(run, keep=False)]
    if len(twice):
        row = twice.iloc[0]
        raise ValueError(
            f"table holds different values of {row.metric} for {row.method!r}, setting {row.setting!r}, "
            f"seed {row.seed} on {row.dataset!r} in experiment {row.experiment!r}; keep one"
        )
    return rows


def histories(table: pd.DataFrame, metric: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Steps and values of all evaluations of the runs of CURVE, by method; MissingRows if there is none."""
    rows = table[(table["setting"] == CURVE) & (table["selection"] == "every") & (table["metric"] == metric)]
    if rows.empty:
        raise MissingRows(f"evaluations during training ({metric})")
    found = rows.sort_values("step", kind="stable").groupby("method", sort=False)
    return {method: (each["step"].to_numpy(), each["value"].to_numpy()) for method, each in found}


# --- cells ------------------------------------------------------------------------------------------------------------


class MissingRows(LookupError):
    """A cell that the table does not have; the message names it."""


def cells_of(rows: pd.DataFrame) -> Cells:
    """The values of one context."""
    cells: Cells = {}
    columns = ["method", "metric", "setting", "seed", "value"]
    for method, metric, setting, seed, value in rows[columns].itertuples(index=False, name=None):
        cells.setdefault((method, metric), {}).setdefault(setting, {})[seed] = value
    return cells


def resampled_cells(hits: pd.DataFrame, draws: int = 2000, seed: int = 0) -> Cells:
    """R@1, which is P@1, in percent with the test classes of one context drawn anew with replacement: (draws,) by seed.

    hits: counts as `results.hits` makes them. All cells share the draws, so that differences are paired by class.
    """
    classes = np.unique(hits["class_id"])
    times = np.random.default_rng(seed).multinomial(len(classes), np.full(len(classes), 1 / len(classes)), size=draws)
    cells: Cells = {}
    for (method, setting, run), rows in hits.groupby(["method", "setting", "seed"]):
        weights = times[:, np.searchsorted(classes, rows["class_id"])]
        recall = 100 * (weights @ rows["hits"].to_numpy()) / np.maximum(weights @ rows["queries"].to_numpy(), 1)
        for metric in ("R@1", "P@1"):
            cells.setdefault((method, metric), {}).setdefault(setting, {})[run] = recall
    return cells


def is_constant(cell: str) -> bool:
    return isinstance(_value(cell), float)


def parse_cell(cell: str) -> tuple[str, dict]:
    """Method and settings: "PFML;alpha=3..6" -> ("PFML", {"alpha": (3.0, 6.0)})."""
    method, *settings = cell.split(";")
    return method, {name: _value(text) for name, _, text in (each.partition("=") for each in settings if each)}


def _value(text: str) -> float | tuple[float, float] | str:
    low, dots, high = text.partition("..")
    try:
        return (float(low), float(high)) if dots else float(text)
    except ValueError:
        return text


def matches(wanted: dict, found: dict) -> bool:
    """Whether settings that were found are the wanted ones, defaults filled in on both sides."""
    for name in wanted.keys() | found.keys():
        want, value = wanted.get(name, DEFAULTS.get(name)), found.get(name, DEFAULTS.get(name))
        if isinstance(want, tuple):
            if not (isinstance(value, float) and want[0] - 1e-9 <= value <= want[1] + 1e-9):
                return False
        elif want != value:
            return False
    return True


def levels_of(cells: Cells, cell: str, metric: str) -> dict[str, dict]:
    """setting -> seed -> value of every level that a cell covers; MissingRows if it covers none."""
    metric, _, denominator = metric.partition(" / ")
    if denominator:
        below = levels_of(cells, cell, denominator)
        return {
            setting: {seed: value / below[setting][seed] for seed, value in seeds.items()}
            for setting, seeds in levels_of(cells, cell, metric).items()
        }
    method, wanted = parse_cell(cell)
    settings = cells.get((method, metric), {})
    levels = {setting: seeds for setting, seeds in settings.items() if matches(wanted, parse_cell(f";{setting}")[1])}
    if not levels:
        raise MissingRows(f"{cell} ({metric})")
    return levels


def uncovered(cells: Cells, expression: str, metric: str) -> str:
    """What a range in an expression lacks, as "covers 1 to 3 of 1 to 6"; empty if both of its ends were measured."""
    for cell in expression.split(" - "):
        for name, value in parse_cell(cell)[1].items():
            if isinstance(value, tuple):
                settings = [parse_cell(f";{setting}")[1] for setting in levels_of(cells, cell, metric)]
                found = [each.get(name, DEFAULTS.get(name)) for each in settings]
                if not np.allclose([min(found), max(found)], value):
                    return f"{name} covers {min(found):g} to {max(found):g} of {value[0]:g} to {value[1]:g}"
    return ""


def numbers_of(cell: str, settings) -> np.ndarray:
    """The value in each setting of the one name for which the cell has a range."""
    names = [name for name, value in parse_cell(cell)[1].items() if isinstance(value, tuple)]
    if len(names) != 1:
        raise ValueError(f"a trend needs one setting with a range, as in 'PFML;alpha=0..6', got {cell!r}")
    return np.array([parse_cell(f";{setting}")[1][names[0]] for setting in settings])


# --- effects by seed --------------------------------------------------------------------------------------------------


def difference(cells: Cells, subject: str, baseline: str, metric: str, relative: bool = False) -> np.ndarray:
    """Subject minus baseline by seed, (n, ...); the logarithm of their ratio when relative, NaN if one is not positive.

    The trailing shape is that of the cells' values. Raises MissingRows for an absent cell, or if the two share no seed.
    """
    one = by_seed(cells, subject, metric)
    if is_constant(baseline):
        one, other = _stack([one], f"the levels of {subject}")[0], float(baseline)
    else:
        one, other = _stack([one, by_seed(cells, baseline, metric)], f"{subject} and {baseline}")
    if not relative:
        return one - other
    positive = np.logical_and(one > 0, np.asarray(other) > 0)
    return np.log(np.where(positive, one, np.nan) / np.where(positive, other, np.nan))


def slope(cells: Cells, subject: str, metric: str) -> np.ndarray:
    """Least-squares slope over the levels of the subject's range, times the range; by seed, (n, ...)."""
    levels = levels_of(cells, subject, metric)
    x = numbers_of(subject, levels)
    if len(x) < 2:
        raise MissingRows(f"a second level of {subject} ({metric})")
    weights = (x - x.mean()) * np.ptp(x) / np.square(x - x.mean()).sum()
    return np.tensordot(weights, _stack(list(levels.values()), subject), axes=1)


def by_seed(cells: Cells, expression: str, metric: str) -> dict:
    """seed -> value of an expression "A - B"; the levels of a range are averaged."""
    terms = [levels_of(cells, term, metric) for term in expression.split(" - ")]
    seeds = sorted(set.intersection(*(set(values) for term in terms for values in term.values())))
    means = [{seed: np.mean([values[seed] for values in term.values()], axis=0) for seed in seeds} for term in terms]
    return {seed: means[0][seed] - sum(mean[seed] for mean in means[1:]) for seed in seeds}


def _stack(series: list[dict], what: str) -> np.ndarray:
    """(len(series), seeds, ...) over the seeds that all of them have, in order; MissingRows if there is none."""
    seeds = sorted(set.intersection(*(set(each) for each in series)))
    if not seeds:
        raise MissingRows(f"one seed common to {what}")
    return np.array([[each[seed] for seed in seeds] for each in series], dtype=float)
