"""Statistics of effects over seeds: t intervals, the six kinds of comparison, Holm's adjustment, what n seeds detect.

Effects have seeds on the last axis, (..., n). A kind of comparison takes aligned effects, positive in the claimed
direction, the SESOI and the margin, and gives outcome -> p (...).
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

LEVEL = 0.05  # every test has this level: intervals are 95 %, those of equivalence (two one-sided tests) 90 %
MIN_SEEDS = 5  # with fewer there are single values and no interval
POWER = 0.8

SUPPORTED, CONTRADICTED, EQUIVALENT, OPEN = ("supported", "contradicted", "equivalent", "open")


def t_interval(values: ArrayLike, level: float = 1 - LEVEL) -> tuple[float, float]:
    """Student t interval of the mean of `values` (n,); NaN for n < 2."""
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return math.nan, math.nan
    half = special.stdtrit(len(values) - 1, (1 + level) / 2) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def p_above(values: np.ndarray, bound: float) -> np.ndarray:
    """One-sided p (...) of "the mean lies above bound" of values (..., n); NaN for n < 2."""
    n = values.shape[-1]
    if n < 2:
        return np.full(values.shape[:-1], math.nan)
    distance, error = values.mean(-1) - bound, values.std(-1, ddof=1) / math.sqrt(n)
    same = error == 0  # in every seed
    return np.where(same, distance <= 0, special.stdtr(n - 1, -distance / np.where(same, 1, error)))


def two_sided(values: np.ndarray, bound: float = 0.0) -> np.ndarray:
    """p (...) of "the two-sided t interval of the mean lies above bound" of values (..., n)."""
    return np.minimum(1, 2 * p_above(values, bound))


def tost(values: np.ndarray, margin: float) -> np.ndarray:
    """p of two one-sided tests; it is below 5 % just when the mean's 90 % interval lies within the margin of zero."""
    return np.maximum(p_above(values, -margin), p_above(-values, -margin))


def superiority(effects: np.ndarray, sesoi: float, margin: float) -> dict[str, np.ndarray]:
    """The mean lies beyond zero and reaches the smallest effect size of interest; equivalent: it lies within that."""
    mean = effects.mean(-1)
    return {
        SUPPORTED: np.where(mean >= sesoi, two_sided(effects), 1.0),
        CONTRADICTED: np.where(-mean >= sesoi, two_sided(-effects), 1.0),
        EQUIVALENT: tost(effects, sesoi),
    }


def noninferiority(effects: np.ndarray, sesoi: float, margin: float) -> dict[str, np.ndarray]:
    """The mean lies at most `margin` on the wrong side of zero."""
    return {SUPPORTED: two_sided(effects, -margin), CONTRADICTED: two_sided(-effects, margin)}


def equivalence(effects: np.ndarray, sesoi: float, margin: float) -> dict[str, np.ndarray]:
    """The mean lies within the margin of zero; contradicted: its interval lies outside."""
    outside = np.minimum(two_sided(effects, margin), two_sided(-effects, margin))
    return {SUPPORTED: tost(effects, margin), CONTRADICTED: outside}


def bound(effects: np.ndarray, sesoi: float, margin: float) -> dict[str, np.ndarray]:
    """Every row beyond the bound by `sesoi`, or short of it by at most `margin`; one counterexample contradicts."""
    obeyed = (effects >= sesoi - margin).all(-1)
    return {SUPPORTED: np.where(obeyed, 0.0, 1.0), CONTRADICTED: np.where(obeyed, 1.0, 0.0)}


def rank(effects: np.ndarray, sesoi: float, margin: float) -> dict[str, np.ndarray]:
    """Every row lies beyond zero by `sesoi`; contradicted: every row on the other side."""
    ahead, behind = ((sign * effects >= max(sesoi, 1e-12)).all(-1) for sign in (1, -1))
    return {SUPPORTED: np.where(ahead, 0.0, 1.0), CONTRADICTED: np.where(behind, 0.0, 1.0)}


KINDS: dict[str, Callable[[np.ndarray, float, float], dict[str, np.ndarray]]] = {
    kind.__name__: kind for kind in (superiority, noninferiority, equivalence, bound, rank)
}
KINDS["trend"] = superiority  # of the fitted change from the lowest to the highest level
BY_ROWS = ("bound", "rank")  # kinds without a p, which Holm does not adjust


def holm(p_values: ArrayLike, family: int) -> np.ndarray:
    """Holm's step-down adjusted p values (..., m) in the order given; NaN stays NaN and is not counted.

    family: how many hypotheses there are; those that are not among the p values count as p = 1.
    """
    p_values = np.asarray(p_values, dtype=float)
    order = np.argsort(p_values, axis=-1)  # NaN last
    steps = np.take_along_axis(p_values, order, -1) * (family - np.arange(p_values.shape[-1]))
    adjusted = np.empty_like(p_values)
    np.put_along_axis(adjusted, order, np.minimum(1, np.maximum.accumulate(steps, axis=-1)), -1)
    return adjusted


def detectable_effect(n: int, sd: float = 1.0, level: float = LEVEL, at_least: float = 0.0) -> float:
    """The mean effect that n seeds find in four cases of five, in the unit of sd and at_least; infinite for n < 2.

    It is found where a two-sided t test at `level`, after Holm LEVEL over the number of hypotheses, rejects zero and
    the mean reaches `at_least`.
    """
    from scipy import optimize

    if n < 2 or not math.isfinite(sd):
        return math.inf
    if sd == 0:
        return at_least
    least = at_least / sd
    needed = np.maximum(least, special.stdtrit(n - 1, 1 - level / 2) * _standard_errors(n))

    def missing(effect: float) -> float:
        return float(special.ndtr((effect - needed) * math.sqrt(n)).mean()) - POWER

    return sd * optimize.brentq(missing, 0, least + 1e4)


@functools.cache
def _standard_errors(n: int) -> np.ndarray:
    """400 equally likely standard errors of the mean of n values with standard deviation 1: quantiles of chi."""
    squares = 2 * special.gammaincinv((n - 1) / 2, (np.arange(400) + 0.5) / 400)
    return np.sqrt(squares / (n - 1) / n)
