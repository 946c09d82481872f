"""What a table's numbers say of a claim, before any verdict: every comparison of its parts, in every context.

`judging` turns what is found here into verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import tables
from experiments.analysis.claims import FEATURES, RETRIEVAL, START, ClaimTest, Part
from experiments.analysis.statistics import (
    CONTRADICTED,
    KINDS,
    LEVEL,
    MIN_SEEDS,
    OPEN,
    SUPPORTED,
    Estimate,
    estimated,
    percentile_interval,
    t_interval,
)
from experiments.analysis.tables import Cell, Expression, MissingRows

# (method, setting, seed) -> (device, numerics fingerprint) of the lines of its runs, of which folds have several
Environments = Mapping[tuple[str, str, int], Collection[tuple[str, str]]]
UNTRAINED = {START, FEATURES, "methods"}  # rows that are of no training, or of many
TUNED = 12  # trials of a search, from which on, and if equally many, two methods are tuned alike


class Reason(StrEnum):
    """Why a comparison or a claim has no outcome."""

    ROWS = "rows missing"
    SEEDS = "seeds missing"
    RANGE = "range measured in part"
    NETWORK = "another network"
    PRECONDITION = "precondition not met"
    BELOW = "below the pretrained features"
    UNLEARNED = "not learned"
    TUNING = "not tuned alike"
    CONSTANT = "same value in every seed"
    NOT_FINITE = "value not finite"
    HOLM = "not after Holm"


NOT_RUN = (Reason.ROWS, Reason.SEEDS, Reason.RANGE, Reason.NETWORK)  # a claim of such a comparison is not run
NOT_INTERPRETABLE = (Reason.BELOW, Reason.UNLEARNED)


# --- one comparison ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Comparison:
    """One comparison of a claim, by the rules of `judging.judge`.

    baseline: an empty expression of a trend. effects: by seed, (n,), logarithms of ratios where the part is relative.
    obstacle: why these effects settle nothing; empty if they can. learned: the levels of the subject, and of the
    baseline; None where nothing is asked. below: whether the better side lies below the pretrained features, or below
    the initial network where nothing was pretrained. tuned: "yes" or "no"; empty where nothing could be. classes: the
    interval over resampled test classes. mixes: "devices" or "fingerprints" where the lines of its runs do. context:
    what of its context is not that of the claim.
    """

    part: Part
    subject: Expression
    baseline: Expression
    effects: np.ndarray
    obstacle: Reason | str = ""
    learned: tuple[tuple[bool, ...] | None, ...] = (None, None)
    below: bool = False
    tuned: str = ""
    classes: tuple[float, float] = (math.nan, math.nan)
    mixes: str = ""
    context: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.subject} vs {self.baseline}" if self.baseline != Expression() else f"trend of {self.subject}"

    @property
    def few(self) -> bool:
        """Whether there are single values and no interval."""
        return len(self.effects) < MIN_SEEDS and not self.part.by_rows

    @cached_property
    def estimate(self) -> Estimate:
        """In the unit shown: percent of a ratio; of a comparison with a constant the value itself. Of a kind that goes
        by rows: the row that speaks least for the claim, and the range."""
        effects, zero = self.effects, self.baseline.zero
        if self.part.kind == "bound":
            worst = effects.min() if self.part.sign > 0 else effects.max()
            estimate = Estimate(worst, effects.min(), effects.max(), len(effects))
        else:
            level = 1 - (2 if self.part.kind == "equivalence" else 1) * LEVEL
            estimate = estimated(effects, level, self.part.relative)
        return replace(estimate, effect=estimate.effect + zero, low=estimate.low + zero, high=estimate.high + zero)

    @property
    def interval(self) -> str:
        """What [low, high] of the estimate is called."""
        return {"bound": "range", "equivalence": "90 %"}.get(self.part.kind, "95 %")

    @property
    def singles(self) -> list[float]:
        """Of few seeds, the values in the unit shown, with three digits."""
        shown = 100 * np.expm1(self.effects) if self.part.relative else self.effects + self.baseline.zero
        return [float(f"{value:.3g}") for value in shown] if self.few else []

    @cached_property
    def p(self) -> dict[str, float]:
        """Outcome -> p before any adjustment; 1 where it is not to be had."""
        aligned = self.part.sign * self.effects
        p = KINDS[self.part.kind](aligned, self.part.sesoi, self.part.within)
        return {outcome: 1.0 if math.isnan(value) else float(value) for outcome, value in p.items()}

    @cached_property
    def reached(self) -> str:
        """The outcome that the effects alone have."""
        return next((outcome for outcome, p in self.p.items() if p < LEVEL), OPEN)

    @property
    def outcome(self) -> str:
        """One of OUTCOMES: what the effects say, where nothing stands in its way."""
        return OPEN if self.reason else self.reached

    @cached_property
    def reason(self) -> Reason | str:
        """Why it says nothing; empty if it does. One counterexample of a bound is enough, over any range."""
        if self.part.kind == "bound" and self.reached == CONTRADICTED and np.isfinite(self.effects).all():
            return ""
        return self.obstacle or self._uninterpretable

    @property
    def _uninterpretable(self) -> Reason | str:
        """The better side must have learned; the other one too where they differ as claimed or do not differ, unless it
        may fail. Of measures and of differences of cells no side is better: both must have learned."""
        if self.below:
            return Reason.BELOW
        sides = [True if levels is None else all(levels) for levels in self.learned]
        if self.baseline == Expression():  # of a trend one level
            return "" if self.learned[0] is None or any(self.learned[0]) else Reason.UNLEARNED
        better, behind = int(self.effects.mean() < 0), 1 - int(self.part.direction == "lower")
        if not self.part.metric.startswith(RETRIEVAL) or max(len(self.subject.cells), len(self.baseline.cells)) > 1:
            needed = {0, 1} if self.reached != OPEN else set()
        else:
            needed = {better} | ({1 - better} if self.reached not in (OPEN, CONTRADICTED) else set())
        if self.part.may_fail and self.reached == SUPPORTED:
            needed -= {behind}
        return "" if all(sides[side] for side in needed) else Reason.UNLEARNED


@dataclass(frozen=True)
class ClaimResult:
    """What the cells of one context say of a claim; missing: the rows that its deciding comparisons lack."""

    test: ClaimTest
    context: dict[str, Any]
    comparisons: tuple[Comparison, ...]
    missing: tuple[str, ...] = ()

    @cached_property
    def deciding(self) -> list[Comparison]:
        """Those that state what the paper's sentence states."""
        return [comparison for comparison in self.comparisons if comparison.part.decides]

    def count(self, outcome: str) -> int:
        return sum(comparison.outcome == outcome for comparison in self.deciding)

    def p(self, outcome: str) -> float:
        """p of a claim's outcome before Holm: the largest of its comparisons for *supported*, n times the smallest for
        *contradicted*; NaN where every comparison goes by rows."""
        tested = [comparison for comparison in self.deciding if not comparison.part.by_rows]
        possible = [1.0 if comparison.reason else comparison.p.get(outcome, 1.0) for comparison in tested]
        if not possible:
            return math.nan
        if outcome == SUPPORTED:
            return 1.0 if self.missing else max(possible)
        by_row = any(comparison.outcome == outcome for comparison in self.deciding if comparison.part.by_rows)
        return 0.0 if by_row else min(1.0, len(possible) * min(possible))


# --- where a claim can be judged --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Context:
    """One context of a table: where it is, its cells, those (method, metric) of them that need no images, its cells
    under resampled test classes, by method how many trials chose its settings, on what each run was trained (device,
    fingerprint), and the method whose score a trained network must reach."""

    where: dict[str, Any]
    cells: tables.Cells
    studied: frozenset[tuple[str, str]]
    resampled: tables.Cells
    trials: Mapping[str, int]
    environments: Environments
    floor: str


def compared_everywhere(
    test: ClaimTest,
    rows: pd.DataFrame,
    resampled: Mapping[tuple, tables.Cells],
    trials: Mapping[str, int],
    environments: Environments,
    floor: str,
) -> list[ClaimResult]:
    """The contexts that have all rows of the test, those of its own notebook if any; else the one that lacks least."""
    protocol = rows["protocol"].str.lower()
    rows = rows[protocol.str.contains(test.protocol) if test.protocol else ~protocol.str.contains("mlrc")]
    without_images = all(part.about == "study" for part in test.parts)
    results = [
        _compared(
            test, Context(where, cells, studied, resampled.get(tuple(where.values()), {}), trials, environments, floor)
        )
        for where, cells, studied in _contexts(rows, without_images)
    ]
    results = [result for result in results if result.comparisons or result.missing]  # of data that parts speak of
    nothing = ClaimResult(test, {}, (), tuple(dict.fromkeys(str(part.subject) for part in test.parts)))
    nearest = min(results, key=lambda result: len(result.missing), default=nothing)
    results = [result for result in results if not result.missing] or [nearest]
    if test.decides == "all":
        results = [_together(results)]
    own = [result for result in results if test.notebook.endswith(result.context.get("experiment") or "?")]
    return own or results


def _together(results: list[ClaimResult]) -> ClaimResult:
    """The results of all protocols of one table as one."""
    protocols = " + ".join(dict.fromkeys(str(result.context.get("protocol", "")) for result in results))
    compared = [
        replace(comparison, context={name: result.context.get(name, "") for name in ("dim", "protocol")})
        for result in results
        for comparison in result.comparisons
    ]
    first = results[0]
    return replace(first, context=first.context | {"protocol": protocols}, comparisons=tuple(compared))


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
        network = [name for name in tables.CONTEXT if name != "dim"]
        without_head = {key: tables.cells_of(rows) for key, rows in group[headless].groupby(network, dropna=False)}
        for context, runs in group[trained].groupby(tables.CONTEXT, dropna=False, sort=False):
            context = dict(zip(tables.CONTEXT, context))
            beside = without_head.get(tuple(context[name] for name in network), {})
            yield context, studied | beside | tables.cells_of(runs), frozenset(studied)


def _compared(test: ClaimTest, context: Context) -> ClaimResult:
    missing: list[str] = []
    comparisons: dict[tuple, Comparison] = {}  # two parts may name one level, as a corner of a grid

    @contextmanager
    def noting_what_is_missing(part: Part):
        try:
            yield
        except MissingRows as error:
            if part.decides:
                missing.append(str(error))

    for part in (part for part in test.parts if part.speaks_of(context.where["dataset"])):
        for cell in part.cells:
            with noting_what_is_missing(part):
                tables.levels_of(context.cells, cell, part.metric)
        with noting_what_is_missing(part):
            for pair in list(_pairs(part, context.cells)):
                alike = (part.kind, part.metric, part.direction, part.interpretation, *map(str, pair))
                with noting_what_is_missing(part):
                    compared = _comparison(test, part, pair, context)
                    if alike not in comparisons or compared.obstacle:
                        comparisons[alike] = compared
    return ClaimResult(test, context.where, tuple(comparisons.values()), tuple(dict.fromkeys(missing)))


def _pairs(part: Part, cells: tables.Cells) -> Iterator[tuple[Expression, Expression]]:
    """(subject, baseline) of every comparison: of an equivalence and of a bound each level of the subject."""
    if not part.baselines:
        yield part.subject, Expression()
    for baseline in part.baselines:
        if part.kind not in ("equivalence", "bound"):
            yield part.subject, baseline
            continue
        levels, *own = (
            list(tables.levels_of(cells, cell, part.metric)) for cell in (*part.subject.cells, *baseline.cells)
        )
        levels = [level for level in levels if [level] not in own]  # the baseline may be one of them
        if not levels:
            raise MissingRows(f"a second level of {part.subject} ({part.metric})")
        yield from ((Expression((level,)), baseline) for level in levels)


def _effects(part: Part, cells: tables.Cells, subject: Expression, baseline: Expression) -> np.ndarray:
    if not part.baselines:
        return tables.slope(cells, *subject.cells, part.metric)  # type: ignore[call-arg, arg-type]
    return tables.difference(cells, subject, baseline, part.metric, part.relative)


def _comparison(test: ClaimTest, part: Part, pair: tuple[Expression, Expression], context: Context) -> Comparison:
    """MissingRows where the table does not have its effects."""
    cells = context.cells
    effects = _effects(part, cells, *pair)
    levels = [tables.levels_of(cells, cell, part.metric) for expression in pair for cell in expression.cells]
    drawn = any(len({*seeds.values()}) > 1 for by_level in levels for seeds in by_level.values())
    tuned, alike = _tuned(part, pair[0].methods | pair[1].methods, context.trials)
    obstacle = _obstacle(test, part, context, effects) or ("" if alike else Reason.TUNING)
    if not drawn and not part.by_rows:  # one value, however often it is there
        obstacle, effects = obstacle or Reason.CONSTANT, effects[:1]
    learned: tuple[tuple[bool, ...] | None, ...] = (None, None)
    below = False
    if part.about == "training" and part.kind not in ("bound", "noninferiority"):
        try:
            learned = tuple(_learned(part, cells, side) or None for side in pair)
            below = part.metric.startswith(RETRIEVAL) and _below(part, cells, pair, context.floor)
        except MissingRows:  # the scores, or those of the network before training
            obstacle = obstacle or Reason.ROWS
    classes = (math.nan, math.nan)
    with suppress(MissingRows):  # there are no hits, or they do not give this metric or these cells
        classes = percentile_interval(_effects(part, context.resampled, *pair))
        if part.relative:
            classes = (100 * math.expm1(classes[0]), 100 * math.expm1(classes[1]))
    studied = (part.subject.cells[0].method, part.metric) in context.studied
    elsewhere = {"dataset": tables.SYNTHETIC, "backbone": "", "dim": "", "protocol": ""} if studied else {}
    mixes = _mixes(levels, context.environments) if part.about == "training" else ""
    return Comparison(part, *pair, effects, obstacle, learned, below, tuned, classes, mixes, elsewhere)


def _mixes(levels: list[dict[Cell, dict[int, Any]]], environments: Environments) -> str:
    """ "devices" or "fingerprints", where the lines of the runs that are compared were trained on several; a row that
    another setting names than its run is of a run of the method."""
    compared = {(level, seed) for by_level in levels for level, seeds in by_level.items() for seed in seeds}
    trained_on = {
        environment
        for level, seed in compared
        for environment in environments.get(
            (level.method, level.setting, seed), environments.get((level.method, "", seed), ())
        )
    }
    devices, fingerprints = ({environment[place] for environment in trained_on} for place in (0, 1))
    return "devices" if len(devices) > 1 else "fingerprints" if len(fingerprints) > 1 else ""


def _obstacle(test: ClaimTest, part: Part, context: Context, effects: np.ndarray) -> Reason | str:
    """Why these effects can settle nothing, whoever was tuned and has learned."""
    if not np.isfinite(effects).all():
        return Reason.NOT_FINITE
    if any(tables.uncovered(context.cells, cell, part.metric) for cell in part.cells):
        return Reason.RANGE
    if not part.by_rows and test.network and not context.where.get("backbone", "").startswith(test.network):
        return Reason.NETWORK
    measured = part.about in ("training", "features")
    planned = test.seeds if part.about == "training" else MIN_SEEDS
    if (measured and context.where.get("profile") == "quick") or (not part.by_rows and len(effects) < planned):
        return Reason.SEEDS  # quick shows directions only
    return ""


def _tuned(part: Part, methods: set[str], trials: Mapping[str, int]) -> tuple[str, bool]:
    """ "yes" if the settings of all methods were chosen by equally many trials, at least TUNED, else "no", empty where
    there is nothing to choose; and whether the methods can be compared: levels of an ablation share their search."""
    counts = {method: trials.get(method, 0) for method in methods}
    chosen = {count for method, count in counts.items() if method not in UNTRAINED}
    if part.about != "training" or part.by_rows or START in methods or not chosen:
        return "", True
    tuned = len(chosen) == 1 and min(chosen) >= TUNED
    return ("yes" if tuned else "no"), tuned or len(methods) == 1


def _learned(part: Part, cells: tables.Cells, side: Expression) -> tuple[bool, ...]:
    """Whether each level of each cell gained over the network it began with; none where there is nothing to learn, as
    of a constant. MissingRows where the table does not have their scores, or those of the network before training."""
    gained = []
    for cell in side.cells:
        for level in tables.levels_of(cells, cell, part.learned_on) if cell.method not in UNTRAINED else ():
            start = Expression((start_of(cells, level, part.learned_on),))
            gain = tables.difference(cells, Expression((level,)), start, part.learned_on)
            gained.append(t_interval(gain)[0] > 0)
    return tuple(gained)


def start_of(cells: tables.Cells, cell: Cell, metric: str) -> Cell:
    """The network that a cell's training began with: at the same setting, at any, or the features, which lie above it;
    MissingRows if the table has none."""
    for start in (Cell(START, cell.settings), Cell(START), Cell(FEATURES)):
        with suppress(MissingRows):
            tables.levels_of(cells, start, metric)
            return start
    raise MissingRows(f"the network before training ({metric})")


def _below(part: Part, cells: tables.Cells, pair: tuple[Expression, Expression], floor: str) -> bool:
    """Whether the best cell that is compared, of a trend the best level, lies below the floor; not where the table does
    not have that."""
    named = [cell for side in pair for cell in side.cells if cell.method not in UNTRAINED]
    if not part.baselines:
        named = [level for cell in named for level in tables.levels_of(cells, cell, part.metric)]
    means = [np.mean([*tables.by_seed(cells, Expression((cell,)), part.metric).values()]) for cell in named]
    with suppress(MissingRows):
        least = np.mean([*tables.by_seed(cells, Expression((Cell(floor),)), part.metric).values()])
        return bool(means) and max(means) < least
    return False
