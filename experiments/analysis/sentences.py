"""Words for judged comparisons. What is said of a claim is said here and nowhere else.

"Higher" and "lower" are said where the interval of at least five seeds excludes zero, "within x" where two
one-sided tests say so, "not told apart" else; of fewer seeds there are single values.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.analysis import claims, tables
from experiments.analysis.claims import (
    AS_CLAIMED,
    NO_DIFFERENCE,
    OTHER_WAY,
    OUTCOMES,
    Equivalence,
    Exact,
    Levels,
    Trend,
)
from experiments.analysis.comparing import COST, UNCLEAR, Comparison

NAMES_COMPARISONS = re.compile(r" vs | against the constant |^trend of ")  # of a reason

GLOSSARY = (
    "Holm: p adjusted for the number of claims of the paper, so that all its verdicts of one kind together err in at "
    "most 5 % of cases; it decides. Detectable: what this many seeds find in four cases of five, after Holm. "
    "Seeds: how many would decide, if the effect and its spread are as they look. Over classes: 95 % of redraws of the "
    "test classes; it decides nothing. A range is from the lowest to the highest row and no interval. Tuned: whether "
    "the same search chose the settings of all methods compared."
)


@dataclass(frozen=True, eq=False)
class Judged:
    """Verdicts, a row per claim and context, and the comparisons they rest on; shown in a notebook as two tables.

    verdicts: claim_id, verdict, reason, direction ("as claimed", "2 of 5 as claimed"), role ("named" data sets of the
        claim, "further" ones), the comparison that speaks least for the claim with its effect, interval [low, high]
        ("95 %", of an equivalence "90 %", of an exact statement the "range"), unit and n, the required effect, the
        context, device, p, p_holm, detectable, seeds_needed, class_low, class_high, tuned ("yes", "no", or empty where
        nothing could be), zero (what the effect is compared with) and `compared`, the Comparison itself.
    comparisons: the same of every comparison, with its outcome, before any adjustment, and what stands in the way of
        another; of_dataset is the data set of the verdict, dataset that of the comparison: a study without images has
        none.
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
        return as_html(self)


def of_claims(judged: Judged) -> list[str]:
    """A sentence per claim and context: "pfml-02, as claimed: R@1 of PFML is higher than that of CPML (+3.0, ...)."

    Of a claim that nothing was compared for there is none.
    """
    return [text for line in judged.verdicts.itertuples() if (text := sentence(judged, line))]


def sentence(judged: Judged, line: Any) -> str:
    """What is said of one line of the verdicts; empty if nothing was compared."""
    alike: dict[tuple, list[Comparison]] = {}
    for comparison in _compared(judged, line)["compared"]:
        part = comparison.part
        levels = comparison.subject.cells[0].method if isinstance(part, Levels) else comparison.subject
        alike.setdefault((part.metric, part.reading, type(part), levels), []).append(comparison)
    others = list(filter(None, dict.fromkeys(reading for _, reading, *_ in alike)))[1:]  # the first decides
    first = sorted(alike.items(), key=lambda item: (item[0][1] in others, not _decisive(line.verdict, item[1])))
    clauses = [
        f"read as “{reading}” " * (reading in others) + f"{metric} of {_of_part(comparisons)}"
        for (metric, reading, *_), comparisons in first
    ]
    several = (judged.verdicts["claim_id"] == line.claim_id).sum() > 1
    unnamed = line.role == "further" and line.profile != "quick"  # what is quick names no data of a paper
    notes = list(
        filter(None, [_context(line) if several else "", "data that the claim does not name" if unnamed else ""])
    )
    where = f" ({', '.join(notes)})" if notes else ""
    return f"{line.claim_id}{where}, {verdict_in_words(line)}: {'; '.join(_some(clauses))}." if clauses else ""


def _decisive(verdict: str, comparisons: list[Comparison]) -> bool:
    """Whether one of them is why the verdict is what it is; of an open claim, why it is not as claimed."""
    outcomes = {comparison.outcome for comparison in comparisons}
    return verdict in outcomes if verdict in OUTCOMES else outcomes != {AS_CLAIMED}


def _context(line: Any) -> str:
    """What tells the lines of a claim in one table apart."""
    if line.dataset == tables.SYNTHETIC:
        return "no images"
    return line.protocol if "MLRC" in line.protocol else f"dim {line.dim}" if line.dim else ""


def verdict_in_words(line: Any) -> str:
    """ "as claimed", "the other way (6 of 8 point as claimed)", "unclear (12 seeds would decide)", "unclear (5 of the
    10 seeds planned)", "cost on this device (as claimed)"; reasons that name comparisons are left to what follows."""
    note = ""
    if line.verdict == COST:
        note = line.reason
    elif line.verdict == UNCLEAR and not math.isnan(line.seeds_needed):
        note = f"{line.seeds_needed:.0f} seeds would decide"
    elif line.verdict == UNCLEAR and line.profile != "quick" and not NAMES_COMPARISONS.search(line.reason):
        note = line.reason
    elif line.verdict == OTHER_WAY and " of " in line.direction:
        note = line.direction.replace(" as claimed", " point as claimed")
    return f"{line.verdict} ({note})" if note else line.verdict


def _compared(judged: Judged, line: Any) -> pd.DataFrame:
    """The comparisons of a line, but for premises."""
    rows = judged.comparisons
    where = (rows["claim_id"] == line.claim_id) & ~rows["premise"].astype(bool)
    for name in ("profile", "dim", "protocol", "backbone"):  # a comparison without images has none of its own
        where &= (rows[name] == getattr(line, name)) | (rows["dataset"] == tables.SYNTHETIC)
    return rows[where & ((rows["of_dataset"] == line.dataset) | (line.dataset == tables.SYNTHETIC))]


def _of_part(comparisons: list[Comparison]) -> str:
    """The comparisons of one subject on one metric."""
    first = comparisons[0]
    if isinstance(first.part, Exact):
        low = min(comparison.estimate.low for comparison in comparisons)
        high = max(comparison.estimate.high for comparison in comparisons)
        ends = " to ".join(f"{value:.3g}{first.part.unit}" for value in (low, high))
        return f"{first.subject.cells[0].method} lies in {ends}, required: {first.part.required}"
    if isinstance(first.part, Equivalence):
        return f"{first.subject.cells[0].method} {_flat(comparisons)}"
    if isinstance(first.part, Trend):
        return f"{first.subject.said} {_trend(first)} ({numbers(first)})"
    told: dict[str, list[str]] = {}
    for comparison in comparisons:
        told.setdefault(_relation(comparison), []).append(f"{comparison.baseline.said} ({numbers(comparison)})")
    return f"{first.subject.said} {', '.join(f'{word} {listed(_some(names))}' for word, names in told.items())}"


def _relation(compared: Comparison) -> str:
    """What the interval of a comparison allows to say of subject and baseline."""
    constant = compared.baseline.is_constant
    if compared.few:
        return "against"
    if compared.outcome == NO_DIFFERENCE:
        return f"is within {compared.part.size} of"
    if compared.estimate.low > compared.baseline.zero:
        return "is above" if constant else "is higher than that of"
    if compared.estimate.high < compared.baseline.zero:
        return "is below" if constant else "is lower than that of"
    return "is not told apart from"


def _trend(compared: Comparison) -> str:
    if compared.few:
        return "changes over the range"
    if compared.outcome == NO_DIFFERENCE:
        return f"changes less than {compared.part.size} over the range"
    if compared.estimate.low > 0:
        return "rises over the range"
    return "falls over the range" if compared.estimate.high < 0 else "neither rises nor falls clearly over the range"


def _flat(comparisons: list[Comparison]) -> str:
    """Levels against the level, or a method against the method, that they are said to be like: the farthest says it."""
    far = max(comparisons, key=lambda comparison: abs(comparison.estimate.effect - comparison.baseline.zero))
    level, baseline = (", ".join(cell.setting_said for cell in side.cells) for side in (far.subject, far.baseline))
    if any(comparison.few for comparison in comparisons):
        where = f"differs most at {level} against {baseline}" if level else f"against {far.baseline.said}"
        return f"{where}: {numbers(far)}"
    outcomes = {comparison.outcome for comparison in comparisons}
    stays = "does not stay" if OTHER_WAY in outcomes else "is not shown to stay"
    stays = "stays" if outcomes == {AS_CLAIMED} else stays
    where = f", farthest at {level} against {baseline}" if level else f" of {far.baseline.said}"
    return f"{stays} {far.part.required}{where}: {numbers(far)}"


def numbers(compared: Comparison) -> str:
    """ "+3.0, 95 % +2.6 to +3.4, n = 5"; of fewer seeds the single values; of a comparison with a constant the value
    itself, without a sign."""
    part, estimate = compared.part, compared.estimate
    form = ".1f" if part.metric.startswith((*claims.RETRIEVAL, "NMI")) else _digits(compared)
    form = form if compared.baseline.is_constant else f"+{form}"
    if compared.few:
        single = " and ".join(f"{value:{form}}{part.unit}" for value in compared.singles)
        return f"{single}, {estimate.n} seeds" if estimate.n > 1 else f"{single}, one value"
    effect, low, high = (f"{x + 0.0:{form}}{part.unit}" for x in (estimate.effect, estimate.low, estimate.high))
    return f"{effect}, {part.interval} {low} to {high}, n = {estimate.n}"


def _digits(compared: Comparison) -> str:
    """How to write a value: with two digits of the width of its interval, "1.027" where three digits are "1.03"."""
    width = compared.estimate.high - compared.estimate.low
    if compared.few or isinstance(compared.part, Exact) or not width > 0:
        return ".3g"
    return f".{min(4, max(0, 1 - math.floor(math.log10(width))))}f"


def _some(phrases: list[str], most: int = 4) -> list[str]:
    """The first ones; a claim may have a dozen, and the table has all."""
    return phrases if len(phrases) <= most else [*phrases[: most - 1], f"{len(phrases) - most + 1} more"]


def listed(names: list[str]) -> str:
    """ "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


# --- tables to read ---------------------------------------------------------------------------------------------------


def as_html(judged: Judged) -> str:
    verdicts, compared = (_without_empty_columns(make(judged)) for make in (verdict_table, comparison_table))
    with pd.option_context("display.max_colwidth", None):
        shown = f"{verdicts.to_html()}<p>{GLOSSARY}</p>"
        return shown + (f"<p>Every comparison:</p>{compared.to_html(index=False)}" if len(compared) else "")


def verdict_table(judged: Judged) -> pd.DataFrame:
    """The verdicts for reading, a row per claim and context: the paper's sentence, the verdict with its reason, the
    published size and ours with its interval or range, n, data set, network, device, the effect that was required, p
    after Holm."""
    rows = []
    for line in judged.verdicts.itertuples(index=False):
        claim = claims.stated().get(line.claim_id, {})
        rows.append(
            {"claim": line.claim_id, "the paper says": claims.statement(line.claim_id), "verdict": line.verdict}
            | {"because": line.reason, "published": claim.get("expected_size", ""), "ours": _ours(line), "n": line.n}
            | {"required": line.required}
            | _where(line)
            | {"data are": line.role, "tuned": line.tuned, "direction": line.direction, "Holm": _number(line.p_holm)}
            | {"detectable": _number(line.detectable), "seeds": _number(line.seeds_needed, 4)}
            | {"not tested": line.untested_parts}
        )
    columns = ["claim", "the paper says", "verdict", "because", "published", "ours", "n", "required", "data", "network"]
    columns += ["device", "data are", "tuned", "direction", "Holm", "detectable", "seeds", "not tested"]
    return pd.DataFrame(rows, columns=columns).set_index("claim")


def comparison_table(judged: Judged) -> pd.DataFrame:
    """Every comparison the verdicts rest on, for reading, a row each."""
    rows = [
        {"claim": line.claim_id, "reading": line.reading, "ours": _ours(line), "n": line.n, "outcome": line.outcome}
        | {"why": line.why, "required": line.required}
        | _where(line)
        | {"tuned": line.tuned, "p": _number(line.p), "detectable": _number(line.detectable)}
        | {"over classes": f"{_number(line.class_low, 3)} to {_number(line.class_high, 3)}".removeprefix(" to ")}
        for line in judged.comparisons.itertuples(index=False)
    ]
    columns = ["claim", "reading", "ours", "n", "outcome", "why", "required", "data", "network", "device", "tuned"]
    return pd.DataFrame(rows, columns=[*columns, "p", "detectable", "over classes"])


def _ours(line: Any) -> str:
    """An effect with its interval, which is called a range where it is one; single values of few seeds."""
    if not line.comparison:
        return ""
    form = ".4g" if line.compared.baseline.is_constant else "+.3g"  # a value, or a difference
    text = f"{line.compared.said}: {line.metric} {line.values or format(line.effect, form)}{line.unit}"
    return text if math.isnan(line.low) else f"{text} ({line.interval} {line.low:{form}} to {line.high:{form}})"


def _number(value: float, digits: int = 2) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}g}"


def _where(line: Any) -> dict[str, str]:
    """Data set and network of a line; protocols differ in MLRC alone, separated and concatenated."""
    folds = line.protocol if "MLRC" in line.protocol else ""
    dataset = "no images" if line.dataset == tables.SYNTHETIC else line.dataset
    data = ", ".join(str(part) for part in (line.profile, dataset, folds) if part)
    return {"data": data, "network": line.backbone, "device": line.device}


def _without_empty_columns(table: pd.DataFrame) -> pd.DataFrame:
    return table.loc[:, (table != "").any()]
