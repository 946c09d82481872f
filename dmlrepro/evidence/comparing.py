"""What a table's numbers say of a claim, before any verdict: every comparison of its parts, in every context.

`judging` turns what is found here into verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from dmlrepro.evidence import claims, tables
from dmlrepro.evidence.claims import SIGN, START, ClaimTest, Part
from dmlrepro.evidence.statistics import (
    LEVEL,
    MIN_SEEDS,
    Estimate,
    estimated,
    p_above,
    percentile_interval,
    t_interval,
    tost,
)

AS_CLAIMED, NO_DIFFERENCE, OTHER_WAY = OUTCOMES = ("as claimed", "no difference", "the other way")
UNCLEAR, FAILURES = "unclear", "compares failures"
IDENTITY, COST = "by construction", "cost on this device"
UNTESTABLE, NOT_RUN = "cannot be tested here", "not run"
VERDICTS = (*OUTCOMES, UNCLEAR, FAILURES, IDENTITY, COST, UNTESTABLE, NOT_RUN)
UNTRAINED = {START, "untrained", "methods"}  # rows that are of no training, or of many
TUNED = 12  # trials of a search, from which on, and if equally many, two methods are tuned alike


# --- one comparison ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """One comparison of a claim.

    p: outcome -> p before any adjustment; an outcome that these effects do not have is not in it. why: outcome -> what
    stands in its way, a failure among them. values: the effects by seed, in the unit shown. failures: neither side has
    learned.
    """

    part: Part
    estimate: Estimate
    p: Mapping[str, float]
    why: Mapping[str, str]
    as_claimed: bool
    values: tuple[float, ...] = ()
    failures: bool = False
    tuned: str = ""
    without_images: bool = False
    classes: tuple[float, float] = (math.nan, math.nan)

    def possible(self, outcome: str) -> float:
        """The p of an outcome in whose way nothing stands, else 1."""
        return 1.0 if self.why.get(outcome) else self.p.get(outcome, 1.0)

    @property
    def outcome(self) -> str:
        """What it would be alone, before any adjustment."""
        likely = [name for name in OUTCOMES if self.possible(name) < LEVEL]
        return likely[0] if likely else FAILURES if self.failures else UNCLEAR

    @property
    def obstacle(self) -> str:
        """What stands in the way of an outcome that its p allows, else of any; empty if nothing does."""
        if self.outcome in OUTCOMES:
            return ""
        reached = [self.why[name] for name in OUTCOMES if self.p.get(name, 1.0) < LEVEL and self.why.get(name)]
        general = list(self.why.values()) if len(self.why) == len(OUTCOMES) else []
        return (reached or general or [""])[0]


def compare(
    name: str,
    part: Part,
    effects: np.ndarray,
    obstacle: str = "",
    has_learned: tuple[bool | None, bool | None] = (None, None),
) -> Comparison:
    """One comparison by the rules of `judge`.

    Args:
        effects: by seed, (n,), logarithms of ratios where the part is relative.
        obstacle: why these effects can settle nothing; empty if they can.
        has_learned: the subject, and the baseline; None where nothing is asked.
    """
    sign = SIGN.get(part.direction, 1)
    aligned = sign * effects  # positive: as claimed
    counts = abs(math.log1p(sign * part.smallest_effect / 100)) if part.relative else part.smallest_effect
    margin = -math.log1p(-part.margin / 100) if part.relative else part.margin
    p: dict[str, float] = {}
    level = 1 - LEVEL
    if part.kind == "exact":
        obeys = aligned >= part.smallest_effect - part.margin
        as_claimed, p = bool(obeys.all()), {AS_CLAIMED if obeys.all() else OTHER_WAY: 0.0}
        estimate = Estimate(name, sign * aligned.min(), effects.min(), effects.max(), len(effects), math.nan)
        if p.get(OTHER_WAY) == 0 and np.isfinite(effects).all():  # one counterexample is enough, over any range
            obstacle = ""
    elif part.kind == "equivalence":
        level = 1 - 2 * LEVEL
        as_claimed = abs(effects.mean()) < margin
        p = {AS_CLAIMED: tost(effects, margin)}
        p[OTHER_WAY] = 2 * min(p_above(effects, margin), p_above(-effects, margin))
    elif part.kind == "parity":
        as_claimed, p = aligned.mean() > -margin, {AS_CLAIMED: 2 * p_above(aligned, -margin)}
    elif part.kind == "learned":
        as_claimed, p = aligned.mean() > 0, {AS_CLAIMED: 2 * p_above(aligned, 0)}
    else:
        as_claimed = aligned.mean() > 0
        if aligned.mean() >= counts:
            p[AS_CLAIMED] = min(1.0, 2 * p_above(aligned, 0))
        if aligned.mean() <= -counts:
            p[OTHER_WAY] = min(1.0, 2 * p_above(-aligned, 0))
        if counts:
            p[NO_DIFFERENCE] = tost(effects, counts)
    if part.kind != "exact":
        estimate = estimated(name, effects, level, part.relative)
        if len(effects) < MIN_SEEDS and not obstacle:
            obstacle = f"{len(effects)} of the {MIN_SEEDS} seeds needed"
    if zero := zero_of(part):  # show the value, not its distance from the constant
        estimate = replace(estimate, **{key: getattr(estimate, key) + zero for key in ("effect", "low", "high")})
    p = {outcome: value for outcome, value in p.items() if not math.isnan(value)}
    why = dict.fromkeys(OUTCOMES, obstacle) if obstacle else _not_learned(name, part, aligned, has_learned)
    failures = not obstacle and has_learned != (None, None) and not any(has_learned)
    values = 100 * np.expm1(effects) if part.relative else effects + zero
    return Comparison(part, estimate, p, why, bool(as_claimed), tuple(map(float, values)), failures)


def zero_of(part: Part) -> float:
    """What a value is compared with: the constant, or no difference."""
    return float(part.baselines[0]) if part.baselines and tables.is_constant(part.baselines[0]) else 0.0


def _not_learned(name: str, part: Part, aligned: np.ndarray, has_learned: tuple) -> dict[str, str]:
    """Outcome -> who has to have learned and has not."""
    subject, _, baseline = name.removeprefix("trend of ").partition(" vs ")
    sides = {side: has for side, has in zip((subject, baseline), has_learned) if has is not None}
    behind, ahead = (subject, baseline) if part.direction == "lower" else (baseline, subject)  # as claimed
    needed = {outcome: list(sides) for outcome in OUTCOMES}
    if part.may_fail:
        needed[AS_CLAIMED] = [ahead]
    if part.kind == "difference" and part.metric.startswith(claims.RETRIEVAL):
        needed[OTHER_WAY] = [behind]
    elif part.kind == "equivalence":  # a level that differs too much: the side that is ahead
        needed[OTHER_WAY] = [subject if aligned.mean() > 0 else baseline]
    return {
        outcome: f"{side} has not learned"
        for outcome, names in needed.items()
        for side in names
        if sides.get(side) is False
    }


# --- where a claim can be judged --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What the cells of one context say of a claim."""

    test: ClaimTest
    context: dict
    comparisons: tuple[Comparison, ...]
    missing: tuple[str, ...] = ()

    @property
    def tested(self) -> list[Comparison]:
        """Those with a p that adjusts: neither exact nor a premise."""
        return [each for each in self.deciding if each.part.kind != "exact" and not each.part.premise]

    @property
    def deciding(self) -> list[Comparison]:
        """The comparisons of the reading that stands first, and of none."""
        readings = [each.part.reading for each in self.comparisons if each.part.reading]
        return [each for each in self.comparisons if each.part.reading in ("", *readings[:1])]

    def p(self, outcome: str) -> float:
        """p of an outcome of the claim before Holm; NaN for exact statements alone."""
        tested = self.tested
        if not tested:
            return math.nan
        if outcome == AS_CLAIMED:
            return 1.0 if self.missing else max(each.possible(outcome) for each in tested)
        return min(1.0, len(tested) * min(each.possible(outcome) for each in tested))


def compared_everywhere(
    test: ClaimTest, rows: pd.DataFrame, resampled: Mapping[tuple, tables.Cells], trials: Mapping[str, int]
) -> list[Found]:
    """The contexts that have all rows of the test, those of its own notebook if any; else the one that lacks least.

    A claim of which one part is mathematics and another a measurement has a line for each.
    """
    if not test.parts:
        return [Found(test, {}, ())]
    exact, measured = _split(test)
    if exact and measured:
        return [
            each
            for parts in (exact, measured)
            for each in compared_everywhere(replace(test, parts=parts), rows, resampled, trials)
        ]
    protocol = rows["protocol"].str.lower()
    rows = rows[protocol.str.contains(test.protocol) if test.protocol else ~protocol.str.contains("mlrc")]
    found = [
        _compared(test, cells, context, studied, resampled.get(tuple(context.values()), {}), trials)
        for context, cells, studied in _contexts(rows, bool(exact))
    ]
    found = [each for each in found if each.comparisons or each.missing]  # elsewhere no part speaks of the data set
    found = found or [Found(test, {}, (), tuple(dict.fromkeys(part.subject for part in test.parts)))]
    nearest = min(found, key=lambda each: len(each.missing))
    found = [each for each in found if not each.missing] or [nearest]
    return [each for each in found if test.notebook.endswith(each.context.get("experiment") or "?")] or found


def _split(test: ClaimTest) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """The parts that are mathematics without images, and the others; a study's differences go with its statements."""
    study = tuple(part for part in test.parts if part.about == "study")
    return study, tuple(part for part in test.parts if part.about != "study")


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
    trials: Mapping[str, int],
) -> Found:
    parts = [part for part in test.parts if part.speaks_of(context["dataset"])]
    planned, judged = [], []
    missing = [name for part in parts for name in _absent(part, cells)]
    for part in parts:
        try:
            planned += [(part, *each) for each in _comparisons(part, cells)]
        except tables.MissingRows as error:
            missing.append(str(error))
    for part, name, (effects_in, *arguments) in planned:
        try:
            effects = effects_in(cells, *arguments)
        except tables.MissingRows as error:
            missing.append(str(error))
            continue
        expressions = arguments[: 1 if part.kind == "trend" else 2]
        if part.kind != "exact" and not _depends_on_seed(cells, expressions, part.metric):
            effects = effects[:1]  # one value, however often it is there
        obstacle = _obstacle(test, part, cells, context, effects)
        sides = [_methods(each) for each in arguments[:2]] if part.kind != "trend" else [_methods(arguments[0])]
        tuned = _tuned(part, sides, trials)
        if tuned == "no" and len(set().union(*sides)) > 1:
            obstacle = obstacle or _untuned(set().union(*sides), trials)
        has_learned = (None, None)
        if part.about == "training" and part.kind not in ("exact", "parity", "learned"):
            try:
                has_learned = _has_learned(part, cells, *expressions)
            except tables.MissingRows as error:
                obstacle = obstacle or f"whether anything was learned is not on record: {error}"
        comparison = compare(name, part, effects, obstacle, has_learned)
        without_images = (tables.parse_cell(part.subject)[0], part.metric) in studied
        classes = comparison.classes
        with suppress(tables.MissingRows):  # there are no hits, or they do not give this metric or these cells
            low, high = percentile_interval(effects_in(resampled, *arguments))
            classes = (100 * math.expm1(low), 100 * math.expm1(high)) if part.relative else (low, high)
        judged.append(replace(comparison, without_images=without_images, classes=classes, tuned=tuned))
    return Found(test, context, tuple(judged), tuple(dict.fromkeys(missing)))


def _absent(part: Part, cells: tables.Cells) -> Iterator[str]:
    """The cells of a part that the table does not have."""
    for cell in _cells_named(part):
        try:
            tables.levels_of(cells, cell, part.metric)
        except tables.MissingRows as error:
            yield str(error)


def _cells_named(part: Part) -> list[str]:
    return [cell for expression in (part.subject, *part.baselines) for cell in _cells_in(expression)]


def _cells_in(expression: str) -> list[str]:
    """The cells of "A - B"; none of a constant."""
    return [] if tables.is_constant(expression) else expression.split(" - ")


def _methods(expression: str) -> set[str]:
    return {tables.parse_cell(cell)[0] for cell in _cells_in(expression)}


def _comparisons(part: Part, cells: tables.Cells) -> Iterator[tuple[str, tuple]]:
    """(name, (function, *arguments)) of every comparison of a part; function(cells, *arguments) gives the effects."""
    if part.kind == "trend":
        yield f"trend of {part.subject}", (tables.slope, part.subject, part.metric)
        return
    baselines = part.baselines
    if part.kind == "learned":
        baselines = (start_of(cells, part.subject, part.metric),)
    for baseline in baselines:
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


def _depends_on_seed(cells: tables.Cells, expressions: Iterable[str], metric: str) -> bool:
    levels = [tables.levels_of(cells, cell, metric) for each in expressions for cell in _cells_in(each)]
    return any(len({*seeds.values()}) > 1 for found in levels for seeds in found.values())


def start_of(cells: tables.Cells, cell: str, metric: str) -> str:
    """The cell of the network that a cell's training began with: at the same setting, at any, or the features, which
    lie above it; MissingRows if the table has none."""
    _, _, setting = cell.partition(";")
    for start in (f"{START};{setting}".rstrip(";"), START, "untrained"):
        with suppress(tables.MissingRows):
            tables.levels_of(cells, start, metric)
            return start
    raise tables.MissingRows(f"the network before training ({metric})")


def _has_learned(part: Part, cells: tables.Cells, *expressions: str) -> tuple[bool | None, bool | None]:
    """Whether the subject and the baseline have learned; None where there is nothing to learn, as of a constant.

    MissingRows where the table does not have their scores, or those of the network before training.
    """
    enough = any if part.kind == "trend" and part.may_fail else all
    sides = [_learned(cells, expression, part.learned_on, enough) for expression in expressions]
    return (sides[0], sides[1] if len(sides) > 1 else None)


def _learned(cells: tables.Cells, expression: str, metric: str, enough: Callable = all) -> bool | None:
    """Whether all levels of all cells of an expression, or any, gained over the network they began with."""
    found = []
    for cell in _cells_in(expression):
        method = tables.parse_cell(cell)[0]
        if method in UNTRAINED:
            continue
        for setting in tables.levels_of(cells, cell, metric):
            level = f"{method};{setting}".rstrip(";")
            gain = tables.difference(cells, level, start_of(cells, level, metric), metric)
            found.append(t_interval(gain)[0] > 0)
    return enough(found) if found else None


def _obstacle(test: ClaimTest, part: Part, cells: tables.Cells, context: dict, effects: np.ndarray) -> str:
    """Why these effects can settle nothing; empty if they can."""
    if not np.isfinite(effects).all():
        return "a value is not finite"
    partial = [text for cell in _cells_named(part) if (text := tables.uncovered(cells, cell, part.metric))]
    if partial:
        return "; ".join(dict.fromkeys(partial))
    network = context.get("backbone", "")
    if part.kind != "exact" and test.network and not network.startswith(test.network):
        return f"{network or 'an unnamed network'} is no evidence about {test.network}"
    if context.get("profile") == "quick" and part.about in ("training", "features"):
        return "profile quick shows directions only"
    return ""


def _tuned(part: Part, sides: Sequence[set[str]], trials: Mapping[str, int]) -> str:
    """ "yes" if the settings of all methods were chosen by equally many trials, at least TUNED; empty if there is
    nothing to choose. Levels of an ablation share their method's search."""
    methods = set().union(*sides) - UNTRAINED
    if part.about != "training" or part.kind in ("exact", "learned") or not methods:
        return ""
    counts = {trials.get(method, 0) for method in methods}
    return "yes" if len(counts) == 1 and min(counts) >= TUNED else "no"


def _untuned(methods: set[str], trials: Mapping[str, int]) -> str:
    counts = {method: trials.get(method, 0) for method in sorted(methods)}
    if len(set(counts.values())) == 1:
        return f"not tuned: {min(counts.values())} of at least {TUNED} trials for each method"
    return "not tuned alike: trials " + ", ".join(f"{method} {count}" for method, count in counts.items())
