"""The one judge: what numbers allow to be said of a claim. Sentences, findings, pages and the ledger are made from it.

A claim is judged once per context (profile, data set, network, dimension, protocol); on each data set one context
decides. The words of a verdict are those of VERDICTS and no others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.analysis import claims, tables
from experiments.analysis.claims import (
    AS_CLAIMED,
    NO_DIFFERENCE,
    OTHER_WAY,
    OUTCOMES,
    ClaimTest,
    Equivalence,
    Exact,
    Parity,
)
from experiments.analysis.comparing import COST, FAILURES, UNCLEAR, Comparison, Found, compared_everywhere
from experiments.analysis.sentences import Judged
from experiments.analysis.statistics import LEVEL, detectable_effect, holm, seeds_that_decide

IDENTITY, UNTESTABLE, NOT_RUN = "by construction", "cannot be tested here", "not run"
VERDICTS = (*OUTCOMES, UNCLEAR, FAILURES, IDENTITY, COST, UNTESTABLE, NOT_RUN)
# of several lines of one claim the first of these is its verdict
FIRST = (OTHER_WAY, NO_DIFFERENCE, NOT_RUN, FAILURES, UNCLEAR, AS_CLAIMED, COST, IDENTITY, UNTESTABLE)

_NUMBERS = ("effect", "low", "high", "zero", "detectable", "seeds_needed", "class_low", "class_high")
_SHOWN = ("comparison", "metric", *_NUMBERS, "interval", "unit", "n", "values", "required", "tuned", "compared")
_WHERE = (*tables.CONTEXT, "device", "p")
_OF_TEST = ("claim_id", "untested_parts", "changed", "notebook")
_LINE = (*_OF_TEST, "verdict", "reason", "direction", "role", *_SHOWN, *_WHERE, "p_holm")
_COMPARISON = ("claim_id", "reading", *_SHOWN, "outcome", "why", "premise", *_WHERE, "of_dataset")
_WITHOUT_IMAGES = {"dataset": tables.SYNTHETIC, "backbone": "", "dim": "", "protocol": ""}

NOT_SHOWN = "not shown: "  # how the reason begins where a premise speaks against a claim


def judge(
    table: pd.DataFrame,
    tests: Mapping[str, ClaimTest],
    claim_ids: Iterable[str] | None = None,
    *,
    hits: pd.DataFrame | None = None,
    trials: Mapping[str, int] | None = None,
    device: str = "",
) -> Judged:
    """Judge claims of one paper.

    Comparisons are of per-seed effects, paired by seed, with Student's t. The outcome of a comparison is
      as claimed     if the 95 % interval lies on the claimed side of zero and the mean reaches the smallest effect that
                     counts; of an equivalence, if two one-sided tests put it within the margin;
      the other way  if the same holds of the other side; of an equivalence, if the interval lies outside the margin;
      no difference  if two one-sided tests put it within the smallest effect that counts;
      unclear        else, and whenever there are fewer than five seeds (a value that no seed changes is one value), at
                     profile quick, where a range was measured in part, on a network that the claim is not about, where
                     two methods were not tuned alike, and where what the outcome needs has not learned.
    Learned: the gain of the same seed over the network it began with (START; its features, which lie above, where that
    is not on record) has a 95 % interval above zero, on the claim's retrieval metric or MAP@R. "As claimed" needs it of
    both sides (but see `Part.may_fail`), "no difference" of both, "the other way" of the side that is ahead.

    Of several comparisons: if one is the other way so is the claim, else if rows are missing it is not run, else if in
    one there is no difference so it is of the claim, else if one is of two failures the claim "compares failures", else
    if one is unclear so is the claim, else it is as claimed. Exact statements hold or fail by every row; ratios of
    times are "cost on this device", with what was found as the reason.

    Each outcome survives Holm's adjustment of its own over all claims of the paper on a data set and network, those not
    in this call counting as 1. The p of "as claimed" is the largest of the comparisons, that of the others the smallest
    times their number. Where a claim's sentence can be read in several ways that come out differently it is unclear.

    Args:
        table: tidy results; several experiments, data sets or profiles give a line each.
        tests: all tests of one paper by claim id, e.g. papers.pfml.claims.TESTS.
        claim_ids: which of them are judged, e.g. ["pfml-01", "pfml-02"]; None: all.
        hits: counts by class, as `results.hits` makes them of the table's runs. A comparison on R@1 or P@1 then also
            gets a sensitivity interval from resampling the test classes (class_low, class_high): how far other classes
            could move it while the trained networks stay. It decides nothing.
        trials: by method, how many trials of the search chose its settings; methods not named: none.
        device: on what the runs were trained and timed, for the tables only.

    Raises:
        ValueError: an unknown claim id, a table that lacks columns or holds two values for one run, or hits that lack
            columns.
    """
    claim_ids = list(tests if claim_ids is None else claim_ids)
    unknown = [claim_id for claim_id in claim_ids if claim_id not in tests]
    if unknown:
        raise ValueError(f"claim_ids: no test is stated for {unknown}; stated: {', '.join(tests)}")
    rows = tables.final_rows(table)
    resampled = {} if hits is None else _resampled(hits)
    findings = [
        finding
        for claim_id in claim_ids
        for finding in compared_everywhere(tests[claim_id], rows, resampled, dict(trials or {}))
    ]
    family = sum(any(not isinstance(part, Exact) for part in test.parts) for test in tests.values())
    lines = [_line(finding, p, family) for finding, p in zip(findings, adjusted(findings, family))]
    compared = [_row(finding, comparison, family) for finding in findings for comparison in finding.comparisons]
    verdicts, comparisons = pd.DataFrame(lines, columns=[*_LINE]), pd.DataFrame(compared, columns=[*_COMPARISON])
    return Judged(verdicts.assign(device=device), comparisons.assign(device=device))


def _resampled(hits: pd.DataFrame) -> dict[tuple, tables.Cells]:
    """Context -> cells under resampled test classes."""
    missing = [name for name in tables.HITS if name not in hits.columns]
    if missing:
        raise ValueError(f"hits lacks the columns {missing}; `results.hits` gives {tables.HITS}")
    return {context: tables.resampled_cells(group) for context, group in hits.groupby(tables.CONTEXT)}


# --- from comparisons to a verdict ------------------------------------------------------------------------------------


def adjusted(findings: Sequence[Found], family: int) -> list[dict[str, float]]:
    """Outcome -> p after Holm, of every claim and context; a family is a paper on one data set and network.

    family: how many claims of the paper have a p.
    """
    contexts = [tuple(finding.context.get(name, "") for name in tables.CONTEXT[1:]) for finding in findings]
    after: list[dict[str, float]] = [{} for _ in findings]
    for context in dict.fromkeys(contexts):
        together = [i for i, other in enumerate(contexts) if other == context]
        for outcome in OUTCOMES:
            p_values = holm([findings[i].p(outcome) for i in together], max(family, len(together)))
            for i, p in zip(together, p_values):
                after[i][outcome] = float(p)
    return after


def verdict(finding: Found, p: Mapping[str, float]) -> tuple[str, str]:
    """(one of VERDICTS, why) of a claim in a context; p: outcome -> p after Holm."""
    word, why = _outcome(finding, p)
    parts = [comparison.part for comparison in finding.comparisons]
    exact = [part for part in parts if isinstance(part, Exact)]
    if word in OUTCOMES and {part.about for part in parts if not part.premise} == {"cost"}:
        word, why = COST, "; ".join(filter(None, (word, why)))
    elif word == AS_CLAIMED and exact and all(part.identity for part in exact):
        word = IDENTITY
    return word, why


def _outcome(finding: Found, p: Mapping[str, float]) -> tuple[str, str]:
    """What the comparisons say, and why: the first of these that is so."""
    claimed = finding.said
    unshown = [
        comparison
        for comparison in finding.deciding
        if comparison.part.premise and comparison.possible(AS_CLAIMED) >= LEVEL
    ]
    against = [premise for premise in unshown if not premise.obstacle]
    open_ones = [comparison for comparison in claimed if comparison.possible(AS_CLAIMED) >= LEVEL]
    failures = [comparison for comparison in claimed if comparison.failures]
    refuted = any(
        isinstance(comparison.part, Exact) and comparison.possible(OTHER_WAY) < LEVEL for comparison in claimed
    )

    several = len({comparison.part.metric for comparison in claimed}) > 1

    def names(comparisons: Iterable[Comparison]) -> str:
        """Each once; of a claim with several metrics with its own."""
        metrics: dict[str, list[str]] = {}
        for comparison in comparisons:
            metrics.setdefault(comparison.said, []).append(comparison.part.metric)
        return ", ".join(
            f"{name} ({', '.join(dict.fromkeys(of))})" if several else name for name, of in metrics.items()
        )

    alike: dict[str, list[Comparison]] = {}
    for comparison in open_ones:
        alike.setdefault(comparison.obstacle or _why_unclear(comparison), []).append(comparison)
    reasons = (why if those[0].obstacle else f"{names(those)}: {why}" for why, those in alike.items())

    def reached(outcome: str) -> str:
        """Those that reach an outcome after the adjustment that the claim's own p had."""
        before = finding.p(outcome)
        adjustment = max(len(finding.tested), 1) * (p[outcome] / before if before > 0 else 1.0)
        reaching = (comparison for comparison in claimed if comparison.possible(outcome) * adjustment < LEVEL)
        return names(reaching) if len(claimed) > 1 else ""

    ways: tuple[tuple[str, object, str], ...] = (
        (UNTESTABLE, not finding.test.parts, finding.test.untested_parts),
        (OTHER_WAY, refuted or (p[OTHER_WAY] < LEVEL and not unshown), reached(OTHER_WAY)),
        (NOT_RUN, finding.missing, "no rows for " + "; ".join(finding.missing)),
        (UNCLEAR, against, NOT_SHOWN + "; ".join(f"{x.said} {x.part.metric}, {x.part.required}" for x in against)),
        (UNCLEAR, unshown, "; ".join(dict.fromkeys(premise.obstacle for premise in unshown))),
        (NO_DIFFERENCE, p[NO_DIFFERENCE] < LEVEL, reached(NO_DIFFERENCE)),
        (FAILURES, failures, "not learned: " + names(failures)),
        (UNCLEAR, open_ones, "; ".join(reasons)),
        (UNCLEAR, p[AS_CLAIMED] >= LEVEL, "as claimed, but not after Holm"),
        (AS_CLAIMED, True, ""),
    )
    return next((word, why) for word, so, why in ways if so)


def _why_unclear(comparison: Comparison) -> str:
    part, estimate, zero = comparison.part, comparison.estimate, comparison.baseline.zero
    likely = [outcome for outcome in (OTHER_WAY, NO_DIFFERENCE) if comparison.possible(outcome) < LEVEL]
    if likely:
        why = f"{likely[0]}, but not after Holm"
    elif isinstance(part, Equivalence):
        why = f"not shown to lie {part.required}"
    else:
        why = f"not told from the {part.size} that count" if estimate.excludes(zero) else "not told apart"
    return why


def of_lines(lines: pd.DataFrame, test: ClaimTest) -> str:
    """A claim's verdict over the lines that it rests on."""
    words = set(lines["verdict"]) if test.parts else {UNTESTABLE}
    measured = any(part.about in ("training", "features") for part in test.parts)
    if measured and lines["dataset"].isin(["", tables.SYNTHETIC]).all():
        words.add(NOT_RUN)
    return next((word for word in FIRST if word in words), NOT_RUN)


# --- tables of verdicts -----------------------------------------------------------------------------------------------


def role(test: ClaimTest, context: Mapping) -> str:
    """ "named" where the claim names the data set, or needs none; "further" data else."""
    dataset = context.get("dataset", "")
    named = dataset in ("", tables.SYNTHETIC) or claims.short_name(dataset) in claims.named(test.claim_id)
    return "named" if named else "further"


def _line(finding: Found, p: Mapping[str, float], family: int) -> dict[str, Any]:
    test, comparisons = finding.test, finding.said or finding.comparisons
    word, reason = verdict(finding, p)
    line: dict[str, Any] = dict.fromkeys(_LINE, "") | dict.fromkeys((*_NUMBERS, "p", "p_holm"), math.nan)
    line |= {name: getattr(test, name) for name in _OF_TEST} | finding.context
    line |= {"n": 0, "verdict": word, "reason": reason, "role": role(test, finding.context) if test.parts else ""}
    if not comparisons:
        return line
    # what the readings that do not decide would say; in Holm's adjustment the other claims count as 1
    others = {name: finding.read(name) for name in finding.readings[1:]}
    read = {name: _outcome(other, *adjusted([other], family))[0] for name, other in others.items()}
    if word in OUTCOMES and any(other in OUTCOMES and other != word for other in read.values()):
        reason, word = f"depends on the reading: as “{finding.readings[0]}” {word}", UNCLEAR
    line |= {"verdict": word}
    line["reason"] = "; ".join(filter(None, (reason, *(f"read as “{name}”: {other}" for name, other in read.items()))))
    agree = sum(comparison.as_claimed for comparison in comparisons)
    whole = {len(comparisons): "as claimed", 0: "not as claimed"}
    weakest = _weakest(comparisons, word)
    line |= _shown(weakest, finding, family) | {
        "direction": whole.get(agree, f"{agree} of {len(comparisons)} as claimed")
    }
    line["tuned"] = min({comparison.tuned for comparison in comparisons} - {""}, default="")  # "no" where one is
    if word != UNCLEAR:
        line["seeds_needed"] = math.nan
    outcome = word if word in OUTCOMES else AS_CLAIMED
    return line | {"p": finding.p(outcome), "p_holm": p[outcome]}


def _weakest(comparisons: Sequence[Comparison], word: str) -> Comparison:
    """The comparison that a line shows: that which decides, or which speaks least for the claim, or most against it."""
    decisive = [comparison for comparison in comparisons if comparison.outcome == word]
    if word in (OTHER_WAY, NO_DIFFERENCE) and decisive:
        return min(decisive, key=lambda comparison: comparison.possible(word))
    candidates = [comparison for comparison in comparisons if comparison.outcome != AS_CLAIMED] or list(comparisons)

    def against(comparison: Comparison) -> tuple[bool, float, float]:
        other = min(comparison.possible(OTHER_WAY), comparison.possible(NO_DIFFERENCE))
        return not comparison.as_claimed, comparison.p.get(AS_CLAIMED, 1.0), -other

    return max(candidates, key=against)


def _row(finding: Found, comparison: Comparison, family: int) -> dict[str, Any]:
    part, outcome = comparison.part, comparison.outcome
    return (
        {"claim_id": finding.test.claim_id, "reading": part.reading, "premise": part.premise}
        | {"outcome": outcome, "why": comparison.obstacle, "of_dataset": finding.context.get("dataset", "")}
        | {"p": comparison.p.get(outcome, comparison.p.get(AS_CLAIMED, math.nan))}
        | _shown(comparison, finding, family)
    )


def _shown(comparison: Comparison, finding: Found, family: int) -> dict[str, Any]:
    """What both tables show of a comparison. What n seeds can detect, and how many would decide, is after Holm."""
    estimate, part, few = comparison.estimate, comparison.part, comparison.few
    shown = {name: getattr(estimate, name) for name in ("effect", "low", "high", "n")}
    shown |= {"comparison": comparison.name, "compared": comparison, "zero": comparison.baseline.zero}
    shown |= {name: getattr(part, name) for name in ("metric", "unit", "required", "interval")}
    shown["values"] = " and ".join(f"{value:+.3g}" for value in comparison.singles)
    if few:  # single values have no interval
        shown |= {"low": math.nan, "high": math.nan}
    shown |= dict(zip(("class_low", "class_high"), comparison.classes)) | {"tuned": comparison.tuned}
    shown |= {"detectable": math.nan, "seeds_needed": math.nan}
    if not isinstance(part, (Exact, Parity)) and not few:
        level = LEVEL / max(family, 1)
        effect, sd = comparison.effects.mean(), comparison.effects.std(ddof=1)  # logarithms where relative
        if not isinstance(part, Equivalence):
            detectable = detectable_effect(estimate.n, sd, level, part.counts)
            shown["detectable"] = 100 * abs(math.expm1(part.sign * detectable)) if part.relative else detectable
        if not comparison.obstacle and part.about != "features":  # of what no seed draws, classes take their place
            if not comparison.as_claimed:  # one of them is enough for another outcome
                level /= len(finding.tested)
            equivalence = isinstance(part, Equivalence)
            counts = part.within if equivalence else part.counts
            shown["seeds_needed"] = seeds_that_decide(effect, sd, level, counts, equivalence=equivalence)
    return finding.context | (_WITHOUT_IMAGES if comparison.without_images else {}) | shown
