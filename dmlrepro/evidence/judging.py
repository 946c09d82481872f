"""The one judge: what numbers allow to be said of a claim. Sentences, findings, pages and the ledger are made from it.

A claim is judged once per context (profile, data set, network, dimension, protocol); on each data set one context
decides. The words of a verdict are those of VERDICTS and no others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from dmlrepro.evidence import claims, tables
from dmlrepro.evidence.claims import ClaimTest
from dmlrepro.evidence.comparing import (
    AS_CLAIMED,
    COST,
    FAILURES,
    IDENTITY,
    NO_DIFFERENCE,
    NOT_RUN,
    OTHER_WAY,
    OUTCOMES,
    UNCLEAR,
    UNTESTABLE,
    VERDICTS,
    Comparison,
    Found,
    compared_everywhere,
    zero_of,
)
from dmlrepro.evidence.sentences import Judged
from dmlrepro.evidence.statistics import LEVEL, MIN_SEEDS, detectable_effect, holm, seeds_that_decide

__all__ = ["VERDICTS", "Judged", "adjusted", "judge", "role", "verdict"]
_SHOWN = ("comparison", "metric", "effect", "low", "high", "interval", "unit", "n", "values", "required")
_MORE = ("detectable", "seeds_needed", "class_low", "class_high", "tuned")
_LINE = (
    *("claim_id", "verdict", "reason", "direction", "role"),
    *_SHOWN,
    *(*tables.CONTEXT, "device"),
    *("p", "p_holm", *_MORE, "untested_parts", "changed", "notebook"),
)
_COMPARISON = (
    *("claim_id", "reading", *_SHOWN, "outcome", "why", "premise"),
    *(*tables.CONTEXT, "device"),
    *("p", *_MORE, "of_dataset"),
)


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
    times their number.

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
    found = [
        each
        for claim_id in claim_ids
        for each in compared_everywhere(tests[claim_id], rows, resampled, dict(trials or {}))
    ]
    family = sum(any(part.kind != "exact" for part in test.parts) for test in tests.values())
    verdicts = pd.DataFrame([_line(*each, family) for each in zip(found, adjusted(found, family))], columns=[*_LINE])
    compared = [_comparison_row(each, comparison, family) for each in found for comparison in each.comparisons]
    comparisons = pd.DataFrame(compared, columns=[*_COMPARISON])
    return Judged(verdicts.assign(device=device), comparisons.assign(device=device))


def _resampled(hits: pd.DataFrame) -> dict[tuple, tables.Cells]:
    """Context -> cells under resampled test classes."""
    missing = [name for name in tables.HITS if name not in hits.columns]
    if missing:
        raise ValueError(f"hits lacks the columns {missing}; `results.hits` gives {tables.HITS}")
    return {context: tables.resampled_cells(group) for context, group in hits.groupby(tables.CONTEXT)}


# --- from comparisons to a verdict ------------------------------------------------------------------------------------


def adjusted(found: Sequence[Found], family: int) -> list[dict[str, float]]:
    """Outcome -> p after Holm, of every claim and context; a family is a paper on one data set and network.

    family: how many claims of the paper have a p.
    """
    contexts = [tuple(each.context.get(name, "") for name in tables.CONTEXT[1:]) for each in found]
    after: list[dict[str, float]] = [{} for _ in found]
    for context in dict.fromkeys(contexts):
        together = [i for i, each in enumerate(contexts) if each == context]
        for outcome in OUTCOMES:
            p_values = holm([found[i].p(outcome) for i in together], max(family, len(together)))
            for i, p in zip(together, p_values):
                after[i][outcome] = float(p)
    return after


def verdict(found: Found, p: Mapping[str, float]) -> tuple[str, str]:
    """(one of VERDICTS, why) of a claim in a context; p: outcome -> p after Holm."""
    word, why = _outcome(found, p)
    about = {each.part.about for each in found.comparisons if not each.part.premise}
    if word in OUTCOMES and about == {"cost"}:
        return COST, "; ".join(filter(None, (word, why)))
    if word == AS_CLAIMED and all(each.part.identity for each in found.comparisons if each.part.kind == "exact"):
        exact = [each for each in found.comparisons if each.part.kind == "exact"]
        return (IDENTITY, why) if exact else (word, why)
    return word, why


def _outcome(found: Found, p: Mapping[str, float]) -> tuple[str, str]:
    comparisons = found.deciding
    unshown = [each for each in comparisons if each.part.premise and each.possible(AS_CLAIMED) >= LEVEL]
    said = [each for each in comparisons if not each.part.premise]

    def names(outcome: str) -> str:
        reached = [each for each in said if each.possible(outcome) < LEVEL]
        return "; ".join(dict.fromkeys(each.estimate.name for each in reached)) if len(said) > 1 else ""

    disobeyed = [each for each in said if each.part.kind == "exact" and each.possible(OTHER_WAY) < LEVEL]
    decided = [name for name in (OTHER_WAY, NO_DIFFERENCE) if p.get(name, 1.0) < LEVEL]
    if disobeyed or (decided and OTHER_WAY in decided and not unshown):
        return OTHER_WAY, names(OTHER_WAY)
    if found.missing:
        return NOT_RUN, "no rows for " + "; ".join(found.missing)
    if unshown:
        premises = [f"{each.estimate.name} {each.part.metric}, {each.part.required}" for each in unshown]
        return UNCLEAR, "not shown: " + "; ".join(premises)
    if decided:
        return NO_DIFFERENCE, names(NO_DIFFERENCE)
    if failures := [each for each in said if each.failures]:
        return FAILURES, "not learned: " + "; ".join(dict.fromkeys(each.estimate.name for each in failures))
    opens = [each for each in said if each.possible(AS_CLAIMED) >= LEVEL]
    if opens:
        reasons = [each.obstacle or _why_unclear(each) for each in opens]
        return UNCLEAR, "; ".join(dict.fromkeys(reasons))
    if p.get(AS_CLAIMED, 0.0) >= LEVEL:
        return UNCLEAR, "as claimed, but not after Holm"
    return AS_CLAIMED, ""


def _why_unclear(comparison: Comparison) -> str:
    part, name = comparison.part, comparison.estimate.name
    if comparison.possible(OTHER_WAY) < LEVEL:
        return f"{name}: the other way, but not after Holm"
    if comparison.possible(NO_DIFFERENCE) < LEVEL:
        return f"{name}: no difference, but not after Holm"
    if part.kind == "equivalence":
        return f"{name}: not shown to lie within {part.margin:g}{part.unit}"
    low, high = comparison.estimate.low, comparison.estimate.high
    if low > zero_of(part) or high < zero_of(part):
        return f"{name}: not told from the {part.smallest_effect:g}{part.unit} that count"
    return f"{name}: not told apart"


def role(test: ClaimTest, context: Mapping) -> str:
    """ "named" where the claim names the data set, or needs none; "further" data else."""
    dataset = context.get("dataset", "")
    named = dataset in ("", tables.SYNTHETIC) or claims.short_name(dataset) in claims.named(test.claim_id)
    return "named" if named else "further"


def _line(found: Found, p: Mapping[str, float], family: int) -> dict:
    test, judged = found.test, found.comparisons
    line: dict[str, Any] = dict.fromkeys(_LINE, "") | dict.fromkeys(("p", "p_holm"), math.nan) | {"n": 0}
    line |= dict.fromkeys(("effect", "low", "high", *(name for name in _MORE if name != "tuned")), math.nan)
    line |= {name: getattr(test, name) for name in ("claim_id", "untested_parts", "changed", "notebook")}
    if not test.parts:
        return line | {"verdict": UNTESTABLE, "reason": test.untested_parts}
    line |= found.context | {"role": role(test, found.context)}
    line["verdict"], line["reason"] = verdict(found, p)
    if not judged:
        return line
    line["reason"] = "; ".join(filter(None, (line["reason"], *_other_readings(found, family))))
    said = [each for each in found.deciding if not each.part.premise] or list(judged)
    agree = sum(each.as_claimed for each in said)
    whole = {len(said): "as claimed", 0: "not as claimed"}
    weakest = _weakest(said, line["verdict"])
    line |= {"direction": whole.get(agree, f"{agree} of {len(said)} as claimed")} | _shown(weakest, found, family)
    tuned = {each.tuned for each in said} - {""}
    line["tuned"] = "" if not tuned else "no" if "no" in tuned else "yes"
    if line["verdict"] != UNCLEAR:
        line["seeds_needed"] = math.nan
    if weakest.without_images:
        line |= _WITHOUT_IMAGES
    outcome = line["verdict"] if line["verdict"] in OUTCOMES else AS_CLAIMED
    return line | {"p": found.p(outcome), "p_holm": p.get(outcome, math.nan)}


def _other_readings(found: Found, family: int) -> Iterator[str]:
    """What the readings that do not decide would say; in Holm's adjustment the other claims count as 1."""
    readings = list(dict.fromkeys(each.part.reading for each in found.comparisons if each.part.reading))
    for reading in readings[1:]:
        parts = [each for each in found.comparisons if each.part.reading in ("", reading)]
        read = replace(found, comparisons=tuple(parts))
        yield f"read as “{reading}”: {_outcome(read, adjusted([read], family)[0])[0]}"


def _weakest(said: Sequence[Comparison], word: str) -> Comparison:
    """The comparison that a line shows: that which decides, or which speaks least for the claim."""
    decisive = [each for each in said if each.outcome == word]
    if word in (OTHER_WAY, NO_DIFFERENCE) and decisive:
        return min(decisive, key=lambda each: each.possible(word))
    candidates = [each for each in said if each.outcome != AS_CLAIMED] or list(said)
    return max(candidates, key=lambda each: (not each.as_claimed, each.p.get(AS_CLAIMED, 1.0)))


_WITHOUT_IMAGES = {"dataset": tables.SYNTHETIC, "backbone": "", "dim": "", "protocol": ""}


def _shown(comparison: Comparison, found: Found, family: int) -> dict:
    """What both tables show of a comparison. What n seeds can detect, and how many would decide, is after Holm."""
    estimate, part = comparison.estimate, comparison.part
    shown = {name: getattr(estimate, name) for name in ("effect", "low", "high", "n")}
    few = estimate.n < MIN_SEEDS and part.kind != "exact"
    shown["values"] = " and ".join(f"{value:+.3g}" for value in comparison.values) if few else ""
    if few:  # single values have no interval
        shown |= {"low": math.nan, "high": math.nan}
    shown |= {"comparison": estimate.name, "metric": part.metric, "unit": part.unit, "required": part.required}
    shown["interval"] = {"exact": "range", "equivalence": "90 %"}.get(part.kind, "95 %")
    shown |= {"detectable": math.nan, "seeds_needed": math.nan, "tuned": comparison.tuned}
    shown["class_low"], shown["class_high"] = comparison.classes
    if part.kind in ("difference", "trend") and estimate.n >= MIN_SEEDS:
        level = LEVEL / max(family, 1)
        shown["detectable"] = detectable_effect(estimate.n, estimate.sd, level, part.smallest_effect)
        if not comparison.obstacle:
            effect = estimate.effect - zero_of(part)
            level /= len(found.tested)
            shown["seeds_needed"] = seeds_that_decide(effect, estimate.sd, level, part.smallest_effect)
    return shown


def _comparison_row(found: Found, comparison: Comparison, family: int) -> dict:
    where = found.context | (_WITHOUT_IMAGES if comparison.without_images else {})
    part = comparison.part
    return (
        {"claim_id": found.test.claim_id, "reading": part.reading, "outcome": comparison.outcome}
        | {"premise": part.premise, "why": comparison.obstacle, "of_dataset": found.context.get("dataset", "")}
        | {"p": comparison.p.get(comparison.outcome, comparison.p.get(AS_CLAIMED, math.nan))}
        | where
        | _shown(comparison, found, family)
    )
