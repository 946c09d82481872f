"""What a table's numbers say of a claim, before any verdict: every comparison of its parts, in every context."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import tables
from experiments.analysis.claims import PLANNED_OF, RETRIEVAL, ClaimTest, Part
from experiments.analysis.statistics import CONTRADICTED, KINDS, LEVEL, MIN_SEEDS, OPEN, SUPPORTED, t_interval
from experiments.analysis.tables import FEATURES, START, Cell, Expression, MissingRows

# (method, setting, seed) -> (device, numerics fingerprint) of the lines of its runs, of which folds have several
Environments = Mapping[tuple[str, str, int], Collection[tuple[str, str]]]
UNTRAINED = {START, FEATURES, "methods"}  # rows that are of no training, or of many
TUNED = 12  # trials of a search, from which on, and if equally many, two methods have an equal tuning budget
TUNED_OF = {"mobilenet_v2": 4}  # at profile small options are published and trials are of the learning rate alone


class Reason(StrEnum):
    """Why a comparison or a claim has no outcome."""

    ROWS = "rows missing"
    SEEDS = "seeds missing"
    RANGE = "range measured in part"
    NETWORK = "another network"
    PRECONDITION = "precondition not met"
    BELOW = "below the pretrained features"
    UNLEARNED = "not learned"
    TUNING = "unequal or no tuning"
    CONSTANT = "same value in every seed"
    NOT_FINITE = "value not finite"
    HOLM = "not after Holm"


@dataclass(frozen=True, eq=False)
class Comparison:
    """One comparison of a claim, by the rules of `judging.judge`."""

    part: Part
    subject: Expression
    baseline: Expression  # empty for a trend
    effects: np.ndarray  # by seed, (n,), logarithms of ratios where the part is relative
    reason: Reason | str = ""  # why these effects settle nothing; empty if they do
    tuned: str = ""  # "yes" or "no"; empty where nothing could be
    classes: tuple[float, float] = (math.nan, math.nan)  # the interval over resampled test classes
    mixes: str = ""  # "devices" or "fingerprints" where the lines of its runs do, see `_mixes`
    context: Mapping[str, Any] = field(default_factory=dict)  # what of its context is not that of the claim

    @property
    def name(self) -> str:
        return f"{self.subject} vs {self.baseline}" if self.baseline != Expression() else f"trend of {self.subject}"

    @property
    def few(self) -> bool:  # single values and no interval
        return len(self.effects) < MIN_SEEDS and not self.part.by_rows

    def in_unit(self, effects: np.ndarray) -> np.ndarray:
        """Effects in the unit shown: percent of a ratio; of a comparison with a constant the value itself."""
        return 100 * np.expm1(effects) if self.part.relative else effects + self.baseline.zero

    @cached_property
    def estimate(self) -> tuple[float, float, float]:
        """The mean effect and its interval, in the unit shown; of a bound the least favourable row, and the range."""
        if self.part.kind == "bound":
            ends = self.effects.min(), self.effects.max()
            numbers = (ends[self.part.sign < 0], *ends)
        else:
            level = 1 - (2 if self.part.kind == "equivalence" else 1) * LEVEL
            numbers = (self.effects.mean(), *t_interval(self.effects, level))
        effect, low, high = map(float, self.in_unit(np.array(numbers)))
        return effect, low, high

    @cached_property
    def p(self) -> dict[str, float]:
        """Outcome -> p before any adjustment."""
        return {outcome: float(value) for outcome, value in p_of(self.part, self.effects).items()}

    @property
    def outcome(self) -> str:
        """What the effects say, where nothing stands in its way, else OPEN."""
        return OPEN if self.reason else str(reached(self.p))


def p_of(part: Part, effects: np.ndarray) -> dict[str, np.ndarray]:
    """Outcome -> p (...) of effects (..., n) before any adjustment; 1 where it is not to be had."""
    p = KINDS[part.kind](part.sign * effects, part.sesoi, part.within)
    return {outcome: np.nan_to_num(value, nan=1.0) for outcome, value in p.items()}


def reached(p: Mapping[str, Any]) -> np.ndarray:
    """The first outcome (...) whose p (...) lies below the level."""
    return np.select([np.less(value, LEVEL) for value in p.values()], [*p], OPEN)


def p_of_claim(comparisons: Sequence[Comparison], p: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Outcome -> p (...) of a claim before Holm, of those of its comparisons, 1 where a reason stops one: *supported*
    has the largest, *contradicted* n times the smallest, or 0 where rows contradict; NaN where all go by rows."""
    known = [dict.fromkeys(of, np.ones_like(of[SUPPORTED])) if one.reason else of for one, of in zip(comparisons, p)]
    tested = [of for one, of in zip(comparisons, known) if not one.part.by_rows]
    if not tested:
        return dict.fromkeys((SUPPORTED, CONTRADICTED), np.array(math.nan))
    refuted = [np.less(of[CONTRADICTED], LEVEL) for one, of in zip(comparisons, known) if one.part.by_rows]
    adjusted = np.minimum(1, len(tested) * np.min([of[CONTRADICTED] for of in tested], axis=0))
    return {
        SUPPORTED: np.max([of[SUPPORTED] for of in tested], axis=0),
        CONTRADICTED: np.where(np.any(refuted, axis=0), 0.0, adjusted),
    }


@dataclass(frozen=True)
class ClaimResult:
    """What the cells of one context say of a claim."""

    test: ClaimTest
    context: dict[str, Any]
    comparisons: Sequence[Comparison]
    missing: Sequence[str] = ()  # rows that its deciding comparisons lack

    @cached_property
    def deciding(self) -> list[Comparison]:
        return [comparison for comparison in self.comparisons if comparison.part.decides]

    @property
    def supported(self) -> int:
        """How many deciding comparisons are supported."""
        return sum(comparison.outcome == SUPPORTED for comparison in self.deciding)

    @cached_property
    def p(self) -> dict[str, float]:
        """Outcome -> p of the claim before Holm; it is not supported where rows are missing."""
        p = {name: float(value) for name, value in p_of_claim(self.deciding, [one.p for one in self.deciding]).items()}
        return p | ({SUPPORTED: 1.0} if self.missing and not math.isnan(p[SUPPORTED]) else {})


@dataclass(frozen=True)
class Context:
    """One context of a table."""

    where: dict[str, Any]
    cells: tables.Cells
    studied: Mapping[tuple[str, str], str]  # (method, metric) of the cells that need no images: their network
    resampled: tables.Cells  # the cells under resampled test classes
    trials: Mapping[str, int]  # by method, how many chose its settings
    environments: Environments
    floor: str  # the method whose score a trained network must reach


def compared_everywhere(test: ClaimTest, contexts: Iterable[Context]) -> list[ClaimResult]:
    """The contexts that have all rows of the test, those of its own notebook if any; else the one that lacks least."""
    results = [_compared(test, context) for context in contexts]
    results = [result for result in results if result.comparisons or result.missing]  # of data that parts speak of
    nothing = ClaimResult(test, {}, (), [*dict.fromkeys(str(part.subject) for part in test.parts)])
    nearest = min(results, key=lambda result: len(result.missing), default=nothing)
    results = [result for result in results if not result.missing] or [nearest]
    if test.decides == "all":  # the results of all protocols of one table are one
        protocols = " + ".join(dict.fromkeys(str(result.context.get("protocol", "")) for result in results))
        compared: list[Comparison] = []
        for result in results:
            where = {name: result.context.get(name, "") for name in ("dim", "protocol")}
            compared += [replace(comparison, context=where) for comparison in result.comparisons]
        results = [replace(results[0], context=results[0].context | {"protocol": protocols}, comparisons=compared)]
    own = [result for result in results if test.notebook.endswith(result.context.get("experiment") or "?")]
    return own or results


def contexts_of(
    rows: pd.DataFrame, protocol: str, without_images: bool, resampled: Mapping[tuple, tables.Cells], **how: Any
) -> Iterator[Context]:
    """Every context of the rows whose protocol contains this text; of every protocol but MLRC where it is empty.

    A study without images belongs to all data sets of its experiment; one alone is a context of its own, per network,
    or one per experiment where only such studies count (`without_images`). A network without a head, the untrained one,
    is compared with networks of every dimension. how: trials, environments and floor of each `Context`.
    """
    protocols = rows["protocol"].str.lower()
    rows = rows[protocols.str.contains(protocol) if protocol else ~protocols.str.contains("mlrc")]
    for (experiment, profile), group in rows.groupby(["experiment", "profile"], sort=False):
        study = group["dataset"] == tables.SYNTHETIC
        if without_images or study.all():
            for backbone, part in [("", group)] if without_images else group.groupby("backbone", sort=False):
                where = dict(zip(tables.CONTEXT, (experiment, profile, tables.SYNTHETIC, backbone, "", "")))
                yield Context(where, tables.cells_of(part), {}, {}, **how)
            continue
        studied = dict(group[study].groupby(["method", "metric"])["backbone"].first())
        headless = pd.to_numeric(group["dim"], errors="coerce") == 0
        trained = ~study & ~headless if (~study & ~headless).any() else ~study
        network = [name for name in tables.CONTEXT if name != "dim"]
        without_head = {key: tables.cells_of(rows) for key, rows in group[headless].groupby(network, dropna=False)}
        for key, runs in group[trained].groupby(tables.CONTEXT, dropna=False, sort=False):
            where = dict(zip(tables.CONTEXT, key))
            beside = without_head.get(tuple(where[name] for name in network), {})
            cells = tables.cells_of(group[study]) | beside | tables.cells_of(runs)
            yield Context(where, cells, studied, resampled.get(key, {}), **how)


def _compared(test: ClaimTest, context: Context) -> ClaimResult:
    missing: dict[str, None] = {}
    comparisons: dict[tuple, Comparison] = {}  # two parts may name one level, as a corner of a grid

    def noting_what_is_missing(make: Callable, *given: Any) -> Any:
        try:
            return make(*given)
        except MissingRows as error:
            if not part.control:  # an unknown precondition is not met
                missing[str(error)] = None

    for part in (part for part in test.parts if part.speaks_of(context.where["dataset"])):
        for cell in part.cells:
            noting_what_is_missing(tables.levels_of, context.cells, cell, part.metric)
        for pair in noting_what_is_missing(_pairs, part, context.cells) or ():
            compared = noting_what_is_missing(_comparison, test, part, pair, context)
            alike = (part.kind, part.metric, part.direction, part.interpretation, *map(str, pair))
            if compared and (alike not in comparisons or compared.reason):
                comparisons[alike] = compared
    return ClaimResult(test, context.where, [*comparisons.values()], [*missing])


def _pairs(part: Part, cells: tables.Cells) -> list[tuple[Expression, Expression]]:
    """(subject, baseline) of every comparison: of an equivalence and of a bound each level of the subject."""
    if part.kind not in ("equivalence", "bound"):
        return [(part.subject, baseline) for baseline in part.baselines or [Expression()]]
    pairs = []
    for baseline in part.baselines:
        levels, *own = (
            list(tables.levels_of(cells, cell, part.metric)) for cell in (*part.subject.cells, *baseline.cells)
        )
        pairs += [(Expression((level,)), baseline) for level in levels if [level] not in own]  # but the baseline itself
        if not pairs:
            raise MissingRows(f"a second level of {part.subject} ({part.metric})")
    return pairs


def _comparison(test: ClaimTest, part: Part, pair: tuple[Expression, Expression], context: Context) -> Comparison:
    """MissingRows where the table does not have its effects."""
    cells, methods = context.cells, pair[0].methods | pair[1].methods
    effects = tables.effects(cells, *pair, part.metric, part.relative)
    levels = [tables.levels_of(cells, cell, part.metric) for expression in pair for cell in expression.cells]
    drawn = any(len({*seeds.values()}) > 1 for by_level in levels for seeds in by_level.values())
    tuned = _tuned(part, methods, context)
    reason = _obstacle(test, part, context, effects)
    if tuned == "no" and len(methods) > 1:  # levels of an ablation share their search
        reason = reason or Reason.TUNING
    if not drawn and not part.by_rows:  # one value, however often it is there
        reason, effects = reason or Reason.CONSTANT, effects[:1]
    outcome = str(reached(p_of(part, effects)))
    if part.about == "training" and part.kind not in ("bound", "noninferiority"):
        reason = reason or _uninterpretable(part, pair, context, outcome, effects.mean())
    elif part.kind == "bound" and outcome == CONTRADICTED and np.isfinite(effects).all():
        reason = ""  # one counterexample is enough, over any range
    classes = np.full(2, math.nan)
    with suppress(MissingRows):  # there are no hits, or they do not give this metric or these cells
        resampled = tables.effects(context.resampled, *pair, part.metric, part.relative).mean(axis=0)
        classes = np.quantile(resampled, [LEVEL / 2, 1 - LEVEL / 2])
    low, high = map(float, 100 * np.expm1(classes) if part.relative else classes)
    network = _studied(part, context)
    study = {"dataset": tables.SYNTHETIC, "backbone": network, "dim": "", "protocol": ""}
    elsewhere = {} if network is None else study
    mixes = _mixes(levels, context.environments) if part.about == "training" else ""
    return Comparison(part, *pair, effects, reason, tuned, (low, high), mixes, elsewhere)


def _mixes(levels: list[dict[Cell, dict[int, Any]]], environments: Environments) -> str:
    """ "devices" or "fingerprints", where the lines of the runs that are compared were trained on several; a row that
    another setting names than its run is of a run of the method."""
    trained_on: set[tuple[str, str]] = set()
    for level, seeds in (pair for by_level in levels for pair in by_level.items()):
        for seed in seeds:
            of_method = environments.get((level.method, "", seed), ())
            trained_on.update(environments.get((level.method, level.setting, seed), of_method))
    several_devices = len({device for device, _ in trained_on}) > 1
    return "devices" if several_devices else "fingerprints" * (len(trained_on) > 1)


def _studied(part: Part, context: Context) -> str | None:
    """The network of a study without images that the part is about; None where the part is about runs."""
    return context.studied.get((part.subject.cells[0].method, part.metric))


def _obstacle(test: ClaimTest, part: Part, context: Context, effects: np.ndarray) -> Reason | str:
    """Why these effects can settle nothing, whoever was tuned and has learned."""
    if not np.isfinite(effects).all():
        return Reason.NOT_FINITE
    if any(tables.uncovered(context.cells, cell, part.metric) for cell in part.cells):
        return Reason.RANGE
    network = context.where["backbone"] if (studied := _studied(part, context)) is None else studied
    if not part.by_rows and test.network and not network.startswith(test.network):
        return Reason.NETWORK
    planned = PLANNED_OF.get(context.where["backbone"], test.seeds) if part.about == "training" else MIN_SEEDS
    demo = part.about in ("training", "features") and context.where["profile"] == "quick"  # shows directions only
    return Reason.SEEDS if demo or (not part.by_rows and len(effects) < planned) else ""


def _tuned(part: Part, methods: set[str], context: Context) -> str:
    """ "yes" if equally many trials, at least TUNED, chose all settings, else "no"; empty where nothing is chosen."""
    chosen = {context.trials.get(method, 0) for method in methods - UNTRAINED}
    enough = TUNED_OF.get(context.where["backbone"], TUNED)
    if part.about != "training" or part.by_rows or START in methods or not chosen:
        return ""
    return "yes" if len(chosen) == 1 and min(chosen) >= enough else "no"


def _uninterpretable(
    part: Part, pair: tuple[Expression, Expression], context: Context, outcome: str, effect: float
) -> Reason | str:
    """Why methods that should have learned did not. The better side must have; the other too where they differ in the
    claimed direction or not at all, unless it may fail; of measures and differences of cells both, of trends one."""
    try:
        learned = [_learned(part, context.cells, side) for side in pair]
        if part.metric.startswith(RETRIEVAL) and _below(part, context.cells, pair, context.floor):
            return Reason.BELOW
    except MissingRows:  # the scores, or those of the network before training
        return Reason.ROWS
    better, behind = int(effect < 0), 1 - int(part.direction == "lower")
    needed = {0, 1} if outcome != OPEN else set()
    if not part.baselines:
        return "" if any(learned[0] or [True]) else Reason.UNLEARNED
    if part.metric.startswith(RETRIEVAL) and max(len(side.cells) for side in pair) == 1:
        needed = {better} if outcome in (OPEN, CONTRADICTED) else {0, 1}
    if part.may_fail and outcome == SUPPORTED:
        needed -= {behind}
    return "" if all(all(learned[side]) for side in needed) else Reason.UNLEARNED


def _learned(part: Part, cells: tables.Cells, side: Expression) -> list[bool]:
    """Whether each level of each cell gained over the initial network: at the same setting, at any, or the features,
    which lie above it; none where there is nothing to learn. MissingRows where the table does not have the scores."""
    gained = []
    for cell in side.cells:
        for level in tables.levels_of(cells, cell, part.learned_on) if cell.method not in UNTRAINED else ():
            for start in (Cell(START, level.settings), Cell(START), Cell(FEATURES)):
                with suppress(MissingRows):
                    tables.levels_of(cells, start, part.learned_on)
                    break
            else:
                raise MissingRows(f"the network before training ({part.learned_on})")
            gain = tables.effects(cells, Expression((level,)), Expression((start,)), part.learned_on)
            gained.append(t_interval(gain)[0] > 0)
    return gained


def _below(part: Part, cells: tables.Cells, pair: tuple[Expression, Expression], floor: str) -> bool:
    """Whether the best cell, of a trend the best level, lies below the floor, if the table has that."""
    named = [cell for side in pair for cell in side.cells if cell.method not in UNTRAINED]
    if not part.baselines:
        named = [level for cell in named for level in tables.levels_of(cells, cell, part.metric)]
    best = max((_mean(cells, cell, part.metric) for cell in named), default=math.inf)
    with suppress(MissingRows):
        return best < _mean(cells, Cell(floor), part.metric)
    return False


def _mean(cells: tables.Cells, cell: Cell, metric: str) -> float:
    return float(np.mean([*tables.by_seed(cells, Expression((cell,)), metric).values()]))
