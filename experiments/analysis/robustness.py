"""Which checks keep the verdict of a claim. They stand beside it in results/claims.csv and never decide.

Each check judges the claim anew with one thing changed:

other_metric     R@1 in the place of MAP@R, MAP@R in the place of all others, with the same smallest effects
fewer_seeds      any two seeds left out
other_classes    the standard error over seeds together with that over resampled test classes
other_protocol, other_data, other_network    the claim's other tables of the profile: all of them have to agree
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis.claims import RETRIEVAL, ClaimTest, Part
from experiments.analysis.comparing import Comparison, p_of, p_of_claim, reached
from experiments.analysis.judging import Verdict, decided
from experiments.analysis.statistics import CONTRADICTED, OPEN, SUPPORTED

# check -> the column that differs
ELSEWHERE = {"other_protocol": "protocol", "other_data": "dataset", "other_network": "backbone"}
CHECKS = ("other_metric", "fewer_seeds", "other_classes", *ELSEWHERE)
LEFT_OUT = 2


def with_other_metric(tests: Mapping[str, ClaimTest]) -> dict[str, ClaimTest]:
    """The tests that compare scores of retrieval, on the other metric."""

    def other(part: Part) -> Part:
        metric = "R@1" if part.metric == "MAP@R" else "MAP@R"
        return replace(part, metric=metric) if part.metric.startswith(RETRIEVAL) else part

    changed = {name: replace(test, parts=tuple(map(other, test.parts))) for name, test in tests.items()}
    return {name: test for name, test in changed.items() if test != tests[name]}


def checked(
    line: Any, comparisons: Sequence[Comparison], test: ClaimTest, other_metric: str | None, lines: pd.DataFrame
) -> dict[str, str]:
    """Check -> "yes" where it keeps the verdict of a line, one of DECIDED, "no" where not, "" where it was not made.

    comparisons: those that decide it. other_metric: the verdict on the other metric, None where there is none. lines:
    all of the claim, see `judging.ordered`.
    """
    holm = line.p_holm / line.p if line.p > 0 else 1.0

    def kept_with(effects: Iterable[np.ndarray | None]) -> bool | None:
        known = [each for each in effects if each is not None]
        return _keep(known, comparisons, test, holm, line.verdict) if len(known) == len(comparisons) > 0 else None

    only_bounds = all(one.part.by_rows for one in comparisons)  # those that all rows keep, fewer keep as well
    kept = {
        "other_metric": None if other_metric in (None, Verdict.NOT_RUN) else other_metric == line.verdict,
        "fewer_seeds": None if only_bounds else kept_with(_without(one.effects) for one in comparisons),
        "other_classes": kept_with(_widened(one) for one in comparisons),
    }
    run = lines[~lines["verdict"].isin([Verdict.NOT_RUN, Verdict.NOT_TESTABLE]) & (lines["profile"] == line.profile)]
    for check, column in ELSEWHERE.items():  # another protocol or network on the same data, or what decides on others
        alike = (run["decides"] == "yes") if column == "dataset" else (run["dataset"] == line.dataset)
        words = run.loc[alike & (run[column] != getattr(line, column)), "verdict"]
        kept[check] = None if words.empty else bool((words == line.verdict).all())
    return {check: "" if kept[check] is None else "yes" if kept[check] else "no" for check in CHECKS}


def _without(effects: np.ndarray) -> np.ndarray | None:
    """(draws, n - 2) the effects without any two seeds."""
    if len(effects) < 2 * LEFT_OUT:
        return None
    kept = itertools.combinations(range(len(effects)), len(effects) - LEFT_OUT)
    return effects[np.array([*kept])]


def _widened(comparison: Comparison) -> np.ndarray | None:
    """(1, n) effects of the same mean, whose standard error is that over seeds and classes together."""
    bounds, effects = np.array(comparison.classes), comparison.effects
    if len(effects) < 2 or not np.isfinite(bounds).all():
        return None
    low, high = np.log1p(bounds / 100) if comparison.part.relative else bounds
    over_seeds, over_classes = effects.std(ddof=1) / math.sqrt(len(effects)), (high - low) / (2 * 1.96)
    if not over_seeds > 0:
        return None
    return (effects.mean() + (effects - effects.mean()) * math.hypot(1, over_classes / over_seeds))[None]


def _keep(
    changed: Sequence[np.ndarray], comparisons: Sequence[Comparison], test: ClaimTest, holm: float, word: str
) -> bool:
    """Whether the verdict is `word` with all changed effects of the comparisons, each (draws, n); holm: by how much
    Holm's adjustment multiplied the p of the claim."""
    draws = max(map(len, changed))
    # comparisons of fewer seeds have fewer draws: each of theirs stands beside several
    effects = [np.resize(each, (draws, each.shape[-1])) for each in changed]
    p = [p_of(one.part, each) for one, each in zip(comparisons, effects)]
    outcomes = [np.full(draws, OPEN) if one.reason else reached(of) for one, of in zip(comparisons, p)]
    adjusted = {name: np.minimum(1, holm * value) for name, value in p_of_claim(comparisons, p).items()}
    words = decided(np.stack(outcomes, -1), adjusted[SUPPORTED], adjusted[CONTRADICTED], test.universal)
    return bool((words == word).all())
