"""What the papers claim, and what the test of a claim is; the tests themselves are in experiments/<paper>/claims.py.

A test is plain data, written down before it is run: what is compared with what, on which metric, in which direction,
and the smallest effect that counts. Published sizes belong to the published data sets and networks, so a test asks for
a direction and for a size that counts, not for the printed number. Cells are written as in tables.py; `judging` says
what numbers allow. A test that had to change after its results were seen says so in `changed`, and may only have become
stricter.
"""

from __future__ import annotations

import csv
import functools
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from experiments.analysis import tables
from experiments.analysis.statistics import LEVEL, MIN_SEEDS, Estimate, estimated, p_above, tost
from experiments.analysis.tables import Cell, Expression
from experiments.files import repository_root

AS_CLAIMED, NO_DIFFERENCE, OTHER_WAY = OUTCOMES = ("as claimed", "no difference", "the other way")
BENCHMARKS = {  # as data/claims.csv names what a claim is about; a part of one, as cub-subset, is that data set here
    "cub": "CUB-200-2011",
    "cars": "Cars-196",
    "sop": "SOP",
    "inshop": "InShop",
    "mnist": "MNIST",
}
RETRIEVAL = ("R@", "P@1", "RP", "MAP@R", "mAP@")  # how metrics of retrieval begin
# Seeds of a comparison of trained networks: after Holm over fifteen claims ten find 1.6 standard deviations in four
# cases of five, which on birds are 1.4 points of R@1 and 0.6 of MAP@R; five would find 3.5.
PLANNED = 10
PERCENT = ("rms_relative_error",)  # of the measures that are not of retrieval
START = "random head"  # the method whose rows are the network that training begins with


@dataclass(frozen=True)
class Part:
    """One thing a claim says; of which kind is said by its class.

    direction: where the subject is claimed to lie, "higher" or "lower"; "flat" for an equivalence.
    smallest_effect: the least mean effect that counts, in the unit of the metric, percent when `relative`.
    margin: in the same unit.
    about: "training": trained networks, which must have learned and been tuned alike; "features": what is measured
        before any training; "cost": ratios of times, which are of this device; "study": mathematics without images.
    on: the data sets that the part speaks of, by their short names; empty: all.
    may_fail: the side that is claimed to lie behind need not have learned, as a setting that "fails".
    premise: the claim does not say this, but says nothing where it is false, as "drops less" of a method that has less
        to lose: unless it is shown, the claim stays open.
    identity: an exact statement that the definitions imply, so that it only checks the code.
    reading: one of several things that the claim's sentence may mean. Parts of one reading are judged together with
        those that name none; the reading that stands first decides, unless another comes out differently.
    """

    subject: Expression
    baselines: tuple[Expression, ...]
    metric: str
    direction: str
    smallest_effect: float = 0.0
    margin: float = 0.0
    relative: bool = False
    about: str = "training"
    on: tuple[str, ...] = ()
    may_fail: bool = False
    premise: bool = False
    identity: bool = False
    reading: str = ""

    # of the kind: how sure the interval of an estimate is, and whether methods must have learned and been tuned alike
    confidence: ClassVar[float] = 1 - LEVEL
    needs_learning: ClassVar[bool] = True
    needs_tuning: ClassVar[bool] = True

    @property
    def sign(self) -> int:
        return -1 if self.direction == "lower" else 1

    @property
    def unit(self) -> str:
        return "%" if self.relative or self.metric in PERCENT else ""

    @property
    def interval(self) -> str:
        """What [low, high] of an estimate is called."""
        return f"{100 * self.confidence:.0f} %"

    @property
    def size(self) -> str:
        """The smallest effect that counts, with its unit."""
        return f"{self.smallest_effect:g}{self.unit}"

    @property
    def required(self) -> str:
        """The effect that counts, in words."""
        return ("premise: " if self.premise else "") + self._required(f" by at least {self.size}" * bool(self.counts))

    @property
    def counts(self) -> float:
        """The smallest effect that counts, in the unit of `effects`."""
        return abs(math.log1p(self.sign * self.smallest_effect / 100)) if self.relative else self.smallest_effect

    @property
    def within(self) -> float:
        """The margin in the unit of `effects`."""
        return -math.log1p(-self.margin / 100) if self.relative else self.margin

    @property
    def learned_on(self) -> str:
        """The metric on which the methods of this part must have learned."""
        return self.metric if self.metric.startswith(RETRIEVAL) else "MAP@R"

    @property
    def cells(self) -> list[Cell]:
        """The cells that it names."""
        return [cell for expression in (self.subject, *self.baselines) for cell in expression.cells]

    def speaks_of(self, dataset: str) -> bool:
        """Whether the part is about a data set; what is no benchmark is taken for birds, the first that papers name."""
        short = short_name(dataset)
        return not self.on or (short if short in BENCHMARKS else "cub") in self.on

    # What kinds do differently. `effects` are by seed, (n,), logarithms of ratios where the part is relative; those
    # that are `aligned` are positive as claimed.

    def pairs(self, cells: tables.Cells) -> Iterator[tuple[Expression, Expression]]:
        """(subject, baseline) of every comparison."""
        yield from ((self.subject, baseline) for baseline in self.baselines)

    def effects(self, cells: tables.Cells, subject: Expression, baseline: Expression) -> np.ndarray:
        return tables.difference(cells, subject, baseline, self.metric, self.relative)

    def estimate(self, effects: np.ndarray) -> Estimate:
        return estimated(effects, self.confidence, self.relative)

    def tested(self, aligned: np.ndarray) -> tuple[bool, dict[str, float]]:
        """Whether effects point the claim's way, and outcome -> p of the outcomes that such effects can have."""
        raise NotImplementedError

    def learners(self, outcome: str, aligned: np.ndarray) -> tuple[int, ...]:
        """Who must have learned for an outcome: 0 the subject, 1 the baseline."""
        return (self._ahead,) if self.may_fail and outcome == AS_CLAIMED else (0, 1)

    @property
    def _ahead(self) -> int:
        return int(self.direction == "lower")

    def _required(self, size: str) -> str:
        raise NotImplementedError


class Sized(Part):
    """A difference or a trend, which has a smallest effect that counts."""

    def tested(self, aligned: np.ndarray):
        p = {NO_DIFFERENCE: tost(aligned, self.counts)} if self.counts else {}
        for outcome, effects in ((AS_CLAIMED, aligned), (OTHER_WAY, -aligned)):
            if effects.mean() >= self.counts:
                p[outcome] = min(1.0, 2 * p_above(effects, 0))
        return aligned.mean() > 0, p


class Difference(Sized):
    """The subject against every baseline."""

    def learners(self, outcome: str, aligned: np.ndarray):
        if outcome == OTHER_WAY and self.metric.startswith(RETRIEVAL):
            return (1 - self._ahead,)
        return super().learners(outcome, aligned)

    def _required(self, size: str):
        if all(baseline.is_constant for baseline in self.baselines):
            return f"{'above' if self.sign > 0 else 'below'} {' and '.join(map(str, self.baselines))}{size}"
        return self.direction + size


class Trend(Sized):
    """The fitted change of the metric from the lowest to the highest level of the subject's range."""

    def pairs(self, cells: tables.Cells):
        yield self.subject, Expression()

    def effects(self, cells: tables.Cells, subject: Expression, baseline: Expression):
        return tables.slope(cells, *subject.cells, self.metric)  # type: ignore[call-arg, arg-type]

    def _required(self, size: str):
        return f"{'rises' if self.sign > 0 else 'falls'}{size} over the range"


class Levels(Part):
    """What is about every level of the subject, not about the mean of the levels."""

    def pairs(self, cells: tables.Cells):
        for baseline in self.baselines:
            levels, *own = (
                list(tables.levels_of(cells, cell, self.metric)) for cell in (*self.subject.cells, *baseline.cells)
            )
            levels = [level for level in levels if [level] not in own]  # the baseline may be one of them
            if not levels:
                raise tables.MissingRows(f"a second level of {self.subject} ({self.metric})")
            yield from ((Expression((level,)), baseline) for level in levels)


class Equivalence(Levels):
    """Every level of the subject within `margin` of the baseline."""

    confidence = 1 - 2 * LEVEL

    def tested(self, aligned: np.ndarray):
        outside = 2 * min(p_above(aligned, self.within), p_above(-aligned, self.within))
        return abs(aligned.mean()) < self.within, {AS_CLAIMED: tost(aligned, self.within), OTHER_WAY: outside}

    def learners(self, outcome: str, aligned: np.ndarray):
        if outcome == OTHER_WAY:  # a level that differs too much: the side that is ahead
            return (0 if aligned.mean() > 0 else 1,)
        return super().learners(outcome, aligned)

    def _required(self, size: str):
        return f"within {self.margin:g}{self.unit}"


class Exact(Levels):
    """Every row on the claimed side of the constant baseline, by at least `smallest_effect` or up to `margin`."""

    interval = "range"
    needs_learning = needs_tuning = False

    def estimate(self, effects: np.ndarray):
        worst = effects.min() if self.sign > 0 else effects.max()
        return Estimate(worst, effects.min(), effects.max(), len(effects))

    def tested(self, aligned: np.ndarray):
        obeyed = (aligned >= self.smallest_effect - self.margin).all()
        return obeyed, {AS_CLAIMED if obeyed else OTHER_WAY: 0.0}

    def _required(self, size: str):
        bound = self.baselines[0].zero + self.sign * (self.smallest_effect - self.margin)
        return f"every row at {'least' if self.sign > 0 else 'most'} {bound:.7g}"


class Parity(Part):
    """The subject at most `margin` on the wrong side of every baseline."""

    needs_learning = False

    def tested(self, aligned: np.ndarray):
        return aligned.mean() > -self.within, {AS_CLAIMED: min(1.0, 2 * p_above(aligned, -self.within))}

    def _required(self, size: str):
        return f"at most {self.margin:g}{self.unit} {'lower' if self.sign > 0 else 'higher'}"


class Learned(Parity):
    """The subject above the network that its training began with."""

    needs_tuning = False

    def pairs(self, cells: tables.Cells):
        yield self.subject, Expression((start_of(cells, *self.subject.cells, self.metric),))  # type: ignore[call-arg, arg-type]

    def _required(self, size: str):
        return "above the network that training began with"


def start_of(cells: tables.Cells, cell: Cell, metric: str) -> Cell:
    """The network that a cell's training began with: at the same setting, at any, or the features, which lie above it;
    MissingRows if the table has none."""
    for start in (Cell(START, cell.settings), Cell(START), Cell("untrained")):
        with suppress(tables.MissingRows):
            tables.levels_of(cells, start, metric)
            return start
    raise tables.MissingRows(f"the network before training ({metric})")


@dataclass(frozen=True)
class ClaimTest:
    """The test of one claim: all its parts must hold.

    rationale: why the smallest effects and margins are what they are. untested_parts: what the claim says beyond the
    parts; without parts, why nothing is tested. protocol: only rows whose protocol contains this text; when empty,
    every protocol but MLRC. decides: of several contexts on one data set, the one whose protocol contains this text.
    network: the backbone the claim is about, as the beginning of its name, where numbers of another one say nothing of
    it; when empty, any. seeds: so many are planned for comparisons of trained networks, fewer give no verdict. changed:
    what became stricter after results were seen, when, and why.
    """

    claim_id: str
    notebook: str
    parts: tuple[Part, ...]
    rationale: str
    untested_parts: str = ""
    protocol: str = ""
    decides: str = ""
    network: str = ""
    seeds: int = MIN_SEEDS
    changed: str = ""


def planned(tests: Iterable[ClaimTest], seeds: int = PLANNED) -> dict[str, ClaimTest]:
    """The tests of a paper by claim id, each with so many seeds planned."""
    return {test.claim_id: replace(test, seeds=seeds) for test in tests}


# --- how parts are written --------------------------------------------------------------------------------------------


def _part(
    kind: type[Part], subject: str, baselines: tuple[str, ...], metric: str, direction: str, **options: Any
) -> Part:
    return kind(Expression.read(subject), tuple(map(Expression.read, baselines)), metric, direction, **options)


def higher(subject: str, *baselines: str, by: float = 0.5, metric: str = "R@1", **options: Any) -> Part:
    return _part(Difference, subject, baselines, metric, "higher", smallest_effect=by, **options)


def lower(subject: str, *baselines: str, by: float = 0.5, metric: str = "R@1", **options: Any) -> Part:
    return _part(Difference, subject, baselines, metric, "lower", smallest_effect=by, **options)


def rising(subject: str, by: float, metric: str = "R@1", **options: Any) -> Part:
    return _part(Trend, subject, (), metric, "higher", smallest_effect=by, **options)


def falling(subject: str, by: float, metric: str = "R@1", **options: Any) -> Part:
    return _part(Trend, subject, (), metric, "lower", smallest_effect=by, **options)


def flat(subject: str, baseline: str, within: float, metric: str = "R@1", **options: Any) -> Part:
    return _part(Equivalence, subject, (baseline,), metric, "flat", margin=within, **options)


def cheaper(subject: str, constant: str, metric: str = "seconds_ratio", **options: Any) -> Part:
    return _part(Difference, subject, (constant,), metric, "lower", about="cost", **options)


def at_most(subject: str, constant: str, metric: str, tolerance: float = 0.0, **options: Any) -> Part:
    return _part(Exact, subject, (constant,), metric, "lower", margin=tolerance, about="study", **options)


def below(subject: str, constant: str, metric: str, by: float, **options: Any) -> Part:
    return _part(Exact, subject, (constant,), metric, "lower", smallest_effect=by, about="study", **options)


def at_least(subject: str, constant: str, metric: str, about: str = "study", **options: Any) -> Part:
    return _part(Exact, subject, (constant,), metric, "higher", about=about, **options)


def on_a_par(subject: str, *baselines: str, within: float, metric: str = "R@1") -> Part:
    """The premise of a comparison of losses and of spreads: who has nothing to lose loses little."""
    return _part(Parity, subject, baselines, metric, "higher", margin=within, relative=True, premise=True)


def learned(subject: str, metric: str = "MAP@R") -> Part:
    """The premise of a comparison that does not name the methods it is about; of those it names, `judging` asks it."""
    return _part(Learned, subject, (), metric, "higher", premise=True)


def drop(method: str, setting: str) -> str:
    return f"{method} - {method};{setting}"


# --- what the papers say ----------------------------------------------------------------------------------------------


@functools.cache
def stated() -> dict[str, dict[str, str]]:
    """claim id -> what the paper says, the row of data/claims.csv."""
    with (repository_root() / "data" / "claims.csv").open(encoding="utf8", newline="") as file:
        return {row["claim_id"]: row for row in csv.DictReader(file)}


@functools.cache
def frozen() -> dict[str, Any]:
    """The commit in which the tests were frozen, before the first run that they judge, the sha256 of what each states,
    `tests`: {claim id: digest}, see freezing.py, and the stems of tables of `small` that are older, `pilots`: no line
    of these names the commit. A test that becomes stricter is frozen anew, in a commit before the runs that it judges.
    `first_read`: the verdict of each claim when its runs were whole; what is another one now stands in docs/ledger.md
    with the reason."""
    return json.loads((repository_root() / "data" / "frozen.json").read_text(encoding="utf8"))


def statement(claim_id: str) -> str:
    """What the paper says."""
    return stated().get(claim_id, {}).get("statement", "")


@functools.cache
def papers() -> dict[str, dict[str, str]]:
    """paper -> its row of data/papers.csv: its name in figures, title, authors, venue, year, link, the claim that
    stands for it in front, and the notebook and the cell that draw its idea."""
    with (repository_root() / "data" / "papers.csv").open(encoding="utf8", newline="") as file:
        return {row["paper"]: row for row in csv.DictReader(file)}


def name_of(paper: str) -> str:
    """A paper's name in figures and tables; one that data/papers.csv lacks has its id."""
    return papers().get(paper, {}).get("name", paper)


@functools.cache
def short_statements() -> dict[str, str]:
    """claim id -> what the paper says in a few words, for figures and tables."""
    with (repository_root() / "data" / "short_claims.csv").open(encoding="utf8", newline="") as file:
        return {row["claim_id"]: row["short"] for row in csv.DictReader(file)}


def short_name(dataset: str) -> str:
    """The data set that a part of it is taken for: "cub" of "cub-subset"."""
    return dataset.removesuffix("-subset")


def named(claim_id: str) -> list[str]:
    """Short names of the data sets that a claim is about, in its order; birds where it names none."""
    printed = stated().get(claim_id, {}).get("dataset", "").split(";")
    return [short for name in printed for short, known in BENCHMARKS.items() if known == name] or ["cub"]
