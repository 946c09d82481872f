"""Statistics on samples whose truth is known: intervals and tests that agree, Holm, power as printed."""

import math

import numpy as np
import pytest
import recomputed
from made_for_claims import spread
from scipy import stats

from experiments.analysis.statistics import LEVEL, detectable_effect, holm, p_above, t_interval, tost


def test_p_is_that_of_the_one_sided_t_test_and_small_just_where_the_interval_lies_within_the_margin():
    values = spread(0.4, 7, seed=3)
    assert p_above(values, 0.1) == pytest.approx(stats.ttest_1samp(values, 0.1, alternative="greater").pvalue)
    assert (p_above(np.ones(5), 0.0), p_above(np.ones(5), 2.0)) == (0.0, 1.0)
    assert math.isnan(p_above(np.ones(1), 0.0)) and all(map(math.isnan, t_interval([1.0])))
    for seed in range(40):
        values = spread(0.5, sd=0.1 + seed / 20, seed=seed)
        low, high = t_interval(values, 0.9)
        assert (tost(values, 1.0) < LEVEL) == (low > -1 and high < 1)


@pytest.mark.parametrize("seed", range(5))
def test_holm_equals_the_literal_procedure(seed):
    """Holm 1979: step down through the sorted p values, multiplying by the number not yet passed."""

    def literal(p_values):
        by_claim = recomputed.holm(dict(enumerate(p_values)), len(p_values))
        return [by_claim[place] for place in range(len(p_values))]

    p_values = np.random.default_rng(seed).random(9) ** 3
    assert holm(p_values, 9) == pytest.approx(literal(p_values))
    known = holm([*p_values[:4], math.nan], family=9)
    assert known[:4] == pytest.approx(literal([*p_values[:4], *[1.0] * 5])[:4]) and math.isnan(known[4])
    assert (literal(p_values)[:4] <= known[:4] + 1e-12).all()  # knowing the others never raises one


def test_power_needs_more_than_the_issue_of_one_test():
    """After Holm over fifteen claims: 3.5 standard deviations at five seeds, 1.6 at ten, 0.95 at twenty."""
    effects = [detectable_effect(n, level=LEVEL / 15) for n in (5, 10, 20)]
    assert effects == pytest.approx([3.5, 1.6, 0.95], abs=0.03)
    assert detectable_effect(1) == math.inf and detectable_effect(5, math.nan) == math.inf
