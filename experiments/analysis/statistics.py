"""Statistics of effects over seeds: Student's t, equivalence, Holm's adjustment, power, what n seeds can detect."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.05  # every test has this level: intervals are 95 %, those of equivalence (two one-sided tests) 90 %
MIN_SEEDS = 5  # with fewer there are single values and no interval
POWER = 0.8


@dataclass(frozen=True)
class Estimate:
    """A mean effect over n seeds with its interval, in the metric's unit or percent."""

    effect: float
    low: float
    high: float
    n: int

    def excludes(self, value: float) -> bool:
        return self.low > value or self.high < value


def estimated(values: np.ndarray, level: float = 1 - LEVEL, relative: bool = False) -> Estimate:
    """The estimate of effects by seed (n,) with a t interval; `relative` ones are logarithms of ratios, shown in %."""
    effect, low, high = values.mean(), *t_interval(values, level)
    if relative:
        effect, low, high = (100 * math.expm1(number) for number in (effect, low, high))
    return Estimate(float(effect), low, high, len(values))


@functools.cache
def _t_quantile(level: float, degrees: int) -> float:
    from scipy import special

    return float(special.stdtrit(degrees, level))


def t_interval(values: ArrayLike, level: float = 1 - LEVEL) -> tuple[float, float]:
    """Student t interval of the mean of `values` (n,); NaN for n < 2."""
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return math.nan, math.nan
    half = _t_quantile((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def t_interval_of_slope(x: np.ndarray, y: np.ndarray, level: float = 1 - LEVEL) -> tuple[float, float, float]:
    """The least-squares slope of y over x, both (n,), and its Student t interval, NaN for n < 3."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    slope, offset = np.polyfit(x, y, 1)
    if len(x) < 3:
        return float(slope), math.nan, math.nan
    degrees = len(x) - 2
    error = math.sqrt(np.square(y - slope * x - offset).sum() / degrees / np.square(x - x.mean()).sum())
    half = _t_quantile((1 + level) / 2, degrees) * error
    return float(slope), float(slope - half), float(slope + half)


def p_above(values: np.ndarray, bound: float) -> float:
    """One-sided p of "the mean lies above bound"; NaN for n < 2."""
    from scipy import special

    if len(values) < 2:
        return math.nan
    distance, error = values.mean() - bound, values.std(ddof=1) / math.sqrt(len(values))
    if error == 0:  # the same in every seed
        return 0.0 if distance > 0 else 1.0
    return float(special.stdtr(len(values) - 1, -distance / error))


def tost(values: np.ndarray, margin: float) -> float:
    """p of two one-sided tests; it is below 5 % just when the mean's 90 % interval lies within the margin of zero."""
    return max(p_above(values, -margin), p_above(-values, -margin))


def holm(p_values: ArrayLike, family: int) -> np.ndarray:
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


# --- power ------------------------------------------------------------------------------------------------------------


@functools.cache
def _standard_errors(n: int, points: int = 400) -> np.ndarray:
    """Equally likely standard errors of the mean of n effects of standard deviation 1."""
    from scipy import stats

    at = (np.arange(points) + 0.5) / points
    return np.sqrt(stats.chi2.ppf(at, n - 1) / (n - 1) / n)


def power_of_difference(effect: float, n: int, level: float = LEVEL, at_least: float = 0.0) -> float:
    """How often n seeds find a difference: a two-sided t test at `level` rejects and the mean reaches `at_least`.

    effect, at_least: in standard deviations of the differences between seeds.
    """
    from scipy import stats

    if n < 2:
        return 0.0
    needed = np.maximum(at_least, _t_quantile(1 - level / 2, n - 1) * _standard_errors(n))
    return float(stats.norm.sf((needed - effect) * math.sqrt(n)).mean())


def power_of_equivalence(effect: float, n: int, level: float, margin: float) -> float:
    """How often n seeds find that the mean lies within `margin` of zero; units as in `power_of_difference`."""
    from scipy import stats

    if n < 2:
        return 0.0
    room = margin - _t_quantile(1 - level, n - 1) * _standard_errors(n)
    inside = stats.norm.cdf((room - effect) * math.sqrt(n)) - stats.norm.cdf((-room - effect) * math.sqrt(n))
    return float(np.where(room > 0, inside, 0).mean())


def detectable_effect(n: int, sd: float = 1.0, level: float = LEVEL, at_least: float = 0.0) -> float:
    """The mean effect that n seeds find in four cases of five, in the unit of sd and at_least; infinite for n < 2.

    level: of the test as it decides, so after Holm LEVEL over the number of hypotheses.
    """
    from scipy import optimize

    if n < 2 or not math.isfinite(sd):
        return math.inf
    if sd == 0:
        return at_least
    least = at_least / sd
    size = optimize.brentq(lambda effect: power_of_difference(effect, n, level, least) - POWER, 0, least + 1e4)
    return sd * size


def seeds_that_decide(
    effect: float, sd: float, level: float, counts: float, most: int = 1000, *, equivalence: bool = False
) -> float:
    """The least number of seeds that would find, in four cases of five, what these seeds suggest: a difference of at
    least `counts`, or, of a smaller effect, that it is smaller; NaN where more than `most` would be needed.

    level: as in `detectable_effect`; two one-sided tests have it each. equivalence: of an effect that is claimed to lie
    within `counts`, and else must lie outside with its interval.
    """
    if not sd > 0 or not math.isfinite(sd):
        return math.nan
    effect, counts = abs(effect) / sd, counts / sd

    def enough(n: int) -> bool:
        if effect < counts:
            return power_of_equivalence(effect, n, level, counts) >= POWER
        outside, least = (effect - counts, 0.0) if equivalence else (effect, counts)
        return power_of_difference(outside, n, level, least) >= POWER

    if not enough(most):
        return math.nan
    low, high = 1, most  # power grows with n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return max(high, MIN_SEEDS)


def percentile_interval(effects: np.ndarray) -> tuple[float, float]:
    """95 % percentile interval of the mean over seeds, of effects (n, draws) under each resampling of the classes.

    It tells how far other test classes could move the mean. The trained networks stay as they are, so it stands beside
    the interval over seeds and does not replace it.
    """
    low, high = np.quantile(effects.mean(axis=0), [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)
