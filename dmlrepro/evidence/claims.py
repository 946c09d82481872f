"""What the test of a claim is, and the verdict our numbers allow; the tests themselves are in papers/<paper>/claims.py.

A test is plain data, written down before it is run: what is compared with what, on which metric, in which direction,
and the smallest effect that counts. Published sizes belong to the published data sets and networks, so a test asks for
a direction and for a size that counts, not for the printed number. Cells are written as in tables.py. A test that had
to change after its results were seen says so in `changed`, and may only have become stricter.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

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
from dmlrepro.files import repository_root

MIN_SEEDS = 5
BENCHMARKS = {  # as data/claims.csv names what a claim is about; a part of one, as cub-subset, is evidence about it
    "cub": "CUB-200-2011",
    "cars": "Cars-196",
    "sop": "SOP",
    "inshop": "InShop",
    "mnist": "MNIST",
}
SIGN = {"higher": 1, "lower": -1}


@dataclass(frozen=True)
class Part:
    """One thing a claim says.

    kind: "difference": the subject against every baseline; "trend": the fitted change of the metric from the
        lowest to the highest level of the subject's range; "equivalence": every level of the subject within `margin`
        of the baseline; "exact": every row on the claimed side of the constant baseline, by at least `smallest_effect`
        or up to `margin`; "parity": the subject at most `margin` on the wrong side of every baseline.
    direction: where the subject is claimed to lie, "higher" or "lower"; "flat" for an equivalence.
    smallest_effect: the least mean effect that counts, in the unit of the metric, percent when `relative`.
    margin: in the same unit.
    judged_at_quick: exact mathematics and ratios of costs need no real images, so profile quick may judge them.
    premise: the claim does not say this, but says nothing where it is false, as "drops less" of a method that learned
        nothing: unless it is shown, the claim stays open, whatever else is found.
    reading: one of several things that the claim's sentence may mean. Parts of one reading are judged together with
        those that name none.
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
    premise: bool = False
    reading: str = ""

    @property
    def unit(self) -> str:
        return "%" if self.relative else ""

    @property
    def required(self) -> str:
        """The effect that counts, in words."""
        return ("premise: " if self.premise else "") + self._size()

    def _size(self) -> str:
        if self.kind == "exact":
            bound = float(self.baselines[0]) + SIGN[self.direction] * (self.smallest_effect - self.margin)
            return f"every row at {'least' if self.direction == 'higher' else 'most'} {bound:.7g}"
        if self.kind == "equivalence":
            return f"within {self.margin:g}{self.unit}"
        if self.kind == "parity":
            side = {"higher": "lower", "lower": "higher"}[self.direction]
            return f"at most {self.margin:g}{self.unit} {side}"
        size = f" by at least {self.smallest_effect:g}{self.unit}" if self.smallest_effect else ""
        if self.kind == "trend":
            return f"{'rises' if self.direction == 'higher' else 'falls'}{size} over the range"
        if all(tables.is_constant(baseline) for baseline in self.baselines):
            return f"{'above' if self.direction == 'higher' else 'below'} {' and '.join(self.baselines)}{size}"
        return self.direction + size


@dataclass(frozen=True)
class ClaimTest:
    """The test of one claim: all its parts must hold.

    rationale: why the smallest effects and margins are what they are. untested_parts: what the claim says beyond the
    parts; without parts, why nothing is tested. protocol: only rows whose protocol contains this text; when empty,
    every protocol but MLRC. network: the backbone the claim is about, as the beginning of its name, where numbers of
    another one say nothing of it; when empty, any. trials: how many trials chose each method's settings before any
    notebook was run (methods not named: none); more trials of a subject cannot support a claim and more of a baseline
    cannot contradict it, except in a notebook that searches for all of them. changed: what became stricter after
    results were seen, when, and why.
    """

    claim_id: str
    notebook: str
    parts: tuple[Part, ...]
    rationale: str
    untested_parts: str = ""
    protocol: str = ""
    network: str = ""
    trials: Mapping[str, int] = field(default_factory=dict)
    changed: str = ""


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


def at_most(subject, constant, metric, tolerance=0.0, **options) -> Part:
    return Part("exact", subject, (constant,), metric, "lower", margin=tolerance, judged_at_quick=True, **options)


def below(subject, constant, metric, by) -> Part:
    return Part("exact", subject, (constant,), metric, "lower", smallest_effect=by, judged_at_quick=True)


def at_least(subject, constant, metric) -> Part:
    return Part("exact", subject, (constant,), metric, "higher", judged_at_quick=True)


def on_a_par(subject, *baselines, within, metric="R@1", **options) -> Part:
    """The premise of a comparison of losses and of spreads: who has nothing to lose loses little."""
    return Part("parity", subject, baselines, metric, "higher", margin=within, relative=True, premise=True, **options)


def learned(subject, by=5.0, metric="R@1") -> Part:
    """The premise of an equivalence or an ablation: networks that have learned nothing are alike, and what changes a
    failure says little."""
    return Part("difference", subject, ("untrained",), metric, "higher", smallest_effect=by, premise=True)


def drop(method, setting) -> str:
    return f"{method} - {method};{setting}"


# --- verdicts ---------------------------------------------------------------------------------------------------------

_SHOWN = ("comparison", "metric", "effect", "low", "high", "interval", "unit", "n", "required")
_LINE = (
    *("claim_id", "verdict", "reason", "direction"),
    *_SHOWN,
    *(*tables.CONTEXT, "device"),
    *("p", "p_holm", "detectable", "class_low", "class_high", "untested_parts", "changed", "notebook"),
)
_COMPARISON = (
    *("claim_id", "reading", *_SHOWN, "outcome", "why"),
    *(*tables.CONTEXT, "device"),
    *("p", "detectable", "class_low", "class_high", "of_dataset"),
)


@dataclass(frozen=True, eq=False)
class Judged:
    """Verdicts, a row per claim and context, and the comparisons they rest on; shown in a notebook as two tables.

    verdicts: claim_id, verdict, reason, direction ("as claimed", "2 of 5 as claimed"), the comparison that speaks least
        for the claim with its effect, interval [low, high] ("95 %", of an equivalence "90 %", of an exact statement the
        "range"), unit and n, the required effect, the context, device, p, p_holm, detectable, class_low, class_high.
    comparisons: the same of every comparison, with its outcome, "holds", "fails" or "open", and why it is open;
        of_dataset is the data set of the verdict, dataset that of the comparison: a study without images has none.
    """

    verdicts: pd.DataFrame
    comparisons: pd.DataFrame

    def __repr__(self) -> str:
        """A line per verdict, the claim's name first."""
        width = max([8, *self.verdicts["claim_id"].map(len)])
        return "\n".join(
            f"{line.claim_id:<{width}} {line.verdict}" + (f" ({line.reason})" if line.reason else "")
            for line in self.verdicts.itertuples()
        )

    def _repr_html_(self) -> str:
        verdicts, compared = (_without_empty_columns(make(self)) for make in (verdict_table, comparison_table))
        with pd.option_context("display.max_colwidth", None):
            shown = f"{verdicts.to_html()}<p>{GLOSSARY}</p>"
            return shown + (f"<p>Every comparison:</p>{compared.to_html(index=False)}" if len(compared) else "")


GLOSSARY = (
    "Holm: p adjusted for the number of claims of the paper, so that all its verdicts together err in at most 5 % of "
    "cases; it decides. Detectable: the effect that this many seeds find in four cases of five. Over classes: 95 % of "
    "redraws of the test classes; it decides nothing. A range is from the lowest to the highest row and no interval."
)


def judge(
    table: pd.DataFrame,
    tests: Mapping[str, ClaimTest],
    claim_ids: Iterable[str] | None = None,
    *,
    hits: pd.DataFrame | None = None,
    search_trials: int = 0,
    device: str = "",
) -> Judged:
    """Judge claims of one paper.

    Comparisons are of per-seed effects, paired by seed, with Student's t. A comparison
      holds  if the 95 % interval lies on the claimed side of zero and the mean reaches the smallest effect that
             counts; an equivalence, if two one-sided tests at 5 % put it within the margin; a parity, if a one-sided
             test at 2.5 % puts it above the margin; an exact statement, if every row obeys;
      fails  if the interval lies wholly beyond the smallest effect (the margin) on the other side, at a level divided
             by the number of comparisons of the claim; an exact statement, if any row disobeys;
      stays open otherwise, and whenever there are fewer than five seeds, at profile quick (but for exact statements and
             ratios of costs), where a range was measured in part, on data or a network that the claim is not about, or
             where the side that comes out ahead had been tuned with more trials.
    A claim is contradicted if a comparison fails, else "not run" if rows are missing, else supported if all comparisons
    hold, else inconclusive. Readings of a claim's sentence are judged one by one; if one is supported and another is
    contradicted, the verdict "depends on the reading".

    Support and contradiction must survive Holm's adjustment over all claims of the paper that have a p, those not in
    this call counting as 1. For support p is the largest of the claim's comparisons (intersection-union), two-sided for
    a difference, the larger one-sided for an equivalence; for a contradiction the smallest, times their number. Exact
    statements have no p. `detectable` is the effect that this many seeds find in four cases of five.

    Args:
        table: tidy results; several experiments, data sets or profiles give a line each.
        tests: all tests of one paper by claim id, e.g. papers.pfml.claims.TESTS.
        claim_ids: which of them are judged, e.g. ["pfml-01", "pfml-02"]; None: all.
        hits: counts by class, as `results.hits` makes them of the table's runs. A comparison on R@1 or P@1 then also
            gets a sensitivity interval from resampling the test classes (class_low, class_high): how far other classes
            could move it while the trained networks stay. It decides nothing.
        search_trials: how many trials the notebook's own search gave every method; 0: it made none.
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
        each for claim_id in claim_ids for each in _compared_everywhere(tests[claim_id], rows, resampled, search_trials)
    ]
    adjusted = _adjusted(found, sum(any(part.kind != "exact" for part in test.parts) for test in tests.values()))
    verdicts = pd.DataFrame([_line(*each) for each in zip(found, adjusted)], columns=[*_LINE])
    compared = [_comparison_row(each, comparison) for each in found for comparison in each.comparisons]
    comparisons = pd.DataFrame(compared, columns=[*_COMPARISON])
    return Judged(verdicts.assign(device=device), comparisons.assign(device=device))


def _resampled(hits: pd.DataFrame) -> dict[tuple, tables.Cells]:
    """Context -> cells under resampled test classes."""
    missing = [name for name in tables.HITS if name not in hits.columns]
    if missing:
        raise ValueError(f"hits lacks the columns {missing}; `results.hits` gives {tables.HITS}")
    return {context: tables.resampled_cells(group) for context, group in hits.groupby(tables.CONTEXT)}


# --- comparisons ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Comparison:
    """One comparison of a claim, judged: it holds, fails, or stays open for the reason given."""

    estimate: Estimate
    part: Part
    as_claimed: bool
    holds: bool
    fails: bool
    why_open: str
    p_against: float = math.nan  # of a contradiction, before any adjustment
    without_images: bool = False
    classes: tuple[float, float] = (math.nan, math.nan)


@dataclass(frozen=True)
class _Found:
    """What the cells of one context say of a claim."""

    test: ClaimTest
    context: dict
    comparisons: tuple[_Comparison, ...]
    missing: tuple[str, ...]

    @property
    def p_for(self) -> float:
        tested = [each.estimate.p for each in self.comparisons if each.part.kind != "exact"]
        return math.nan if self.missing or not tested else float(np.max(tested))

    @property
    def p_against(self) -> float:
        tested = [each.p_against for each in self.comparisons if each.fails and each.part.kind != "exact"]
        return len(_tested(self.comparisons)) * min(tested) if tested else math.nan


def _tested(comparisons: Iterable[_Comparison]) -> list[_Comparison]:
    return [each for each in comparisons if each.part.kind != "exact" and not each.part.premise]


def _compared_everywhere(
    test: ClaimTest, rows: pd.DataFrame, resampled: Mapping[tuple, tables.Cells], search_trials: int
) -> list[_Found]:
    """The contexts that have all rows of the test, those of its own notebook if any; else the one that lacks least."""
    if not test.parts:
        return [_Found(test, {}, (), ())]
    protocol = rows["protocol"].str.lower()
    rows = rows[protocol.str.contains(test.protocol) if test.protocol else ~protocol.str.contains("mlrc")]
    without_images = all(part.kind == "exact" for part in test.parts)
    found = [
        _compared(test, cells, context, studied, resampled.get(tuple(context.values()), {}), search_trials)
        for context, cells, studied in _contexts(rows, without_images)
    ]
    found = found or [_compared(test, {}, {}, frozenset(), {}, search_trials)]
    nearest = min(found, key=lambda each: len(each.missing))
    found = [each for each in found if not each.missing or any(one.fails for one in each.comparisons)] or [nearest]
    return [each for each in found if test.notebook.endswith(each.context.get("experiment") or "?")] or found


def _contexts(rows: pd.DataFrame, without_images: bool) -> Iterator[tuple[dict, tables.Cells, frozenset]]:
    """(context, cells, those (method, metric) that need no images) of every context.

    A study without images belongs to all data sets of its experiment; one alone is a context of its own, per network.
    A network without a head, the untrained one, is compared with networks of every dimension.
    without_images: the test asks for such studies only, so that an experiment is one context.
    """
    for (experiment, profile), group in rows.groupby(["experiment", "profile"], sort=False):
        study = group["dataset"] == tables.SYNTHETIC
        headless = pd.to_numeric(group["dim"], errors="coerce") == 0
        if without_images or study.all():
            parts = [("", group)] if without_images else group.groupby("backbone", sort=False)
            for backbone, part in parts:
                context = (experiment, profile, tables.SYNTHETIC, backbone, "", "")
                cells = tables.cells_of(part)
                yield dict(zip(tables.CONTEXT, context)), cells, frozenset()
            continue
        studied = tables.cells_of(group[study])
        trained = ~study & ~headless if (~study & ~headless).any() else ~study
        for context, runs in group[trained].groupby(tables.CONTEXT, dropna=False, sort=False):
            context = dict(zip(tables.CONTEXT, context))
            same = (group[[name for name in context if name != "dim"]] == pd.Series(context).drop("dim")).all(axis=1)
            cells = studied | tables.cells_of(group[same & headless]) | tables.cells_of(runs)
            yield context, cells, frozenset(studied)


def _compared(
    test: ClaimTest,
    cells: tables.Cells,
    context: dict,
    studied: frozenset,
    resampled: tables.Cells,
    search_trials: int,
) -> _Found:
    planned, judged = [], []
    missing = [name for part in test.parts for name in _absent(part, cells)]
    for part in test.parts:
        try:
            planned += [(part, *each) for each in _comparisons(part, cells)]
        except tables.MissingRows as error:
            missing.append(str(error))
    count = sum(part.kind != "exact" and not part.premise for part, *_ in planned)
    for part, name, (compute, *arguments) in planned:
        try:
            effects = compute(cells, *arguments)
        except tables.MissingRows as error:
            missing.append(str(error))
            continue
        obstacle = _obstacle(test, part, cells, context, effects)
        comparison = _judge(name, part, effects, count, obstacle)
        if not search_trials and part.kind not in ("exact", "trend"):
            comparison = _with_unequal_tuning(comparison, test, *arguments[:2])
        without_images = (tables.parse_cell(part.subject)[0], part.metric) in studied
        classes = comparison.classes
        with suppress(tables.MissingRows):  # there are no hits, or they do not give this metric or these cells
            low, high = percentile_interval(compute(resampled, *arguments))
            classes = (100 * math.expm1(low), 100 * math.expm1(high)) if part.relative else (low, high)
        judged.append(replace(comparison, without_images=without_images, classes=classes))
    return _Found(test, context, tuple(judged), tuple(dict.fromkeys(missing)))


def _absent(part: Part, cells: tables.Cells) -> Iterator[str]:
    """The cells of a part that the table does not have."""
    for cell in _cells_named(part):
        try:
            tables.levels_of(cells, cell, part.metric)
        except tables.MissingRows as error:
            yield str(error)


def _cells_named(part: Part) -> list[str]:
    expressions = [each for each in (part.subject, *part.baselines) if not tables.is_constant(each)]
    return [term for expression in expressions for term in expression.split(" - ")]


def _comparisons(part: Part, cells: tables.Cells) -> Iterator[tuple[str, tuple]]:
    """(name, (function, *arguments)) of every comparison of a part; function(cells, *arguments) gives the effects."""
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


def _obstacle(
    test: ClaimTest,
    part: Part,
    cells: tables.Cells,
    context: dict,
    effects: np.ndarray,
) -> str:
    """Why these effects can settle nothing; empty if they can."""
    if not np.isfinite(effects).all():
        return "a value is not finite"
    named = _cells_named(part)
    partial = [text for cell in named if (text := tables.uncovered(cells, cell, part.metric))]
    if partial:
        return "; ".join(dict.fromkeys(partial))
    if part.kind == "exact":
        return ""
    network = context.get("backbone", "")
    if test.network and not network.startswith(test.network):
        return f"{network or 'an unnamed network'} is no evidence about {test.network}"
    if context.get("profile") == "quick" and not part.judged_at_quick:
        return "profile quick shows directions only"
    about, dataset = stated().get(test.claim_id, {}).get("dataset", ""), context.get("dataset", "")
    anywhere = not about or part.premise or part.judged_at_quick  # such parts are about these runs, or about costs
    if not anywhere and BENCHMARKS.get(dataset.removesuffix("-subset")) not in about.split(";"):
        return f"{dataset or 'an unnamed data set'} is no evidence about {about.replace(';', ', ')}"
    if len(effects) < MIN_SEEDS:
        return f"{len(effects)} of the {MIN_SEEDS} seeds needed"
    return ""


def _with_unequal_tuning(comparison: _Comparison, test: ClaimTest, subject: str, baseline: str) -> _Comparison:
    """The comparison, left open where methods tuned with unequal numbers of trials settle it.

    Who had more trials and still comes out worse does so all the more: more trials of the subject stand against
    support alone, more trials of the baseline against contradiction alone.
    """
    ours, theirs = (_trials(test, expression) for expression in (subject, baseline))
    if not theirs:
        return comparison
    more, fewer = (max(a.values()) > min(b.values()) for a, b in ((ours, theirs), (theirs, ours)))
    if comparison.part.kind == "equivalence":
        more = fewer = more or fewer
    if not ((comparison.holds and more) or (comparison.fails and fewer)):
        return comparison
    counts = ", ".join(f"{method} {count} trials" for method, count in (ours | theirs).items())
    return replace(comparison, holds=False, fails=False, why_open=f"tuned unequally: {counts}")


def _trials(test: ClaimTest, expression: str) -> dict[str, int]:
    """Method -> trials of the cells of an expression; empty for a constant."""
    cells = [] if tables.is_constant(expression) else expression.split(" - ")
    return {method: test.trials.get(method, 0) for method in (tables.parse_cell(cell)[0] for cell in cells)}


def _judge(name: str, part: Part, effects: np.ndarray, count: int, obstacle: str) -> _Comparison:
    """One comparison by the rules of `judge`. count: how many the claim has, which adjusts a contradiction."""
    sign = SIGN.get(part.direction, 1)
    aligned = sign * effects  # positive: as claimed
    counts = abs(math.log1p(sign * part.smallest_effect / 100)) if part.relative else part.smallest_effect
    margin = -math.log1p(-part.margin / 100) if part.relative else part.margin
    against = math.nan
    if part.kind == "exact":
        obeys = aligned >= part.smallest_effect - part.margin
        estimate = Estimate(name, sign * aligned.min(), effects.min(), effects.max(), len(effects), math.nan, math.nan)
        as_claimed, holds, fails, why = obeys.all(), obeys.all(), not obeys.all(), ""
    elif part.kind == "equivalence":
        estimate = estimated(name, effects, tost(effects, margin), 1 - 2 * LEVEL, part.relative)
        as_claimed, holds = abs(effects.mean()) < margin, estimate.p < LEVEL
        against = 2 * min(p_above(effects, margin), p_above(-effects, margin))
        fails = count * against < LEVEL
        why = f"not shown to lie within {part.margin:g}"
    elif part.kind == "parity":
        estimate = estimated(name, effects, min(1.0, 2 * p_above(aligned, -margin)), relative=part.relative)
        as_claimed, holds, fails, why = aligned.mean() > -margin, estimate.p < LEVEL, False, "not shown"
    else:
        estimate = estimated(name, effects, min(1.0, 2 * p_above(aligned, 0)), relative=part.relative)
        as_claimed, holds = aligned.mean() > 0, estimate.p < LEVEL and aligned.mean() >= counts
        against = 2 * p_above(-aligned, counts)
        fails = count * against < LEVEL
        if estimate.p < LEVEL or (counts and tost(effects, counts) < LEVEL):
            why = f"smaller than the {part.smallest_effect:g}{part.unit} that count"
        else:
            why = "the interval includes zero" if as_claimed else "not clearly against the claim"
    if part.baselines and tables.is_constant(part.baselines[0]):  # show the value, not its distance from the constant
        shift = float(part.baselines[0])
        estimate = replace(estimate, **{key: getattr(estimate, key) + shift for key in ("effect", "low", "high")})
    if part.premise:
        fails, why = False, f"not shown: {name} {part.metric}, {part.required}"
    counterexample = part.kind == "exact" and fails and np.isfinite(effects).all()  # one is enough, over any range
    if obstacle and counterexample:
        obstacle = ""
    if obstacle or holds or fails:
        why = obstacle
    return _Comparison(estimate, part, bool(as_claimed), bool(holds and not why), bool(fails and not why), why, against)


# --- from comparisons to a verdict ------------------------------------------------------------------------------------


def _adjusted(found: list[_Found], claims_with_p: int) -> list[tuple[float, float]]:
    """(p for, p against) of every claim and context after Holm; a family is a paper on one data set and network."""
    contexts = [tuple(each.context.get(name, "") for name in tables.CONTEXT[1:]) for each in found]
    adjusted = np.full((len(found), 2), math.nan)
    for context in set(contexts):
        family = [i for i, each in enumerate(contexts) if each == context]
        for column, name in enumerate(("p_for", "p_against")):
            p_values = [getattr(found[i], name) for i in family]
            adjusted[family, column] = holm(p_values, max(claims_with_p, len(family)))
    return [(one, other) for one, other in adjusted]


def _verdict(comparisons: Iterable[_Comparison], found: _Found, adjusted: tuple[float, float]) -> tuple[str, str]:
    """(verdict, reason) of the comparisons of one reading."""
    p_for, p_against = adjusted
    fails = [each for each in comparisons if each.fails and (each.part.kind == "exact" or p_against < LEVEL)]
    opens = [each.why_open for each in comparisons if each.why_open]
    unmet = [each.why_open for each in comparisons if each.part.premise and each.why_open]
    if fails and unmet:
        return "inconclusive", "against the claim, but " + "; ".join(unmet)
    if fails:
        return "contradicted", "by " + "; ".join(dict.fromkeys(each.estimate.name for each in fails))
    if found.missing:
        return "not run", "no rows for " + "; ".join(found.missing)
    if any(each.fails for each in comparisons):
        return "inconclusive", "against the claim, but not after Holm"
    if opens:
        return "inconclusive", "; ".join(dict.fromkeys(opens))
    if p_for >= LEVEL:
        return "inconclusive", "as claimed, but not after Holm"
    return "supported", ""


def _over_readings(found: _Found, adjusted: tuple[float, float]) -> tuple[str, str]:
    readings = list(dict.fromkeys(each.part.reading for each in found.comparisons if each.part.reading))
    if not readings:
        return _verdict(found.comparisons, found, adjusted)
    verdicts = {
        reading: _verdict([c for c in found.comparisons if c.part.reading in ("", reading)], found, adjusted)
        for reading in readings
    }
    said = {verdict for verdict, _ in verdicts.values()}
    reason = "; ".join(f"{reading}: {verdict}" for reading, (verdict, _) in verdicts.items())
    if len(said) == 1 or "not run" in said:
        return ("not run" if "not run" in said else said.pop()), reason
    return ("depends on the reading" if said == {"supported", "contradicted"} else "inconclusive"), reason


def _line(found: _Found, adjusted: tuple[float, float]) -> dict:
    test, judged = found.test, found.comparisons
    line = dict.fromkeys(_LINE, "") | dict.fromkeys(("p", "p_holm"), math.nan) | {"n": 0}
    line |= dict.fromkeys(("effect", "low", "high", "detectable", "class_low", "class_high"), math.nan)
    line |= {name: getattr(test, name) for name in ("claim_id", "untested_parts", "changed", "notebook")}
    if not test.parts:
        return line | {"verdict": "not testable here", "reason": test.untested_parts}
    line |= found.context
    line["verdict"], line["reason"] = _over_readings(found, adjusted)
    if not judged:
        return line
    said = [each for each in judged if not each.part.premise] or judged
    agree = sum(each.as_claimed for each in said)
    whole = {len(said): "as claimed", 0: "not as claimed"}
    candidates = [c for c in said if c.why_open] or [c for c in judged if c.why_open] or said
    weakest = max(candidates, key=lambda each: (not each.as_claimed, np.nan_to_num(each.estimate.p, nan=-1)))
    if fails := [each for each in said if each.fails]:
        weakest = min(fails, key=lambda each: np.nan_to_num(each.p_against, nan=-1))
    line |= {"direction": whole.get(agree, f"{agree} of {len(said)} as claimed")} | _shown(weakest)
    if weakest.without_images:
        line |= _WITHOUT_IMAGES
    if any(each.fails and each.part.kind == "exact" for each in judged):
        return line  # a counterexample needs no p
    against = any(each.fails for each in judged)
    return line | {"p": found.p_against if against else found.p_for, "p_holm": adjusted[1 if against else 0]}


_WITHOUT_IMAGES = {"dataset": tables.SYNTHETIC, "backbone": "", "dim": "", "protocol": ""}


def _shown(comparison: _Comparison) -> dict:
    """What both tables show of a comparison."""
    estimate, part = comparison.estimate, comparison.part
    shown = {name: getattr(estimate, name) for name in ("effect", "low", "high", "n")}
    shown |= {"comparison": estimate.name, "metric": part.metric, "unit": part.unit, "required": part.required}
    shown["interval"] = {"exact": "range", "equivalence": "90 %"}.get(part.kind, "95 %")
    shown["detectable"] = detectable_effect(estimate.n) * estimate.sd
    shown["class_low"], shown["class_high"] = comparison.classes
    return shown


def _comparison_row(found: _Found, comparison: _Comparison) -> dict:
    outcome = "holds" if comparison.holds else "fails" if comparison.fails else "open"
    where = found.context | (_WITHOUT_IMAGES if comparison.without_images else {})
    return (
        {"claim_id": found.test.claim_id, "reading": comparison.part.reading, "outcome": outcome}
        | {"why": comparison.why_open, "p": comparison.estimate.p, "of_dataset": found.context.get("dataset", "")}
        | where
        | _shown(comparison)
    )


# --- tables to read ---------------------------------------------------------------------------------------------------


@functools.cache
def stated() -> dict[str, dict[str, str]]:
    """claim id -> what the paper says, the row of data/claims.csv."""
    with (repository_root() / "data" / "claims.csv").open(encoding="utf8", newline="") as file:
        return {row["claim_id"]: row for row in csv.DictReader(file)}


def statement(claim_id: str) -> str:
    """What the paper says."""
    return stated().get(claim_id, {}).get("statement", "")


def _ours(line) -> str:
    """An effect with its interval, which is called a range where it is one."""
    if not line.comparison:
        return ""
    form = ".4g" if tables.is_constant(line.comparison.rpartition(" vs ")[2]) else "+.3g"  # a value, or a difference
    effect = f"{line.comparison}: {line.metric} {line.effect:{form}}{line.unit}"
    if math.isnan(line.low):
        return effect
    return f"{effect} ({line.interval} {line.low:{form}} to {line.high:{form}})"


def _number(value: float, digits: int = 2) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}g}"


def _where(line) -> dict[str, str]:
    """Data set and network of a line; protocols differ in MLRC alone, separated and concatenated."""
    folds = line.protocol if "MLRC" in line.protocol else ""
    dataset = "no images" if line.dataset == tables.SYNTHETIC else line.dataset
    data = ", ".join(str(each) for each in (line.profile, dataset, folds) if each)
    return {"data": data, "network": line.backbone, "device": line.device}


def _without_empty_columns(table: pd.DataFrame) -> pd.DataFrame:
    return table.loc[:, (table != "").any()]


def verdict_table(judged: Judged) -> pd.DataFrame:
    """The verdicts for reading, a row per claim and context: the paper's sentence and size, ours with its interval or
    range, n, data set, network, device, the effect that was required, p after Holm, and the verdict with its reason."""
    rows = []
    for line in judged.verdicts.itertuples(index=False):
        said = stated().get(line.claim_id, {})
        rows.append(
            {"claim": line.claim_id, "the paper says": statement(line.claim_id)}
            | {"published": said.get("expected_size", ""), "verdict": line.verdict, "because": line.reason}
            | {"ours": _ours(line), "n": line.n, "required": line.required}
            | _where(line)
            | {"direction": line.direction, "Holm": _number(line.p_holm), "not tested": line.untested_parts}
        )
    columns = ["claim", "the paper says", "published", "ours", "n", "data", "network", "device", "required", "verdict"]
    return pd.DataFrame(rows, columns=[*columns, "because", "direction", "Holm", "not tested"]).set_index("claim")


def comparison_table(judged: Judged) -> pd.DataFrame:
    """Every comparison the verdicts rest on, for reading, a row each."""
    rows = [
        {"claim": line.claim_id, "reading": line.reading, "ours": _ours(line), "n": line.n, "required": line.required}
        | {"outcome": line.outcome, "why": line.why}
        | _where(line)
        | {"p": _number(line.p), "detectable": _number(line.detectable)}
        | {"over classes": f"{_number(line.class_low, 3)} to {_number(line.class_high, 3)}".removeprefix(" to ")}
        for line in judged.comparisons.itertuples(index=False)
    ]
    columns = ["claim", "reading", "ours", "n", "required", "outcome", "why", "data", "network", "device"]
    return pd.DataFrame(rows, columns=[*columns, "p", "detectable", "over classes"])
