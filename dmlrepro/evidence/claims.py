"""What the test of a claim is, and the verdict our numbers allow; the tests themselves are in papers/<paper>/claims.py.

A test is plain data, written down before it is run: what is compared with what, on which metric, in which direction,
and the smallest effect that counts. Published sizes belong to the published data sets and networks, so a test asks for
a direction and for a size that counts, not for the printed number. Cells are written as in tables.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dmlrepro.evidence import tables
from dmlrepro.evidence.statistics import (
    LEVEL,
    Estimate,
    detectable_effect,
    estimated,
    holm,
    p_above,
    percentile_interval,
    tost,
)

if TYPE_CHECKING:
    import pandas as pd

MIN_SEEDS = 5
SIGN = {"higher": 1, "lower": -1}


@dataclass(frozen=True)
class Part:
    """One thing a claim says.

    kind: "difference": the subject against every baseline; "trend": the fitted change of the metric from the
        lowest to the highest level of the subject's range; "equivalence": every level of the subject within `margin`
        of the baseline; "exact": every row on the claimed side of the constant baseline, up to `margin`.
    direction: where the subject is claimed to lie, "higher" or "lower"; "flat" for an equivalence.
    smallest_effect: the least mean effect that counts, in the unit of the metric, percent when `relative`.
    judged_at_quick: exact mathematics and ratios of costs need no real images, so profile quick may judge them.
    """

    kind: str
    subject: str
    baselines: tuple[str, ...]
    metric: str
    direction: str
    smallest_effect: float = 0.0
    margin: float = 0.0
    relative: bool = False
    judged_at_quick: bool = False


@dataclass(frozen=True)
class ClaimTest:
    """The test of one claim: all its parts must hold.

    rationale: why the smallest effects and margins are what they are. untested_parts: what the claim says beyond the
    parts; without parts, why nothing is tested. protocol: only rows whose protocol contains this text; when empty,
    every protocol but MLRC.
    """

    claim_id: str
    notebook: str
    parts: tuple[Part, ...]
    rationale: str
    untested_parts: str = ""
    protocol: str = ""


def higher(subject, *baselines, by=0.5, metric="R@1", **options) -> Part:
    return Part("difference", subject, baselines, metric, "higher", smallest_effect=by, **options)


def lower(subject, *baselines, by=0.5, metric="R@1", **options) -> Part:
    return Part("difference", subject, baselines, metric, "lower", smallest_effect=by, **options)


def falling(subject, by, metric="R@1") -> Part:
    return Part("trend", subject, (), metric, "lower", smallest_effect=by)


def flat(subject, baseline, within, metric="R@1", **options) -> Part:
    return Part("equivalence", subject, (baseline,), metric, "flat", margin=within, **options)


def cheaper(subject, constant, metric="seconds_ratio") -> Part:
    return Part("difference", subject, (constant,), metric, "lower", judged_at_quick=True)


def at_most(subject, constant, metric, tolerance=0.0) -> Part:
    return Part("exact", subject, (constant,), metric, "lower", margin=tolerance, judged_at_quick=True)


def at_least(subject, constant, metric, tolerance=0.0) -> Part:
    return Part("exact", subject, (constant,), metric, "higher", margin=tolerance, judged_at_quick=True)


def drop(method, setting) -> str:
    return f"{method} - {method};{setting}"


# --- verdicts ---------------------------------------------------------------------------------------------------------

_LINE = (
    *("claim_id", "verdict", "reason", "direction", "comparison", "metric", "effect", "low", "high", "unit", "n"),
    *tables.CONTEXT,
    *("p", "p_holm", "detectable", "class_low", "class_high", "untested_parts", "notebook"),
)


def verdicts(
    table: pd.DataFrame,
    tests: Mapping[str, ClaimTest],
    claim_ids: Iterable[str] | None = None,
    *,
    hits: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Judge claims of one paper, print a line for each, return the lines as a DataFrame.

    Comparisons are of per-seed effects, paired by seed, with Student's t. A comparison
      holds  if the 95 % interval lies on the claimed side of zero and the mean reaches the smallest effect that
             counts; an equivalence, if two one-sided tests at 5 % put it within the margin; an exact statement, if
             every row obeys;
      fails  if the interval lies wholly beyond the smallest effect (the margin) on the other side, at a level divided
             by the number of comparisons of the claim; an exact statement, if any row disobeys.
    A claim is contradicted if a comparison fails, else "not run" if rows are missing, else supported if all comparisons
    hold, else inconclusive. With fewer than five seeds only exact statements are judged, at profile quick only exact
    statements and ratios of costs; over a part of a claimed range nothing is judged. The direction is always printed.

    The line shows the comparison that speaks least for the claim. p is the largest of the claim's comparisons
    (intersection-union), two-sided for a difference, the larger one-sided for an equivalence; p_holm adjusts it within
    the paper, counting the paper's claims that are not in this call as p = 1. The verdict rests on the unadjusted
    interval and the line says when it does not survive Holm. `detectable` is the effect that this many seeds find
    in four cases of five. Intervals are 95 %, those of an equivalence 90 %.

    Args:
        table: tidy results; several experiments, data sets or profiles give a line each.
        tests: all tests of one paper by claim id, e.g. papers.pfml.claims.TESTS.
        claim_ids: which of them are judged, e.g. ["pfml-01", "pfml-02"]; None: all.
        hits: counts by class, as `results.hits` makes them of the table's runs. A comparison on R@1 or P@1 then also
            gets a sensitivity interval from resampling the test classes (class_low, class_high): how far other classes
            could move it while the trained networks stay. It decides nothing.

    Raises:
        ValueError: an unknown claim id, a table that lacks columns or holds two values for one run, or hits that lack
            columns.
    """
    import pandas as pd

    claim_ids = list(tests if claim_ids is None else claim_ids)
    unknown = [claim_id for claim_id in claim_ids if claim_id not in tests]
    if unknown:
        raise ValueError(f"claim_ids: no test is stated for {unknown}; stated: {', '.join(tests)}")
    rows = tables.final_rows(table)
    resampled = {} if hits is None else _resampled(hits)
    lines = [line for claim_id in claim_ids for line in _lines(tests[claim_id], rows, resampled)]
    frame = pd.DataFrame(lines, columns=[*_LINE])
    for _, family in frame.groupby(tables.CONTEXT[1:], dropna=False):
        frame.loc[family.index, "p_holm"] = holm(family["p"], max(len(tests), len(family)))
    for line in frame.itertuples(index=False):
        print(_sentence(line))
    return frame


def _resampled(hits: pd.DataFrame) -> dict[tuple, tables.Cells]:
    """Context -> cells under resampled test classes."""
    missing = [name for name in tables.HITS if name not in hits.columns]
    if missing:
        raise ValueError(f"hits lacks the columns {missing}; `results.hits` gives {tables.HITS}")
    return {context: tables.resampled_cells(group) for context, group in hits.groupby(tables.CONTEXT)}


def _lines(test: ClaimTest, rows: pd.DataFrame, resampled: Mapping[tuple, tables.Cells]) -> list[dict]:
    """A line per context that has all rows of the test; without one, a single line that says what is missing."""
    line = dict.fromkeys(_LINE, math.nan) | dict.fromkeys(
        ("reason", "direction", "comparison", "metric", "unit", *tables.CONTEXT), ""
    )
    line |= {"claim_id": test.claim_id, "n": 0, "untested_parts": test.untested_parts, "notebook": test.notebook}
    if not test.parts:
        return [line | {"verdict": "not testable here", "reason": test.untested_parts}]
    protocol = rows["protocol"].str.lower()
    rows = rows[protocol.str.contains(test.protocol) if test.protocol else ~protocol.str.contains("mlrc")]
    without_images = all(part.kind == "exact" for part in test.parts)
    found = [
        _judge_claim(test, cells, context, resampled.get(tuple(context.values()), {}))
        for context, cells in _contexts(rows, without_images)
    ]
    found = found or [_judge_claim(test, {}, {}, {})]
    nearest = min(found, key=lambda each: each["missing"])
    found = [each for each in found if each["verdict"] != "not run"] or [nearest]
    own = [each for each in found if test.notebook.endswith(each.get("experiment") or "?")]
    return [line | {name: each[name] for name in each if name in _LINE} for each in own or found]


def _contexts(rows: pd.DataFrame, without_images: bool):
    """(context, cells) of every context; a study without images belongs to all data sets of its experiment.

    without_images: the test asks for such studies only, so that an experiment is one context.
    """
    for (experiment, profile), group in rows.groupby(["experiment", "profile"], sort=False):
        study = group["dataset"] == tables.SYNTHETIC
        if without_images or study.all():
            yield dict(zip(tables.CONTEXT, (experiment, profile, tables.SYNTHETIC, "", "", ""))), tables.cells_of(group)
            continue
        for context, runs in group[~study].groupby(tables.CONTEXT, dropna=False, sort=False):
            yield dict(zip(tables.CONTEXT, context)), tables.cells_of(group[study]) | tables.cells_of(runs)


@dataclass(frozen=True)
class _Comparison:
    """One comparison of a claim, judged: it holds, fails, or stays open for the reason given."""

    estimate: Estimate
    part: Part
    compute: tuple  # (function, *arguments): function(cells, *arguments) gives the effects by seed
    as_claimed: bool
    holds: bool
    fails: bool
    why_open: str


def _judge_claim(test: ClaimTest, cells: tables.Cells, context: dict, resampled: tables.Cells) -> dict:
    """What the cells of one context say of a claim, as fields of its line."""
    planned, judged = [], []
    missing = [name for part in test.parts for name in _absent(part, cells)]
    for part in test.parts:
        try:
            planned += [(part, *each) for each in _comparisons(part, cells)]
        except tables.MissingRows as error:
            missing.append(str(error))
    count = sum(part.kind != "exact" for part, *_ in planned)
    for part, name, compute in planned:
        try:
            effects = compute[0](cells, *compute[1:])
        except tables.MissingRows as error:
            missing.append(str(error))
        else:
            judged.append(_judge(name, part, compute, effects, count, _obstacle(part, cells, context, effects)))
    fails = [each for each in judged if each.fails]
    opens = [each for each in judged if each.why_open]
    if fails:
        verdict, reason = "contradicted", "by " + "; ".join(dict.fromkeys(each.estimate.name for each in fails))
    elif missing:
        verdict, reason = "not run", "no rows for " + "; ".join(dict.fromkeys(missing))
    elif opens:
        verdict, reason = "inconclusive", "; ".join(dict.fromkeys(each.why_open for each in opens))
    else:
        verdict, reason = "supported", ""
    line = context | {"verdict": verdict, "reason": reason, "direction": "", "missing": len(set(missing))}
    if not judged:
        return line
    agree = sum(each.as_claimed for each in judged)
    whole = {len(judged): "as claimed", 0: "not as claimed"}
    candidates = fails or opens or judged
    shown = max(candidates, key=lambda each: (not each.as_claimed, np.nan_to_num(each.estimate.p, nan=-1)))
    line |= {"direction": whole.get(agree, f"{agree} of {len(judged)} as claimed"), "metric": shown.part.metric}
    line |= {"comparison": shown.estimate.name, "detectable": detectable_effect(shown.estimate.n) * shown.estimate.sd}
    line |= {name: getattr(shown.estimate, name) for name in ("effect", "low", "high", "n")}
    line["unit"] = "%" if shown.part.relative else ""
    if not missing:
        line["p"] = np.max([each.estimate.p for each in judged if each.part.kind != "exact"]) if count else math.nan
    compute, *arguments = shown.compute
    with suppress(tables.MissingRows):  # there are no hits, or they do not give this metric or these cells
        ends = percentile_interval(compute(resampled, *arguments))
        ends = tuple(100 * math.expm1(end) for end in ends) if shown.part.relative else ends
        line["class_low"], line["class_high"] = ends
    return line


def _absent(part: Part, cells: tables.Cells):
    """The cells of a part that the table does not have."""
    expressions = [each for each in (part.subject, *part.baselines) if not tables.is_constant(each)]
    for cell in (term for expression in expressions for term in expression.split(" - ")):
        try:
            tables.levels_of(cells, cell, part.metric)
        except tables.MissingRows as error:
            yield str(error)


def _comparisons(part: Part, cells: tables.Cells):
    """(name, compute) of every comparison of a part."""
    if part.kind == "trend":
        yield f"trend of {part.subject}", (tables.slope, part.subject, part.metric)
        return
    for baseline in part.baselines:
        subjects = [part.subject]
        if part.kind in ("equivalence", "exact"):  # they are about every level, not about the mean of the levels
            method = tables.parse_cell(part.subject)[0]
            levels = list(tables.levels_of(cells, part.subject, part.metric))
            if tables.parse_cell(baseline)[0] == method:  # the baseline is one of the levels
                reference = list(tables.levels_of(cells, baseline, part.metric))
                levels = [setting for setting in levels if [setting] != reference]
            subjects = [f"{method};{setting}".rstrip(";") for setting in levels]
            if not subjects:
                raise tables.MissingRows(f"a second level of {part.subject} ({part.metric})")
        for subject in subjects:
            yield f"{subject} vs {baseline}", (tables.difference, subject, baseline, part.metric, part.relative)


def _obstacle(part: Part, cells: tables.Cells, context: dict, effects: np.ndarray) -> str:
    """Why these effects can settle nothing; empty if they can."""
    if not np.isfinite(effects).all():
        return "a value is not finite"
    if part.kind == "exact":
        return ""
    if context.get("profile") == "quick" and not part.judged_at_quick:
        return "profile quick shows directions only"
    if len(effects) < MIN_SEEDS:
        return f"{len(effects)} of the {MIN_SEEDS} seeds needed"
    if part.kind in ("trend", "equivalence") and ".." in part.subject:
        x = tables.numbers_of(part.subject, tables.levels_of(cells, part.subject, part.metric))
        low, high = next(value for value in tables.parse_cell(part.subject)[1].values() if isinstance(value, tuple))
        if not np.allclose([x.min(), x.max()], [low, high]):
            return f"covers {x.min():g} to {x.max():g} of {low:g} to {high:g}"
    return ""


def _judge(name: str, part: Part, compute: tuple, effects: np.ndarray, count: int, obstacle: str) -> _Comparison:
    """One comparison by the rules of `verdicts`. count: how many the claim has, which adjusts a contradiction."""
    sign = SIGN.get(part.direction, 1)
    aligned = sign * effects  # positive: as claimed
    counts = abs(math.log1p(sign * part.smallest_effect / 100)) if part.relative else part.smallest_effect
    if part.kind == "exact":
        obeys = aligned >= -part.margin
        estimate = Estimate(name, sign * aligned.min(), effects.min(), effects.max(), len(effects), math.nan, math.nan)
        as_claimed, holds, fails, why = obeys.all(), obeys.all(), not obeys.all(), ""
    elif part.kind == "equivalence":
        estimate = estimated(name, effects, tost(effects, part.margin), 1 - 2 * LEVEL, part.relative)
        as_claimed, holds = abs(effects.mean()) < part.margin, estimate.p < LEVEL
        fails = 2 * count * min(p_above(effects, part.margin), p_above(-effects, part.margin)) < LEVEL
        why = f"not shown to lie within {part.margin:g}"
    else:
        estimate = estimated(name, effects, min(1.0, 2 * p_above(aligned, 0)), relative=part.relative)
        as_claimed, holds = aligned.mean() > 0, estimate.p < LEVEL and aligned.mean() >= counts
        fails = 2 * count * p_above(-aligned, counts) < LEVEL
        if estimate.p < LEVEL or (counts and tost(effects, counts) < LEVEL):
            why = f"smaller than the {part.smallest_effect:g} that count"
        else:
            why = "the interval includes zero" if as_claimed else "not clearly against the claim"
    if part.baselines and tables.is_constant(part.baselines[0]):  # show the value, not its distance from the constant
        shift = float(part.baselines[0])
        estimate = replace(estimate, **{key: getattr(estimate, key) + shift for key in ("effect", "low", "high")})
    if obstacle or holds or fails:
        why = obstacle
    return _Comparison(estimate, part, compute, bool(as_claimed), holds and not why, fails and not why, why)


def _sentence(line) -> str:
    """One line of the ledger."""
    words = [f"{line.claim_id:<9}{line.verdict}"]
    if line.direction:
        interval = "" if math.isnan(line.low) else f" [{line.low:+.3g}, {line.high:+.3g}]{line.unit}"
        folds = line.protocol if "MLRC" in line.protocol else ""  # two lines of one context: separated, concatenated
        where = ", ".join(str(each) for each in (line.profile, line.dataset, line.backbone, folds) if each)
        effect = f"{line.comparison}: {line.metric} {line.effect:+.3g}{interval}"
        words += [line.direction, effect, f"n = {line.n}", where]
    if not math.isnan(line.p):
        lost = " (not after Holm)" if line.verdict == "supported" and line.p_holm >= LEVEL else ""
        words.append(f"p {line.p:.2g}, Holm {line.p_holm:.2g}{lost}")
    if math.isfinite(line.detectable):
        words.append(f"detectable {line.detectable:.2g}")
    if not math.isnan(line.class_low):
        words.append(f"over classes [{line.class_low:+.3g}, {line.class_high:+.3g}]")
    words.append(line.reason)
    if line.untested_parts and line.verdict != "not testable here":
        words.append(f"untested: {line.untested_parts}")
    return " | ".join(word for word in words if word)
