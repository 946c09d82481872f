"""What the papers claim, and what the test of a claim is; the tests themselves are in papers/<paper>/claims.py.

A test is plain data, written down before it is run: what is compared with what, on which metric, in which direction,
and the smallest effect that counts. Published sizes belong to the published data sets and networks, so a test asks for
a direction and for a size that counts, not for the printed number. Cells are written as in tables.py; `judging` says
what numbers allow. A test that had to change after its results were seen says so in `changed`, and may only have become
stricter.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass

from dmlrepro.evidence import tables
from dmlrepro.files import repository_root

BENCHMARKS = {  # as data/claims.csv names what a claim is about; a part of one, as cub-subset, is that data set here
    "cub": "CUB-200-2011",
    "cars": "Cars-196",
    "sop": "SOP",
    "inshop": "InShop",
    "mnist": "MNIST",
}
SIGN = {"higher": 1, "lower": -1}
RETRIEVAL = ("R@", "P@1", "RP", "MAP@R", "mAP@")  # how metrics of retrieval begin
START = "random head"  # the method whose rows are the network that training begins with


@dataclass(frozen=True)
class Part:
    """One thing a claim says.

    kind: "difference": the subject against every baseline; "trend": the fitted change of the metric from the
        lowest to the highest level of the subject's range; "equivalence": every level of the subject within `margin`
        of the baseline; "exact": every row on the claimed side of the constant baseline, by at least `smallest_effect`
        or up to `margin`; "parity": the subject at most `margin` on the wrong side of every baseline; "learned": the
        subject above the network that its training began with.
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
        those that name none; the reading that stands first decides.
    """

    kind: str
    subject: str
    baselines: tuple[str, ...]
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

    @property
    def unit(self) -> str:
        return "%" if self.relative else ""

    @property
    def required(self) -> str:
        """The effect that counts, in words."""
        return ("premise: " if self.premise else "") + self._size()

    def _size(self) -> str:
        if self.kind == "learned":
            return "above the network that training began with"
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

    @property
    def learned_on(self) -> str:
        """The metric on which the methods of this part must have learned."""
        return self.metric if self.metric.startswith(RETRIEVAL) else "MAP@R"

    def speaks_of(self, dataset: str) -> bool:
        """Whether the part is about a data set; what is no benchmark is taken for birds, the first that papers name."""
        short = short_name(dataset)
        return not self.on or (short if short in BENCHMARKS else "cub") in self.on


@dataclass(frozen=True)
class ClaimTest:
    """The test of one claim: all its parts must hold.

    rationale: why the smallest effects and margins are what they are. untested_parts: what the claim says beyond the
    parts; without parts, why nothing is tested. protocol: only rows whose protocol contains this text; when empty,
    every protocol but MLRC. decides: of several contexts on one data set, the one whose protocol contains this text.
    network: the backbone the claim is about, as the beginning of its name, where numbers of another one say nothing of
    it; when empty, any. changed: what became stricter after results were seen, when, and why.
    """

    claim_id: str
    notebook: str
    parts: tuple[Part, ...]
    rationale: str
    untested_parts: str = ""
    protocol: str = ""
    decides: str = ""
    network: str = ""
    changed: str = ""


def higher(subject, *baselines, by=0.5, metric="R@1", **options) -> Part:
    return Part("difference", subject, baselines, metric, "higher", smallest_effect=by, **options)


def lower(subject, *baselines, by=0.5, metric="R@1", **options) -> Part:
    return Part("difference", subject, baselines, metric, "lower", smallest_effect=by, **options)


def rising(subject, by, metric="R@1", **options) -> Part:
    return Part("trend", subject, (), metric, "higher", smallest_effect=by, **options)


def falling(subject, by, metric="R@1", **options) -> Part:
    return Part("trend", subject, (), metric, "lower", smallest_effect=by, **options)


def flat(subject, baseline, within, metric="R@1", **options) -> Part:
    return Part("equivalence", subject, (baseline,), metric, "flat", margin=within, **options)


def cheaper(subject, constant, metric="seconds_ratio", **options) -> Part:
    return Part("difference", subject, (constant,), metric, "lower", about="cost", **options)


def at_most(subject, constant, metric, tolerance=0.0, **options) -> Part:
    return Part("exact", subject, (constant,), metric, "lower", margin=tolerance, about="study", **options)


def below(subject, constant, metric, by, **options) -> Part:
    return Part("exact", subject, (constant,), metric, "lower", smallest_effect=by, about="study", **options)


def at_least(subject, constant, metric, **options) -> Part:
    return Part("exact", subject, (constant,), metric, "higher", about="study", **options)


def on_a_par(subject, *baselines, within, metric="R@1") -> Part:
    """The premise of a comparison of losses and of spreads: who has nothing to lose loses little."""
    return Part("parity", subject, baselines, metric, "higher", margin=within, relative=True, premise=True)


def learned(subject, metric="MAP@R") -> Part:
    """The premise of a comparison that does not name the methods it is about; of those it names, `judging` asks it."""
    return Part("learned", subject, (), metric, "higher", premise=True)


def drop(method, setting) -> str:
    return f"{method} - {method};{setting}"


# --- what the papers say ----------------------------------------------------------------------------------------------


@functools.cache
def stated() -> dict[str, dict[str, str]]:
    """claim id -> what the paper says, the row of data/claims.csv."""
    with (repository_root() / "data" / "claims.csv").open(encoding="utf8", newline="") as file:
        return {row["claim_id"]: row for row in csv.DictReader(file)}


def statement(claim_id: str) -> str:
    """What the paper says."""
    return stated().get(claim_id, {}).get("statement", "")


def short_name(dataset: str) -> str:
    """The data set that a part of it is taken for: "cub" of "cub-subset"."""
    return dataset.removesuffix("-subset")


def named(claim_id: str) -> list[str]:
    """Short names of the data sets that a claim is about, in its order; birds where it names none."""
    printed = stated().get(claim_id, {}).get("dataset", "").split(";")
    return [short for name in printed for short, known in BENCHMARKS.items() if known == name] or ["cub"]
