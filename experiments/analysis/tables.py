"""The grammar of a results table: its columns, cells such as "PFML;alpha=3..6", and effects by seed.

A cell of the results table is written "METHOD" or "METHOD;name=value;other=low..high": the named settings must match
and every other setting of the row must be at its default (DEFAULTS); a range averages the levels found in it.
"A - B" subtracts cell B from cell A, seed by seed. A number is a constant. A metric "X / Y" is metric X over metric Y
of the same run. Rows of a study without images have dataset "synthetic" and belong to every data set of their
experiment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd

CONTEXT = ["experiment", "profile", "dataset", "backbone", "dim", "protocol"]  # numbers are compared within one context
IDENTITY = ["paper", *CONTEXT, "method", "setting", "seed", "selection", "step", "metric"]  # no two rows share it
COLUMNS = [*IDENTITY, "value"]
RUN = [*CONTEXT, "method", "setting", "seed", "metric"]  # whose rows differ in step and selection alone
HITS = [*CONTEXT, "method", "setting", "seed", "class_id", "hits", "queries"]  # R@1 as counts, a row per test class

Value = float | tuple[float, float] | str  # of a setting; of a range, the lowest and the highest
DEFAULTS: dict[str, Value] = {"label_noise": 0.0, "retrieval": "cosine"}  # what a row that names no other one has
SYNTHETIC = "synthetic"  # the dataset of a study without images
FEATURES = "untrained"  # the method whose rows are the features of the network as it is
START = "random head"  # the method whose rows are the network that training begins with
CALLED = {FEATURES: "features before training", START: "initial network"}  # what readers see instead
CURVE = "curve"  # the setting of a run that repeats another and keeps its evaluations, for a figure alone

# (method, metric) -> level -> seed -> value; a value may be an array, one number per resampling of the classes
Cells = dict[tuple[str, str], dict["Cell", dict[int, Any]]]


def chosen(table: pd.DataFrame) -> pd.DataFrame:
    """The rows at the step chosen on validation classes, where a metric has them, else at the last one: what is
    measured on a finished run, such as a distance, has no other."""
    validated = pd.MultiIndex.from_frame(table.loc[table["selection"] == "val_best", RUN])
    at_best = pd.MultiIndex.from_frame(table[RUN]).isin(validated)
    return table[table["selection"] == np.where(at_best, "val_best", "last")]


def final_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that `chosen` keeps, at the last step of each run; ValueError if there are two values for one run."""
    rows = chosen(table[COLUMNS].astype({"seed": int, "step": int, "value": float}))
    last = rows.groupby(RUN)["step"].transform("max")
    rows = rows[rows["step"] == last].drop_duplicates([*RUN, "value"])
    if (twice := rows.duplicated(RUN)).any():
        row = rows[twice].iloc[0]
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
    by_method = rows.sort_values("step", kind="stable").groupby("method", sort=False)
    return {method: (curve["step"].to_numpy(), curve["value"].to_numpy()) for method, curve in by_method}


class MissingRows(LookupError):
    """A cell that the table does not have; the message names it."""


@dataclass(frozen=True)
class Cell:
    """A method, and those of its settings that are named: "PFML;delta=0.1..0.3;M=8"."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def read(cls, text: str) -> Self:
        method, _, setting = text.partition(";")
        return cls(method, settings_of(setting))

    def __str__(self) -> str:
        return ";".join(filter(None, (self.method, self.setting)))

    @property
    def setting(self) -> str:
        """As a row of a table has it: "delta=0.1;M=8"."""
        return ";".join(f"{name}={_written(value)}".rstrip("=") for name, value in self.settings.items())

    @property
    def setting_said(self) -> str:
        """For people: "delta = 0.1 to 0.3, M = 8"."""
        return self.setting.replace(";", ", ").replace("..", " to ").replace("=", " = ")

    @property
    def said(self) -> str:
        """For people: "PFML at delta = 0.1 to 0.3, M = 8"."""
        return " at ".join(filter(None, (CALLED.get(self.method, self.method), self.setting_said)))

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        return {name: value for name, value in self.settings.items() if isinstance(value, tuple)}

    def covers(self, level: "Cell") -> bool:
        """Whether this is the cell, or has it in its range; defaults are filled in on both sides."""
        wanted, given = (DEFAULTS | dict(cell.settings) for cell in (self, level))
        held = {name: given.get(name) for name in self.ranges}
        ends = zip(self.ranges.values(), held.values())
        inside = all(isinstance(value, float) and low - 1e-9 <= value <= high + 1e-9 for (low, high), value in ends)
        return inside and self.method == level.method and wanted | held == given


@dataclass(frozen=True)
class Expression:
    """What is compared: a cell, the cells of "A - B", or a constant; nothing at all as the baseline of a trend."""

    cells: tuple[Cell, ...] = ()
    constant: float | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        value = _value(text)
        return cls(constant=value) if isinstance(value, float) else cls(tuple(map(Cell.read, text.split(" - "))))

    def __str__(self) -> str:
        return " - ".join(map(str, self.cells)) if self.constant is None else _written(self.constant)

    @property
    def said(self) -> str:
        """For people: "EL-vMF minus B-vMF"."""
        return " minus ".join(cell.said for cell in self.cells) or str(self)

    @property
    def is_constant(self) -> bool:
        return self.constant is not None

    @property
    def zero(self) -> float:
        """What a value is compared with where this is the baseline."""
        return self.constant or 0.0

    @property
    def methods(self) -> set[str]:
        return {cell.method for cell in self.cells}


def settings_of(setting: str) -> dict[str, Any]:
    """The setting of a row by name: "delta=0.1;M=8" -> {"delta": 0.1, "M": 8.0}."""
    return {name: _value(text) for name, _, text in (part.partition("=") for part in setting.split(";") if part)}


def _value(text: str) -> Value:
    low, dots, high = text.partition("..")
    try:
        return (float(low), float(high)) if dots else float(text)
    except ValueError:
        return text


def _written(value: Value) -> str:
    if isinstance(value, tuple):
        return "..".join(map(_written, value))
    return value if isinstance(value, str) else f"{value:.15g}"


def cells_of(rows: pd.DataFrame) -> Cells:
    """The values of one context."""
    cells: Cells = {}
    levels = {key: Cell(key[0], settings_of(key[1])) for key in {*zip(rows["method"], rows["setting"])}}
    columns = (rows[name].tolist() for name in ("method", "setting", "metric", "seed", "value"))
    for method, setting, metric, seed, value in zip(*columns):
        cells.setdefault((method, metric), {}).setdefault(levels[method, setting], {})[seed] = value
    return cells


def resampled_cells(hits: pd.DataFrame, draws: int = 2000, seed: int = 0) -> Cells:
    """R@1, which is P@1, in percent with the test classes of one context drawn anew with replacement: (draws,) by seed.
    All cells share the draws, so that differences are paired by class; hits: see `results.hits`."""
    classes = np.unique(hits["class_id"])
    times = np.random.default_rng(seed).multinomial(len(classes), np.full(len(classes), 1 / len(classes)), size=draws)
    cells: Cells = {}
    for (method, setting, run), rows in hits.groupby(["method", "setting", "seed"]):
        weights = times[:, np.searchsorted(classes, rows["class_id"])]
        recall = 100 * (weights @ rows["hits"].to_numpy()) / np.maximum(weights @ rows["queries"].to_numpy(), 1)
        for metric in ("R@1", "P@1"):
            cells.setdefault((method, metric), {}).setdefault(Cell(method, settings_of(setting)), {})[run] = recall
    return cells


def of_one_dataset(table: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """The final rows of the metrics; ValueError: one has none, or data sets, profiles or protocols are several."""
    rows = final_rows(table)
    absent = [metric for metric in metrics if metric not in set(rows["metric"])]
    if absent or not metrics:
        raise ValueError(f"metrics: the table has no {absent}, it has {', '.join(rows['metric'].unique())}")
    rows = rows[rows["metric"].isin(metrics)]  # what was timed on made data stands in one table with what was trained
    for name in ("dataset", "profile", "protocol"):
        if len(values := set(rows[name])) > 1:
            raise ValueError(f"table mixes several values of {name}: {sorted(values)}; filter it to one")
    return rows


def levels_of(cells: Cells, cell: Cell, metric: str) -> dict[Cell, dict[int, Any]]:
    """level -> seed -> value of every level that a cell covers; MissingRows if it covers none."""
    metric, _, denominator = metric.partition(" / ")
    if denominator:
        below = levels_of(cells, cell, denominator)
        return {
            level: {seed: value / below[level][seed] for seed, value in seeds.items()}
            for level, seeds in levels_of(cells, cell, metric).items()
        }
    levels = {level: seeds for level, seeds in cells.get((cell.method, metric), {}).items() if cell.covers(level)}
    if not levels:
        raise MissingRows(f"{cell} ({metric})")
    return levels


def uncovered(cells: Cells, cell: Cell, metric: str) -> bool:
    """Whether an end of a range of the cell was not measured."""
    for name, ends in cell.ranges.items():
        measured: list[Any] = [level.settings.get(name, DEFAULTS.get(name)) for level in levels_of(cells, cell, metric)]
        if not np.allclose([min(measured), max(measured)], ends):
            return True
    return False


def effects(cells: Cells, subject: Expression, baseline: Expression, metric: str, relative: bool = False) -> np.ndarray:
    """Subject minus baseline by seed, (n, ...); the logarithm of their ratio when relative, NaN if one is not positive;
    without a baseline the `slope`. MissingRows for an absent cell, or if the two share no seed."""
    if baseline == Expression():
        return slope(cells, *subject.cells, metric)  # type: ignore[call-arg, arg-type]
    sides = [by_seed(cells, side, metric) for side in (subject, baseline) if not side.is_constant]
    one, *others = _stack(sides, f"{subject} and {baseline}")
    other = others[0] if others else baseline.zero
    if not relative:
        return one - other
    positive = np.logical_and(one > 0, np.asarray(other) > 0)
    return np.log(np.where(positive, one, np.nan) / np.where(positive, other, np.nan))


def slope(cells: Cells, cell: Cell, metric: str) -> np.ndarray:
    """Least-squares slope over the levels of the cell's range, times the range; by seed, (n, ...)."""
    levels, (name,) = levels_of(cells, cell, metric), cell.ranges
    x = np.array([level.settings[name] for level in levels])
    if len(x) < 2:
        raise MissingRows(f"a second level of {cell} ({metric})")
    weights = (x - x.mean()) * np.ptp(x) / np.square(x - x.mean()).sum()
    values = _stack(list(levels.values()), str(cell))
    return np.tensordot(weights, values - values[:1], axes=1)  # what does not move has a slope of exactly 0


def by_seed(cells: Cells, expression: Expression, metric: str) -> dict[int, Any]:
    """seed -> value of an expression; the levels of a range are averaged."""
    terms = [levels_of(cells, cell, metric) for cell in expression.cells]
    seeds = sorted(set.intersection(*(set(values) for term in terms for values in term.values())))
    if not seeds:
        raise MissingRows(f"one seed common to all of {expression} ({metric})")
    means = [{seed: np.mean([values[seed] for values in term.values()], axis=0) for seed in seeds} for term in terms]
    return {seed: means[0][seed] - sum(mean[seed] for mean in means[1:]) for seed in seeds}


def _stack(series: list[dict[int, Any]], what: str) -> np.ndarray:
    """(len(series), seeds, ...) over the seeds that all of them have, in order; MissingRows if there is none."""
    seeds = sorted(set.intersection(*(set(values) for values in series)))
    if not seeds:
        raise MissingRows(f"one seed common to {what}")
    return np.array([[values[seed] for seed in seeds] for values in series], dtype=float)
