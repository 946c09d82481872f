"""What the papers claim, and what the test of a claim is; the tests themselves are in experiments/<paper>/claims.py.

A test is plain data, written down before it is run: what is compared with what, on which metric, in which direction,
and the smallest effect size of interest (SESOI). Published sizes belong to the published data sets and networks, so no
test asks for them. Cells are written as in tables.py; `judging` says what numbers allow. Margins never move.
"""

import csv
import functools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from experiments.analysis.statistics import BY_ROWS, MIN_SEEDS
from experiments.analysis.tables import START, Cell, Expression
from experiments.files import repository_root

# as data/claims.csv names what a claim is about; a part of one, as cub-subset, is that data set here
BENCHMARKS = {"cub": "CUB-200-2011", "cars": "Cars-196", "sop": "SOP", "inshop": "InShop", "mnist": "MNIST"}
RETRIEVAL = ("R@", "P@1", "RP", "MAP@R", "mAP@")  # how metrics of retrieval begin
# Seeds of a comparison of trained networks: after Holm over fifteen claims ten find 1.6 standard deviations in four
# cases of five, which on the CUB subset are 1.4 points of R@1 and 0.6 of MAP@R; five would find 3.5.
PLANNED = 10
PLANNED_OF = {"mobilenet_v2": 5}  # at profile small it is trained whole, and a run takes twelve minutes of a core
# Why a test is younger than the runs that it judges, `ClaimTest.revised`.
OWN_CONTROL = "a control of ours decided"
PROTOCOLS = "the sentence speaks of both protocols"
TUNED_VALUE = "the paper tunes what the test averaged"
ON_A_GRID = "a measure on a grid has no t test"
OTHER_DATA = "the sentence speaks of other data"
NOT_TESTABLE = "not testable here"


@dataclass(frozen=True)
class Part:
    """One thing a claim says: a subject and the baselines that it is compared with.

    about: "training": trained networks, which must have learned and had an equal tuning budget; "features": what is
        measured before any training; "cost": ratios of times, which are of this machine; "study": mathematics without
        images.
    may_fail: the side that is claimed to lie behind need not have learned, as a setting that "fails".
    precondition: the claim says nothing where it does not hold; it decides nothing else.
    """

    kind: str  # one of `statistics.KINDS`
    subject: Expression
    baselines: tuple[Expression, ...]
    metric: str
    direction: str  # where the subject is claimed to lie, "higher" or "lower"; "flat" for an equivalence
    smallest_effect: float = 0.0  # the SESOI, in the unit of the metric, percent when `relative`
    margin: float = 0.0  # in the same unit
    relative: bool = False
    about: str = "training"
    on: tuple[str, ...] = ()  # the data sets that the part speaks of, by their short names; empty: all
    may_fail: bool = False
    control: bool = False  # ours, not what the paper's sentence states: it is shown and never decides
    precondition: bool = False
    identity: bool = False  # an exact statement that the definitions imply, so that it only checks the code
    interpretation: str = ""  # which of several things that the sentence may mean

    @property
    def decides(self) -> bool:
        return not (self.control or self.precondition)

    @property
    def sign(self) -> int:
        return -1 if self.direction == "lower" else 1

    @property
    def by_rows(self) -> bool:
        """Whether every row counts, and no test of a mean."""
        return self.kind in BY_ROWS

    @property
    def unit(self) -> str:
        return "%" if self.relative or self.metric == "rms_relative_error" else ""

    @property
    def sesoi(self) -> float:
        """The smallest effect size of interest in the unit of effects: logarithms of ratios where relative."""
        return abs(math.log1p(self.sign * self.smallest_effect / 100)) if self.relative else self.smallest_effect

    @property
    def within(self) -> float:
        """The margin in the unit of effects."""
        return -math.log1p(-self.margin / 100) if self.relative else self.margin

    @property
    def required(self) -> str:
        """What is asked of the effect: ">= +0.5", "within ±1.5", "every row <= 1.001"."""
        unit, above = self.unit, self.sign > 0
        if self.kind == "equivalence":
            return f"within ±{self.margin:g}{unit}"
        if self.kind == "noninferiority":
            return f"{'>= -' if above else '<= +'}{self.margin:g}{unit}"
        least = self.smallest_effect - self.margin * (self.kind == "bound")
        if self.baselines and self.baselines[0].is_constant:
            value = f"{'>=' if above else '<='} {self.baselines[0].zero + self.sign * least:.7g}"
        else:
            value = f"{'>= +' if above else '<= -'}{least:g}{unit}"
        return f"every row {value}" if self.by_rows else value

    @property
    def learned_on(self) -> str:
        """The metric on which the methods of this part must have learned."""
        return self.metric if self.metric.startswith(RETRIEVAL) else "MAP@R"

    @property
    def cells(self) -> list[Cell]:
        return [cell for expression in (self.subject, *self.baselines) for cell in expression.cells]

    def speaks_of(self, dataset: str) -> bool:
        """Whether the part is about a data set; what is no benchmark is taken for CUB, the first that papers name."""
        short = short_name(dataset)
        return not self.on or (short if short in BENCHMARKS else "cub") in self.on


@dataclass(frozen=True)
class ClaimTest:
    """The test of one claim.

    decides: of several contexts on one data set, the one whose protocol contains this text; "all": the sentence speaks
        of all of them, which decide together.
    network: the backbone the claim is about, as the beginning of its name, where another one says nothing; empty: any.
    """

    claim_id: str
    notebook: str
    parts: tuple[Part, ...]
    rationale: str  # why the smallest effects and margins are what they are
    untested_parts: str = ""  # what the claim says beyond the parts
    protocol: str = ""  # only rows whose protocol contains this text; when empty, every protocol but MLRC
    decides: str = ""
    network: str = ""
    seeds: int = MIN_SEEDS  # so many are planned for comparisons of trained networks
    changed: str = ""  # what became stricter before the runs that are judged, and why
    not_testable: str = ""  # why no verdict is possible here, whatever the parts show
    universal: bool = False  # the sentence says "best", "all", "every", so that one counterexample contradicts it
    ingredient: str = ""  # the part of the method that the claim is about; empty: the whole method
    revised: str = ""  # what of the test is younger than the runs, and why; empty: it stands as it was frozen

    @property
    def deciding(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.decides)


def planned(tests: Iterable[ClaimTest], seeds: int = PLANNED) -> dict[str, ClaimTest]:
    """The tests of a paper by claim id, each with so many seeds planned."""
    return {test.claim_id: replace(test, seeds=seeds) for test in tests}


def _part(direction: str, subject: str, *baselines: str, by: float = 0.0, within: float = 0.0, **rest: Any) -> Part:
    given: dict[str, Any] = {"metric": "R@1", "smallest_effect": by, "margin": within} | rest
    given["baselines"] = tuple(map(Expression.read, baselines))
    return Part(subject=Expression.read(subject), direction=direction, **given)


def _bound(direction: str, subject: str, constant: str, metric: str, tolerance: float = 0.0, **rest: Any) -> Part:
    given: dict[str, Any] = {"kind": "bound", "about": "study", "metric": metric, "within": tolerance} | rest
    return _part(direction, subject, constant, **given)


Kind = Callable[..., Part]
# (subject, *baselines), and by keyword the smallest effect `by` or the margin `within`, and further fields of the Part
higher: Kind = functools.partial(_part, "higher", kind="superiority", by=0.5)
lower: Kind = functools.partial(_part, "lower", kind="superiority", by=0.5)
cheaper: Kind = functools.partial(_part, "lower", kind="superiority", metric="seconds_ratio", about="cost")
rising: Kind = functools.partial(_part, "higher", kind="trend")
falling: Kind = functools.partial(_part, "lower", kind="trend")
at_most: Kind = functools.partial(_bound, "lower")  # (subject, constant, metric)
below = at_most
at_least: Kind = functools.partial(_bound, "higher")
# the precondition of a comparison of losses and of spreads: who has nothing to lose loses little
on_a_par: Kind = functools.partial(_part, "higher", kind="noninferiority", relative=True, precondition=True)


def flat(subject: str, baseline: str, within: float, metric: str = "R@1", **rest: Any) -> Part:
    return _part("flat", subject, baseline, within=within, metric=metric, kind="equivalence", **rest)


def learned(subject: str, metric: str = "MAP@R") -> Part:
    """The precondition of a comparison that does not name the methods it is about: they improve over initialisation."""
    return _part("higher", subject, START, kind="noninferiority", metric=metric, precondition=True)


def control(part: Part) -> Part:
    return replace(part, control=True)


def drop(method: str, setting: str) -> str:
    return f"{method} - {method};{setting}"


def rows_of(name: str) -> list[dict[str, str]]:
    """The rows of a table in data/."""
    with (repository_root() / "data" / name).open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


@functools.cache
def stated() -> dict[str, dict[str, str]]:
    """claim id -> what the paper says, the row of data/claims.csv."""
    return {row["claim_id"]: row for row in rows_of("claims.csv")}


@functools.cache
def frozen() -> dict[str, Any]:
    """`commit`: in which the tests were frozen, before the first run that they judge. `tests`: {claim id: sha256 of its
    test}; one that becomes stricter is frozen anew, before the runs that it judges. `pilots`: stems of older tables of
    `small`. `first_read`: the verdict of each claim when its runs were whole; docs/ledger.md says why it is another."""
    return json.loads((repository_root() / "data" / "frozen.json").read_text(encoding="utf8"))


@functools.cache
def papers() -> dict[str, dict[str, str]]:
    """paper -> its row of data/papers.csv: its name in figures, title, authors, venue, year and link."""
    return {row["paper"]: row for row in rows_of("papers.csv")}


def name_of(paper: str) -> str:
    """A paper's name in figures and tables; one that data/papers.csv lacks has its id."""
    return papers().get(paper, {}).get("name", paper)


def short_name(dataset: str) -> str:
    """The data set that a part of it is taken for: "cub" of "cub-subset"."""
    return dataset.removesuffix("-subset")


def named(claim_id: str) -> list[str]:
    """Short names of the data sets that a claim is about, in its order; CUB where it names none."""
    printed = stated().get(claim_id, {}).get("dataset", "").split(";")
    return [short for name in printed for short, known in BENCHMARKS.items() if known == name] or ["cub"]
