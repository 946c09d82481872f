"""Paired comparisons over seeds: Student's t, equivalence, trends, Holm's adjustment, resampling of classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
from dmlrepro.evidence import tables

LEVEL = 0.05  # of every test: intervals are 95 %, those of equivalence tests 90 % (two one-sided tests at 5 %)


# --- statistics -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A mean effect over n seeds with interval, p value and standard deviation, in the metric's unit or percent."""

    name: str
    effect: float
    low: float
    high: float
    n: int
    p: float
    sd: float


def paired_difference(
    table, subject: str, baseline: str, metric: str, *, relative: bool = False, selection: str | None = None
) -> Estimate:
    """Subject minus baseline over the seeds both have: mean, 95 % t interval, two-sided p.

    table: tidy results of one experiment, data set, backbone, dim, protocol. subject, baseline: cells (see the header).
    relative: the change in percent, computed on logarithms.
    Raises ValueError on a malformed table, LookupError naming a missing cell.
    """
    effects = tables.difference(tables.one_context(table, selection), subject, baseline, metric, relative)
    return estimated(f"{subject} vs {baseline}", effects, _two_sided(effects), relative=relative)


def equivalence(
    table, subject: str, baseline: str, metric: str, margin: float, *, selection: str | None = None
) -> Estimate:
    """Two one-sided tests of |subject - baseline| < margin; the 90 % interval lies within it just when p < 0.05."""
    if not margin > 0:
        raise ValueError(f"margin must be positive, got {margin}")
    effects = tables.difference(tables.one_context(table, selection), subject, baseline, metric)
    return estimated(f"{subject} vs {baseline}", effects, tost(effects, margin), 1 - 2 * LEVEL)


def trend(table, subject: str, metric: str, *, selection: str | None = None) -> Estimate:
    """Fitted change from lowest to highest level of the subject's range, e.g. "PFML;alpha=0..6"; t over seeds."""
    effects = tables.slope(tables.one_context(table, selection), subject, metric)
    return estimated(f"trend of {subject}", effects, _two_sided(effects))


def ranking(
    table, subject: str, baselines, metric: str, *, direction="higher", selection: str | None = None
) -> list[Estimate]:
    """The subject against each baseline, p doubled one-sided in the claimed direction.

    It ranks first if every comparison holds; the largest p is that of the whole (intersection-union, no adjustment).
    """
    cells, sign = tables.one_context(table, selection), SIGN[direction]
    effects = {baseline: tables.difference(cells, subject, baseline, metric) for baseline in baselines}
    return [
        estimated(f"{subject} vs {baseline}", each, min(1.0, 2 * p_above(sign * each, 0)))
        for baseline, each in effects.items()
    ]


def t_interval(values, level: float = 1 - LEVEL) -> tuple[float, float]:
    """Student t interval of the mean of `values` (n,); NaN for n < 2."""
    from scipy import stats

    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return math.nan, math.nan
    half = stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def holm(p_values, family: int | None = None) -> np.ndarray:
    """Holm's step-down adjusted p values in the order given; NaN stays NaN and is not counted.

    family: how many hypotheses there are if not all are at hand. The absent ones count as p = 1, so that knowing them
    can only lower the result. ValueError if it is less than the p values given.
    """
    p_values = np.asarray(p_values, dtype=float)
    known = np.flatnonzero(~np.isnan(p_values))
    family = len(known) if family is None else family
    if family < len(known):
        raise ValueError(f"family counts {family} hypotheses but {len(known)} p values are given")
    order = known[np.argsort(p_values[known])]
    adjusted = np.full(p_values.shape, math.nan)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p_values[order] * (family - np.arange(len(order)))))
    return adjusted


def detectable_effect(n: int, power: float = 0.8, level: float = LEVEL) -> float:
    """Mean difference, in standard deviations of the differences, that a two-sided t test of n pairs finds."""
    from scipy import optimize, stats

    if n < 2:
        return math.inf
    critical = stats.t.ppf(1 - level / 2, n - 1)
    return optimize.brentq(lambda effect: stats.nct.sf(critical, n - 1, effect * math.sqrt(n)) - power, 1e-3, 1e3)


def class_bootstrap(
    hits: pd.DataFrame, subject: str, baseline: str, *, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """How far other test classes could move the mean difference of R@1: 95 % percentile interval, in percent.

    hits: a row per method, setting, seed and class; columns method, setting, seed, class_id, hits, queries (counts).
    The trained networks stay as they are, so this stands beside the interval over seeds and does not replace it.
    """
    return percentiles(tables.difference(resampled(hits, draws, seed), subject, baseline, "R@1"))


SIGN = {"higher": 1, "lower": -1}


def p_above(values: np.ndarray, bound: float) -> float:
    """One-sided p of "the mean lies above bound"; NaN for n < 2."""
    from scipy import stats

    if len(values) < 2:
        return math.nan
    distance, error = values.mean() - bound, values.std(ddof=1) / math.sqrt(len(values))
    if error == 0:  # the same in every seed
        return 0.0 if distance > 0 else 1.0
    return float(stats.t.sf(distance / error, len(values) - 1))


def _two_sided(values: np.ndarray) -> float:
    return min(1.0, 2 * min(p_above(values, 0), p_above(-values, 0)))


def tost(values: np.ndarray, margin: float) -> float:
    return max(p_above(values, -margin), p_above(-values, -margin))


def estimated(name: str, values: np.ndarray, p: float, level: float = 1 - LEVEL, relative: bool = False) -> Estimate:
    effect, low, high = values.mean(), *t_interval(values, level)
    sd = values.std(ddof=1) if len(values) > 1 else math.nan
    if relative:  # the values are logarithms of ratios
        effect, low, high, sd = (100 * math.expm1(number) for number in (effect, low, high, sd))
    return Estimate(name, float(effect), low, high, len(values), p, float(sd))


def resampled(hits: pd.DataFrame, draws: int, seed: int) -> tables.Cells:
    """R@1 in percent of every cell under each resampling of the classes, (draws,) per seed; all cells share them."""
    missing = [
        name for name in ("method", "setting", "seed", "class_id", "hits", "queries") if name not in hits.columns
    ]
    if missing:
        raise ValueError(f"hits lacks the columns {missing}")
    classes = np.unique(hits["class_id"])
    times = np.random.default_rng(seed).multinomial(len(classes), np.full(len(classes), 1 / len(classes)), size=draws)
    cells: tables.Cells = {}
    for (method, setting, run), rows in hits.fillna({"setting": ""}).groupby(["method", "setting", "seed"]):
        weights = times[:, np.searchsorted(classes, rows["class_id"])]
        recall = 100 * (weights @ rows["hits"].to_numpy()) / np.maximum(weights @ rows["queries"].to_numpy(), 1)
        cells.setdefault((method, "R@1"), {}).setdefault(setting, {})[run] = recall
    return cells


def percentiles(effects: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(effects.mean(axis=0), [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)
