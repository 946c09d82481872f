"""The one judge: what numbers allow to be said of a claim. Tables, pages and the ledger are made from it.

A claim is judged once per context (profile, data set, network, dimension, protocol); on each data set one context
decides. The words of a verdict are those of Verdict and no others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import claims, tables
from experiments.analysis.claims import FEATURES, START, ClaimTest
from experiments.analysis.comparing import (
    NOT_INTERPRETABLE,
    NOT_RUN,
    ClaimResult,
    Comparison,
    Environments,
    Reason,
    compared_everywhere,
)
from experiments.analysis.statistics import (
    CONTRADICTED,
    EQUIVALENT,
    LEVEL,
    OPEN,
    SUPPORTED,
    detectable_effect,
    holm,
)
from experiments.analysis.verdict_tables import Judged


class Verdict(StrEnum):
    """What is said of a claim."""

    SUPPORTED = SUPPORTED
    IN_PART = "supported in part"
    MIXED = "mixed"
    EQUIVALENT = EQUIVALENT
    CONTRADICTED = CONTRADICTED
    INCONCLUSIVE = "inconclusive"
    NOT_INTERPRETABLE = "not interpretable"
    BY_DEFINITION = "true by definition"
    MEASURED = "measured"
    NOT_TESTABLE = "not testable"
    NOT_RUN = "not run"


DECIDED = (Verdict.SUPPORTED, Verdict.IN_PART, Verdict.MIXED, Verdict.EQUIVALENT, Verdict.CONTRADICTED)

_NUMBERS = ("effect", "low", "high", "zero", "detectable", "class_low", "class_high")
_SHOWN = ("comparison", "metric", *_NUMBERS, "interval", "unit", "seeds", "values", "required", "tuned", "mixes")
_SHOWN = (*_SHOWN, "compared")
_WHERE = (*tables.CONTEXT, "device", "p")
_OF_TEST = ("claim_id", "notebook", "universal", "ingredient", "revised", "untested_parts")
_LINE = (*_OF_TEST, "verdict", "k", "n", "reason", "detail", "role", "contradicted", *_SHOWN, *_WHERE, "p_holm")
_COMPARISON = ("claim_id", "outcome", "reason", "decides", "interpretation", *_SHOWN, *_WHERE, "of_dataset")


def judge(
    table: pd.DataFrame,
    tests: Mapping[str, ClaimTest],
    claim_ids: Iterable[str] | None = None,
    *,
    hits: pd.DataFrame | None = None,
    trials: Mapping[str, int] | None = None,
    device: str = "",
    pretrained: bool = True,
    environments: Environments | None = None,
) -> Judged:
    """Judge claims of one paper.

    Comparisons are of per-seed effects, paired by seed; the outcome of each is that of its kind, see `statistics`. It
    is open where something stands in its way, see `comparing.Reason`. The verdict of a claim is `verdict`; *supported*
    and *contradicted* need p < 5 % after Holm's adjustment of their own over all claims of the paper on a data set and
    network, those not in this call counting as 1.

    Args:
        table: tidy results; several experiments, data sets or profiles give a line each.
        tests: all tests of one paper by claim id, e.g. papers.pfml.claims.TESTS.
        claim_ids: which of them are judged, e.g. ["pfml-01", "pfml-02"]; None: all.
        hits: counts by class, as `results.hits` makes them of the table's runs. A comparison on R@1 or P@1 then also
            gets a sensitivity interval from resampling the test classes (class_low, class_high): how far other classes
            could move it while the trained networks stay. It decides nothing.
        trials: by method, how many trials of the search chose its settings; methods not named: none.
        device: on what the runs were trained and timed, for the tables only.
        pretrained: whether the networks were; if not, the initial network takes the place of the pretrained features.
        environments: of the lines of the runs; comparisons that mix devices or fingerprints are marked.

    Raises:
        ValueError: an unknown claim id, a table that lacks columns or holds two values for one run, or hits that lack
            columns.
    """
    claim_ids = list(tests if claim_ids is None else claim_ids)
    unknown = [claim_id for claim_id in claim_ids if claim_id not in tests]
    if unknown:
        raise ValueError(f"claim_ids: no test is stated for {unknown}; stated: {', '.join(tests)}")
    rows, floor = tables.final_rows(table), FEATURES if pretrained else START
    resampled = {} if hits is None else _resampled(hits)
    how = (resampled, dict(trials or {}), dict(environments or {}), floor)
    results = [result for claim_id in claim_ids for result in compared_everywhere(tests[claim_id], rows, *how)]
    family = sum(any(not part.by_rows for part in test.deciding) for test in tests.values())
    lines = [_line(result, p, family) for result, p in zip(results, adjusted(results, family))]
    compared = [_row(result, comparison, family) for result in results for comparison in result.comparisons]
    verdicts, comparisons = pd.DataFrame(lines, columns=[*_LINE]), pd.DataFrame(compared, columns=[*_COMPARISON])
    return Judged(verdicts.assign(device=device), comparisons.assign(device=device))


def _resampled(hits: pd.DataFrame) -> dict[tuple, tables.Cells]:
    """Context -> cells under resampled test classes."""
    missing = [name for name in tables.HITS if name not in hits.columns]
    if missing:
        raise ValueError(f"hits lacks the columns {missing}; `results.hits` gives {tables.HITS}")
    return {context: tables.resampled_cells(group) for context, group in hits.groupby(tables.CONTEXT)}


# --- from comparisons to a verdict ------------------------------------------------------------------------------------


def adjusted(results: Sequence[ClaimResult], family: int) -> list[dict[str, float]]:
    """Outcome -> p after Holm, of every claim and context; a family is a paper on one data set and network.

    family: how many claims of the paper have a p.
    """
    contexts = [tuple(result.context.get(name, "") for name in tables.CONTEXT[1:]) for result in results]
    after: list[dict[str, float]] = [{} for _ in results]
    for context in dict.fromkeys(contexts):
        together = [i for i, other in enumerate(contexts) if other == context]
        for outcome in (SUPPORTED, CONTRADICTED):
            p_values = holm([results[i].p(outcome) for i in together], max(family, len(together)))
            for i, p in zip(together, p_values):
                after[i][outcome] = float(p)
    return after


def decided(outcomes: np.ndarray, p_supported: np.ndarray, p_contradicted: np.ndarray, universal: bool) -> np.ndarray:
    """The verdict (...) of a claim from the outcomes (..., n) of its comparisons and its p (...) after Holm; NaN where
    nothing was adjusted. Rules 3 to 5 of design.md, the first that fits."""
    k, contradicted, equivalent = ((outcomes == word).sum(-1) for word in (SUPPORTED, CONTRADICTED, EQUIVALENT))
    n = outcomes.shape[-1]
    refuted = (contradicted > 0) & ((k == 0) | universal)
    rules = (
        ((k == n) & ~(p_supported >= LEVEL), Verdict.SUPPORTED),
        (refuted & ~(p_contradicted >= LEVEL), Verdict.CONTRADICTED),
        ((k == n) | refuted, Verdict.INCONCLUSIVE),  # not after Holm
        ((k > 0) & (contradicted + equivalent > 0), Verdict.MIXED),
        (k > 0, Verdict.IN_PART),
        (2 * equivalent >= n, Verdict.EQUIVALENT),
    )
    return np.select([so for so, _ in rules], [str(word) for _, word in rules], str(Verdict.INCONCLUSIVE))


def verdict(result: ClaimResult, p: Mapping[str, float]) -> tuple[Verdict, Reason | str, list[Comparison]]:
    """(the verdict, its reason, the comparisons that the reason is about) of a claim in a context; p: outcome -> p
    after Holm. The first rule that fits decides."""
    test, deciding = result.test, result.deciding

    def with_reason(reasons: Sequence[Reason]) -> list[Comparison]:
        return [comparison for comparison in deciding if comparison.reason in reasons]

    supported = result.count(SUPPORTED) == len(deciding)
    of_cost, of_identity = (
        all(map(of, deciding)) for of in (lambda one: one.part.about == "cost", lambda one: one.part.identity)
    )
    unmet = [one for one in result.comparisons if one.part.precondition and one.outcome != SUPPORTED]
    first: tuple[tuple[Verdict, object, list[Comparison]], ...] = (
        (Verdict.NOT_TESTABLE, test.not_testable or not test.deciding, []),
        (Verdict.NOT_RUN, result.missing or not deciding, []),
        (Verdict.NOT_RUN, with_reason(NOT_RUN), with_reason(NOT_RUN)),
        (Verdict.MEASURED, of_cost, []),
        (Verdict.BY_DEFINITION, of_identity and supported, []),
        (Verdict.NOT_INTERPRETABLE, unmet, unmet),
        (Verdict.NOT_INTERPRETABLE, with_reason(NOT_INTERPRETABLE), with_reason(NOT_INTERPRETABLE)),
    )
    for word, fits, about in first:
        if fits:
            missing = Reason.ROWS if word == Verdict.NOT_RUN else ""
            return (
                word,
                Reason.PRECONDITION if about and about is unmet else about[0].reason if about else missing,
                about,
            )
    outcomes = np.array([comparison.outcome for comparison in deciding])
    p_supported, p_contradicted = (np.array(p[name]) for name in (SUPPORTED, CONTRADICTED))
    word = Verdict(str(decided(outcomes, p_supported, p_contradicted, test.universal)))
    if word != Verdict.INCONCLUSIVE:
        return word, "", [comparison for comparison in deciding if comparison.outcome == word]
    if stopped := [comparison for comparison in deciding if comparison.reason]:
        return word, stopped[0].reason, stopped
    settled = supported or CONTRADICTED in outcomes
    return word, Reason.HOLM if settled else "", [comparison for comparison in deciding if comparison.outcome == OPEN]


# --- tables of verdicts -----------------------------------------------------------------------------------------------


def role(test: ClaimTest, context: Mapping) -> str:
    """ "named" where the claim names the data set, or needs none; "out of scope" else."""
    dataset = context.get("dataset", "")
    named = dataset in ("", tables.SYNTHETIC) or claims.short_name(dataset) in claims.named(test.claim_id)
    return "named" if named else "out of scope"


def _line(result: ClaimResult, p: Mapping[str, float], family: int) -> dict[str, Any]:
    test, deciding = result.test, result.deciding
    word, reason, about = verdict(result, p)
    line: dict[str, Any] = dict.fromkeys(_LINE, "") | dict.fromkeys((*_NUMBERS, "p", "p_holm"), math.nan)
    line |= {name: getattr(test, name) for name in _OF_TEST} | result.context
    line |= {"verdict": str(word), "reason": str(reason), "role": role(test, result.context), "seeds": 0}
    detail = result.missing if reason == Reason.ROWS else dict.fromkeys(comparison.name for comparison in about)
    line["contradicted"] = tuple(one for one in deciding if one.outcome == CONTRADICTED)
    line |= {"k": result.count(SUPPORTED), "n": len(deciding), "detail": "; ".join(detail)}
    shown = deciding or result.comparisons
    if not shown:
        return line
    line |= _shown(_least_favourable(shown), result, family)
    if any(comparison.context != shown[0].context for comparison in shown):
        line |= result.context
    line["tuned"] = min({comparison.tuned for comparison in shown} - {""}, default="")  # "no" where one is
    line["mixes"] = min({comparison.mixes for comparison in shown} - {""}, default="")  # "devices" where one does
    outcome = CONTRADICTED if word == Verdict.CONTRADICTED else SUPPORTED
    return line | {"p": result.p(outcome), "p_holm": p[outcome]}


def _least_favourable(comparisons: Sequence[Comparison]) -> Comparison:
    """The comparison that a line shows: that which speaks most against the claim, or least for it."""
    order = (CONTRADICTED, EQUIVALENT, OPEN, SUPPORTED)

    def favour(comparison: Comparison) -> tuple[int, float, float]:
        p = comparison.p
        return order.index(comparison.outcome), p.get(CONTRADICTED, 1.0), -p.get(SUPPORTED, 1.0)

    return min(comparisons, key=favour)


def _row(result: ClaimResult, comparison: Comparison, family: int) -> dict[str, Any]:
    part, outcome = comparison.part, comparison.outcome
    decides = "yes" if part.decides else "control" if part.control else "precondition"
    return (
        {"claim_id": result.test.claim_id, "interpretation": part.interpretation, "decides": decides}
        | {"outcome": outcome, "reason": str(comparison.reason), "of_dataset": result.context.get("dataset", "")}
        | {"p": comparison.p.get(outcome, comparison.p[SUPPORTED])}
        | _shown(comparison, result, family)
    )


def _shown(comparison: Comparison, result: ClaimResult, family: int) -> dict[str, Any]:
    """What both tables show of a comparison. What n seeds can detect is after Holm."""
    estimate, part, few = comparison.estimate, comparison.part, comparison.few
    shown: dict[str, Any] = {"effect": estimate.effect, "low": estimate.low, "high": estimate.high, "seeds": estimate.n}
    if few:  # single values have no interval
        shown |= {"low": math.nan, "high": math.nan}
    shown |= {"comparison": comparison.name, "compared": comparison, "zero": comparison.baseline.zero}
    shown |= {name: getattr(part, name) for name in ("metric", "unit", "required")}
    shown |= {name: getattr(comparison, name) for name in ("interval", "tuned", "mixes")}
    shown["values"] = " and ".join(f"{value:+.3g}" for value in comparison.singles)
    shown |= dict(zip(("class_low", "class_high"), comparison.classes)) | {"detectable": math.nan}
    if part.kind in ("superiority", "trend") and not few:
        sd = comparison.effects.std(ddof=1)  # of logarithms where relative
        detectable = detectable_effect(estimate.n, sd, LEVEL / max(family, 1), part.sesoi)
        shown["detectable"] = 100 * abs(math.expm1(part.sign * detectable)) if part.relative else detectable
    return result.context | dict(comparison.context) | shown
