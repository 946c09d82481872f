"""What a table's numbers say of a claim, before any verdict: every comparison of its parts, in every context.

`judging` turns what is found here into verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import tables
from experiments.analysis.claims import (
    AS_CLAIMED,
    NO_DIFFERENCE,
    OUTCOMES,
    START,
    ClaimTest,
    Difference,
    Exact,
    Part,
    Trend,
    start_of,
)
from experiments.analysis.statistics import LEVEL, MIN_SEEDS, Estimate, percentile_interval, t_interval
from experiments.analysis.tables import Expression

UNCLEAR, FAILURES, COST = "unclear", "compares failures", "cost on this device"
UNTRAINED = {START, "untrained", "methods"}  # rows that are of no training, or of many
TUNED = 12  # trials of a search, from which on, and if equally many, two methods are tuned alike


# --- one comparison ---------------------------------------------------------------------------------------------------


ENDS = {"_correlation": (-1.0, 1.0), "_auroc": (0.0, 1.0), "_purity": (0.0, 1.0)}  # of the values of measures by name


@dataclass(frozen=True, eq=False)
class Comparison:
    """One comparison of a claim, by the rules of `judging.judge`.

    baseline: an empty expression of a trend. effects: by seed, (n,), logarithms of ratios where the part is relative.
    hindrance: why these effects can settle nothing; empty if they can. no_room: why they cannot be as large as claimed,
    so that small ones say nothing. has_learned: the subject, and the baseline; None where nothing is asked. failed: no
    level of either side has learned. tuned: "yes" or "no"; empty where nothing could be. classes: the interval over
    resampled test classes.
    """

    part: Part
    subject: Expression
    baseline: Expression
    effects: np.ndarray
    hindrance: str = ""
    no_room: str = ""
    has_learned: tuple[bool | None, ...] = (None, None)
    failed: bool = False
    tuned: str = ""
    without_images: bool = False
    classes: tuple[float, float] = (math.nan, math.nan)

    @property
    def name(self) -> str:
        return f"trend of {self.subject}" if isinstance(self.part, Trend) else f"{self.subject} vs {self.baseline}"

    @property
    def said(self) -> str:
        """For people: "PFML: M = 30 vs M = 15", "PFML at M = 30 vs CPML", "PFML at M = 30 against the constant 1.1"."""
        if isinstance(self.part, Trend):
            return f"trend of {self.subject.said}"
        cells = (*self.subject.cells, *self.baseline.cells)
        if len(cells) == 2 and len({cell.method for cell in cells}) == 1 and all(cell.settings for cell in cells):
            return f"{cells[0].method}: {' vs '.join(cell.setting_said for cell in cells)}"
        return (
            f"{self.subject.said} {'against the constant' if self.baseline.is_constant else 'vs'} {self.baseline.said}"
        )

    @property
    def few(self) -> bool:
        """Whether there are single values and no interval."""
        return len(self.effects) < MIN_SEEDS and not isinstance(self.part, Exact)

    @cached_property
    def estimate(self) -> Estimate:
        """In the unit shown: percent of a ratio; of a comparison with a constant the value itself."""
        estimate, zero = self.part.estimate(self.effects), self.baseline.zero
        return replace(estimate, effect=estimate.effect + zero, low=estimate.low + zero, high=estimate.high + zero)

    @property
    def singles(self) -> list[float]:
        """Of few seeds, the values in the same unit, with the three digits that are shown."""
        shown = 100 * np.expm1(self.effects) if self.part.relative else self.effects + self.baseline.zero
        return [float(f"{value:.3g}") for value in shown] if self.few else []

    @cached_property
    def _tested(self) -> tuple[bool, dict[str, float]]:
        as_claimed, p = self.part.tested(self.part.sign * self.effects)
        return bool(as_claimed), {outcome: value for outcome, value in p.items() if not math.isnan(value)}

    @property
    def as_claimed(self) -> bool:
        return self._tested[0]

    @property
    def p(self) -> dict[str, float]:
        """Outcome -> p before any adjustment; an outcome that these effects do not have is not in it."""
        return self._tested[1]

    @cached_property
    def why(self) -> dict[str, str]:
        """Outcome -> what stands in its way, a failure among them."""
        if self._nothing:
            return dict.fromkeys(OUTCOMES, self._nothing)
        sides = self.subject, self.baseline
        unlearned = {
            outcome: f"{sides[side]} has not learned"
            for outcome in OUTCOMES
            for side in self.part.learners(outcome, self.part.sign * self.effects)
            if self.has_learned[side] is False
        }
        return ({NO_DIFFERENCE: self.no_room} if self.no_room else {}) | unlearned

    @cached_property
    def _nothing(self) -> str:
        """Why nothing can be settled."""
        if isinstance(self.part, Exact) and not self.as_claimed and np.isfinite(self.effects).all():
            return ""  # one counterexample is enough, over any range
        return self.hindrance or (f"{len(self.effects)} of the {MIN_SEEDS} seeds needed" if self.few else "")

    @property
    def failures(self) -> bool:
        """Whether it is of failures, and nothing else stands in its way."""
        return self.failed and not self._nothing

    def possible(self, outcome: str) -> float:
        """The p of an outcome in whose way nothing stands, else 1."""
        return 1.0 if self.why.get(outcome) else self.p.get(outcome, 1.0)

    @property
    def outcome(self) -> str:
        """What it would be alone, before any adjustment."""
        otherwise = FAILURES if self.failures else UNCLEAR
        return next((outcome for outcome in OUTCOMES if self.possible(outcome) < LEVEL), otherwise)

    @property
    def obstacle(self) -> str:
        """What stands in the way of an outcome that its p allows, else of any; empty if nothing does."""
        if self.outcome in OUTCOMES:
            return ""
        reached = [self.why[name] for name in OUTCOMES if self.p.get(name, 1.0) < LEVEL and self.why.get(name)]
        general = list(self.why.values()) if len(self.why) == len(OUTCOMES) else []
        return (reached or general or [""])[0]


@dataclass(frozen=True)
class Found:
    """What the cells of one context say of a claim."""

    test: ClaimTest
    context: dict[str, Any]
    comparisons: tuple[Comparison, ...]
    missing: tuple[str, ...] = ()

    @cached_property
    def readings(self) -> list[str]:
        return list(filter(None, dict.fromkeys(comparison.part.reading for comparison in self.comparisons)))

    def read(self, reading: str) -> Found:
        """With the comparisons of one reading, and of none."""
        comparisons = (comparison for comparison in self.comparisons if comparison.part.reading in ("", reading))
        return replace(self, comparisons=tuple(comparisons))

    @cached_property
    def deciding(self) -> tuple[Comparison, ...]:
        """The comparisons of the reading that stands first, and of none."""
        return self.read(self.readings[0]).comparisons if self.readings else self.comparisons

    @property
    def said(self) -> list[Comparison]:
        """Those of what the claim says: no premise."""
        return [comparison for comparison in self.deciding if not comparison.part.premise]

    @property
    def tested(self) -> list[Comparison]:
        """Those with a p that adjusts."""
        return [comparison for comparison in self.said if not isinstance(comparison.part, Exact)]

    def p(self, outcome: str) -> float:
        """p of an outcome of the claim before Holm; NaN for exact statements alone."""
        possible = [comparison.possible(outcome) for comparison in self.tested]
        if not possible:
            return math.nan
        if outcome == AS_CLAIMED:
            return 1.0 if self.missing else max(possible)
        return min(1.0, len(possible) * min(possible))


# --- where a claim can be judged --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """One context of a table: its cells, those (method, metric) of them that need no images, its cells under resampled
    test classes, and by method how many trials chose its settings."""

    context: dict[str, Any]
    cells: tables.Cells
    studied: frozenset[tuple[str, str]]
    resampled: tables.Cells
    trials: Mapping[str, int]


def compared_everywhere(
    test: ClaimTest, rows: pd.DataFrame, resampled: Mapping[tuple, tables.Cells], trials: Mapping[str, int]
) -> list[Found]:
    """The contexts that have all rows of the test, those of its own notebook if any; else the one that lacks least.

    A claim of which one part is mathematics and another a measurement has a line for each.
    """
    exact = tuple(part for part in test.parts if part.about == "study")  # a study's differences go with its statements
    measured = tuple(part for part in test.parts if part.about != "study")
    if exact and measured:
        halves = (replace(test, parts=parts) for parts in (exact, measured))
        return [finding for half in halves for finding in compared_everywhere(half, rows, resampled, trials)]
    protocol = rows["protocol"].str.lower()
    rows = rows[protocol.str.contains(test.protocol) if test.protocol else ~protocol.str.contains("mlrc")]
    places = (
        Place(context, cells, studied, resampled.get(tuple(context.values()), {}), trials)
        for context, cells, studied in _contexts(rows, bool(exact))
    )
    findings = [_compared(test, place) for place in places]
    # elsewhere no part speaks of the data set
    findings = [finding for finding in findings if finding.comparisons or finding.missing]
    findings = findings or [Found(test, {}, (), tuple(dict.fromkeys(str(part.subject) for part in test.parts)))]
    nearest = min(findings, key=lambda finding: len(finding.missing))
    findings = [finding for finding in findings if not finding.missing] or [nearest]
    own = [finding for finding in findings if test.notebook.endswith(finding.context.get("experiment") or "?")]
    return own or findings


def _contexts(
    rows: pd.DataFrame, without_images: bool
) -> Iterator[tuple[dict[str, Any], tables.Cells, frozenset[tuple[str, str]]]]:
    """(context, cells, those (method, metric) that need no images) of every context.

    A study without images belongs to all data sets of its experiment; one alone is a context of its own, per network.
    A network without a head, the untrained one, is compared with networks of every dimension.

    without_images: the test asks for such studies only, so that an experiment is one context.
    """
    for (experiment, profile), group in rows.groupby(["experiment", "profile"], sort=False):
        study = group["dataset"] == tables.SYNTHETIC
        headless = pd.to_numeric(group["dim"], errors="coerce") == 0
        if without_images or study.all():
            for backbone, part in [("", group)] if without_images else group.groupby("backbone", sort=False):
                context = (experiment, profile, tables.SYNTHETIC, backbone, "", "")
                yield dict(zip(tables.CONTEXT, context)), tables.cells_of(part), frozenset()
            continue
        studied = tables.cells_of(group[study])
        trained = ~study & ~headless if (~study & ~headless).any() else ~study
        for context, runs in group[trained].groupby(tables.CONTEXT, dropna=False, sort=False):
            context = dict(zip(tables.CONTEXT, context))
            same = (group[[name for name in context if name != "dim"]] == pd.Series(context).drop("dim")).all(axis=1)
            cells = studied | tables.cells_of(group[same & headless]) | tables.cells_of(runs)
            yield context, cells, frozenset(studied)


def _compared(test: ClaimTest, place: Place) -> Found:
    parts = [part for part in test.parts if part.speaks_of(place.context["dataset"])]
    missing: list[str] = []
    comparisons = []

    @contextmanager
    def noting_what_is_missing():
        try:
            yield
        except tables.MissingRows as error:
            missing.append(str(error))

    for part in parts:
        for cell in part.cells:
            with noting_what_is_missing():
                tables.levels_of(place.cells, cell, part.metric)
    for part in parts:
        with noting_what_is_missing():
            for pair in list(part.pairs(place.cells)):
                with noting_what_is_missing():
                    comparisons.append(_comparison(test, part, pair, place))
    return Found(test, place.context, tuple(comparisons), tuple(dict.fromkeys(missing)))


def _comparison(test: ClaimTest, part: Part, pair: tuple[Expression, Expression], place: Place) -> Comparison:
    """MissingRows where the table does not have its effects."""
    effects = part.effects(place.cells, *pair)
    levels = [tables.levels_of(place.cells, cell, part.metric) for expression in pair for cell in expression.cells]
    drawn = any(len({*seeds.values()}) > 1 for by_level in levels for seeds in by_level.values())
    same = ""
    if not drawn and not isinstance(part, Exact):
        same = f"the same value in each of {len(effects)} seeds" if len(effects) > 1 else ""
        effects = effects[:1]  # one value, however often it is there
    tuned, untuned = _tuned(part, pair[0].methods | pair[1].methods, place.trials)
    hindrances = [*_hindrances(test, part, place, effects), untuned, same]
    has_learned: tuple[bool | None, ...] = (None, None)
    failed = False
    if part.about == "training" and part.needs_learning:
        try:
            learned = [_learned(part, place.cells, side) for side in pair]
            enough = any if isinstance(part, Trend) and part.may_fail else all
            has_learned = tuple(enough(levels) if levels else None for levels in learned)
            failed = any(learned) and not any(map(any, learned))
        except tables.MissingRows as error:
            hindrances.append(f"whether anything was learned is not on record: {error}")
    classes = (math.nan, math.nan)
    with suppress(tables.MissingRows):  # there are no hits, or they do not give this metric or these cells
        classes = percentile_interval(part.effects(place.resampled, *pair))
        if part.relative:
            classes = (100 * math.expm1(classes[0]), 100 * math.expm1(classes[1]))
    without_images = (part.subject.cells[0].method, part.metric) in place.studied
    hindrance = next(filter(None, hindrances), "")
    no_room = _without_room(part, place.cells, pair[1])
    return Comparison(part, *pair, effects, hindrance, no_room, has_learned, failed, tuned, without_images, classes)


def _hindrances(test: ClaimTest, part: Part, place: Place, effects: np.ndarray) -> Iterator[str]:
    """Why these effects can settle nothing, whoever was tuned and has learned."""
    if not np.isfinite(effects).all():
        yield "a value is not finite"
    partial = (tables.uncovered(place.cells, cell, part.metric) for cell in part.cells)
    yield "; ".join(dict.fromkeys(filter(None, partial)))
    network = place.context.get("backbone", "")
    if not isinstance(part, Exact) and test.network and not network.startswith(test.network):
        yield f"{network or 'an unnamed network'} is no evidence about {test.network}"
    if place.context.get("profile") == "quick" and part.about in ("training", "features"):
        yield "profile quick shows directions only"
    if part.about == "training" and not isinstance(part, Exact) and MIN_SEEDS <= len(effects) < test.seeds:
        yield f"{len(effects)} of the {test.seeds} seeds planned"


def _tuned(part: Part, methods: set[str], trials: Mapping[str, int]) -> tuple[str, str]:
    """ "yes" if the settings of all methods were chosen by equally many trials, at least TUNED, else "no"; and why the
    methods cannot be compared then. Both empty where there is nothing to choose; levels of an ablation share their
    method's search."""
    counts = {method: trials.get(method, 0) for method in sorted(methods)}
    chosen = {count for method, count in counts.items() if method not in UNTRAINED}
    if part.about != "training" or not part.needs_tuning or not chosen:
        return "", ""
    if len(chosen) == 1 and min(chosen) >= TUNED:
        return "yes", ""
    if len(methods) == 1:
        return "no", ""
    if len(set(counts.values())) == 1:
        return "no", f"not tuned: {min(chosen)} of at least {TUNED} trials for each method"
    return "no", f"not tuned alike: trials {', '.join(f'{method} {count}' for method, count in counts.items())}"


def _learned(part: Part, cells: tables.Cells, side: Expression) -> list[bool]:
    """Whether each level of each cell gained over the network it began with; none where there is nothing to learn, as
    of a constant.

    MissingRows where the table does not have their scores, or those of the network before training.
    """
    metric, gained = part.learned_on, []
    for cell in side.cells:
        for level in tables.levels_of(cells, cell, metric) if cell.method not in UNTRAINED else ():
            start = start_of(cells, level, metric)
            gain = tables.difference(cells, Expression((level,)), Expression((start,)), metric)
            gained.append(t_interval(gain)[0] > 0)
    return gained


def _without_room(part: Part, cells: tables.Cells, baseline: Expression) -> str:
    """Why no subject can lie as far from the baseline as counts: its values end before. Empty if it can."""
    if not isinstance(part, Difference) or part.relative or len(baseline.cells) != 1:
        return ""
    end = next((ends for name, ends in ENDS.items() if part.metric.endswith(name)), None)
    if end is None:
        return ""
    mean = float(np.mean([*tables.by_seed(cells, baseline, part.metric).values()]))
    room = part.sign * (end[part.sign > 0] - mean)
    return f"{baseline} leaves {room:.2g} of the {part.size} that count" if room < part.smallest_effect else ""
