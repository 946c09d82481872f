"""Statistics of effects over seeds: Student's t, equivalence, Holm's adjustment, what n seeds can detect."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05  # every test has this level: intervals are 95 %, those of equivalence (two one-sided tests) 90 %


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


def estimated(name: str, values: np.ndarray, p: float, level: float = 1 - LEVEL, relative: bool = False) -> Estimate:
    """The estimate of effects by seed (n,) with a t interval; `relative` ones are logarithms of ratios, shown in %."""
    effect, low, high = values.mean(), *t_interval(values, level)
    sd = values.std(ddof=1) if len(values) > 1 else math.nan
    if relative:
        effect, low, high, sd = (100 * math.expm1(number) for number in (effect, low, high, sd))
    return Estimate(name, float(effect), low, high, len(values), p, float(sd))


def t_interval(values, level: float = 1 - LEVEL) -> tuple[float, float]:
    """Student t interval of the mean of `values` (n,); NaN for n < 2."""
    from scipy import stats

    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return math.nan, math.nan
    half = stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def p_above(values: np.ndarray, bound: float) -> float:
    """One-sided p of "the mean lies above bound"; NaN for n < 2."""
    from scipy import stats

    if len(values) < 2:
        return math.nan
    distance, error = values.mean() - bound, values.std(ddof=1) / math.sqrt(len(values))
    if error == 0:  # the same in every seed
        return 0.0 if distance > 0 else 1.0
    return float(stats.t.sf(distance / error, len(values) - 1))


def tost(values: np.ndarray, margin: float) -> float:
    """p of two one-sided tests; it is below 5 % just when the mean's 90 % interval lies within the margin of zero."""
    return max(p_above(values, -margin), p_above(-values, -margin))


def holm(p_values, family: int) -> np.ndarray:
    """Holm's step-down adjusted p values in the order given; NaN stays NaN and is not counted.

    family: how many hypotheses there are. Those that are not among the p values count as p = 1, so that knowing them
    can only lower the result. ValueError if it is less than the p values given.
    """
    p_values = np.asarray(p_values, dtype=float)
    known = np.flatnonzero(~np.isnan(p_values))
    if family < len(known):
        raise ValueError(f"family counts {family} hypotheses but {len(known)} p values are given")
    order = known[np.argsort(p_values[known])]
    adjusted = np.full(p_values.shape, math.nan)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p_values[order] * (family - np.arange(len(order)))))
    return adjusted


def detectable_effect(n: int, power: float = 0.8) -> float:
    """Mean difference, in standard deviations of the differences, that a two-sided t test of n pairs finds."""
    from scipy import optimize, stats

    if n < 2:
        return math.inf
    critical = stats.t.ppf(1 - LEVEL / 2, n - 1)
    return optimize.brentq(lambda effect: stats.nct.sf(critical, n - 1, effect * math.sqrt(n)) - power, 1e-3, 1e3)


def percentile_interval(effects: np.ndarray) -> tuple[float, float]:
    """95 % percentile interval of the mean over seeds, of effects (n, draws) under each resampling of the classes.

    It tells how far other test classes could move the mean. The trained networks stay as they are, so it stands beside
    the interval over seeds and does not replace it.
    """
    low, high = np.quantile(effects.mean(axis=0), [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)
