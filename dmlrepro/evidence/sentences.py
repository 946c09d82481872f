"""Words for judged comparisons. What is said of a claim is said here and nowhere else.

"Higher" and "lower" are said where the interval of at least five seeds excludes zero, "within x" where two
one-sided tests say so, "not told apart" else; of fewer seeds there are single values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from dmlrepro.evidence import claims, comparing, tables
from dmlrepro.evidence.statistics import MIN_SEEDS

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
        nothing could be).
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
    return [said for line in judged.verdicts.itertuples() if (said := sentence(judged, line))]


def sentence(judged: Judged, line) -> str:
    """What is said of one line of the verdicts; empty if nothing was compared."""
    rows = _compared(judged, line)
    parts = [_of_part(part) for _, part in rows.groupby(["metric", "_kind", "_subject"], sort=False)]
    several = (judged.verdicts["claim_id"] == line.claim_id).sum() > 1
    where = f" ({_context(line)})" if several and _context(line) else ""
    return f"{line.claim_id}{where}, {verdict_in_words(line)}: {'; '.join(_some(parts))}." if parts else ""


def _context(line) -> str:
    """What tells the lines of a claim in one table apart."""
    if line.dataset == tables.SYNTHETIC:
        return "no images"
    return line.protocol if "MLRC" in line.protocol else f"dim {line.dim}" if line.dim else ""


def verdict_in_words(line) -> str:
    """ "as claimed", "unclear (12 seeds would decide)", "cost on this device (as claimed)"."""
    if line.verdict == comparing.COST:
        return f"{line.verdict} ({line.reason.partition(';')[0]})"
    if line.verdict == comparing.UNCLEAR and not math.isnan(line.seeds_needed):
        return f"{line.verdict} ({line.seeds_needed:.0f} seeds would decide)"
    return line.verdict


def _compared(judged: Judged, line) -> pd.DataFrame:
    """The comparisons of a line, but for premises, with what they are grouped by."""
    rows = judged.comparisons
    where = (rows["claim_id"] == line.claim_id) & ~rows["premise"].astype(bool)
    for name in ("profile", "dim", "protocol", "backbone"):  # a comparison without images has none of its own
        where &= (rows[name] == getattr(line, name)) | (rows["dataset"] == tables.SYNTHETIC)
    where &= (rows["of_dataset"] == line.dataset) | (line.dataset == tables.SYNTHETIC)
    rows = rows[where]
    subject = rows["comparison"].str.partition(" vs ")[0]
    kind = rows["required"].str.startswith("within").map({True: "flat", False: ""})
    kind = kind.mask(rows["interval"] == "range", "exact").mask(subject.str.startswith("trend of "), "trend")
    grouped = subject.mask(kind.isin(["flat", "exact"]), subject.str.partition(";")[0])
    return rows.assign(_subject=grouped, _kind=kind)


def _of_part(rows: pd.DataFrame) -> str:
    """The comparisons of one subject on one metric."""
    first = rows.iloc[0]
    subject, kind, metric = first["_subject"], first["_kind"], first["metric"]
    if kind == "exact":
        low, high = rows["low"].min(), rows["high"].max()
        return f"{metric} of {cell_in_words(subject)} lies in {low:.3g} to {high:.3g}, required: {first['required']}"
    if kind == "trend":
        cell = cell_in_words(subject.removeprefix("trend of "))
        return f"{metric} of {cell} {_trend(first)} ({numbers(first)})"
    if kind == "flat":
        return f"{metric} of {cell_in_words(subject)} {_flat(rows)}"
    told: dict[str, list[str]] = {}
    for line in rows.itertuples():
        baseline = line.comparison.partition(" vs ")[2]
        name = baseline if tables.is_constant(baseline) else cell_in_words(baseline)
        told.setdefault(relation(line), []).append(f"{name} ({numbers(line)})")
    about = [f"{word} {_and(_some(names))}" for word, names in told.items()]
    return f"{metric} of {cell_in_words(subject)} {', '.join(about)}"


def relation(line) -> str:
    """What the interval of a comparison allows to say of subject and baseline."""
    if line.n < MIN_SEEDS:
        return "against"
    baseline = line.comparison.partition(" vs ")[2]
    constant = tables.is_constant(baseline)
    zero = float(baseline) if constant else 0.0
    if line.outcome == comparing.NO_DIFFERENCE:
        return f"is within {line.required.rpartition('by at least ')[2]} of"
    if line.low > zero:
        return "is above" if constant else "is higher than that of"
    if line.high < zero:
        return "is below" if constant else "is lower than that of"
    return "is not told apart from"


def _trend(line) -> str:
    if line["n"] < MIN_SEEDS:
        return "changes over the range"
    if line["outcome"] == comparing.NO_DIFFERENCE:
        return f"changes less than {line['required'].partition('at least ')[2].partition(' over')[0]} over the range"
    if line["low"] > 0:
        return "rises over the range"
    return "falls over the range" if line["high"] < 0 else "neither rises nor falls clearly over the range"


def _flat(rows: pd.DataFrame) -> str:
    """Levels against the level that they are said to be like: the farthest one says it."""
    far = rows.loc[(rows["effect"] - _zero(rows)).abs().idxmax()]
    level, _, baseline = far["comparison"].partition(" vs ")
    where = f"{_setting(level)} against {_setting(baseline)}: {numbers(far)}"
    if (rows["n"] < MIN_SEEDS).any():
        return f"differs most at {where}"
    if (rows["outcome"] == comparing.AS_CLAIMED).all():
        return f"stays {far['required']}, farthest at {where}"
    if (rows["outcome"] == comparing.OTHER_WAY).any():
        return f"does not stay {far['required']}, farthest at {where}"
    return f"is not shown to stay {far['required']}, farthest at {where}"


def _zero(rows: pd.DataFrame) -> pd.Series:
    return pd.to_numeric(rows["comparison"].str.partition(" vs ")[2], errors="coerce").fillna(0.0)


def numbers(line) -> str:
    """ "+3.0, 95 % +2.6 to +3.4, n = 5"; of fewer seeds the single values."""
    line = line if isinstance(line, pd.Series) else pd.Series(line._asdict())
    form = number_format(line["metric"], line["comparison"])
    values = str(line["values"]).split(" and ")
    if line["n"] < MIN_SEEDS:
        single = " and ".join(f"{float(value):{form}}{line['unit']}" for value in values if value)
        return f"{single}, {line['n']} seeds" if line["n"] > 1 else f"{single}, one value"
    effect, low, high = (f"{line[name] + 0.0:{form}}{line['unit']}" for name in ("effect", "low", "high"))
    return f"{effect}, {line['interval']} {low} to {high}, n = {line['n']}"


def number_format(metric: str, comparison: str) -> str:
    """How an effect is printed: percentages with one decimal; against a constant the value itself, without a sign."""
    sign = "" if tables.is_constant(comparison.rpartition(" vs ")[2]) else "+"
    return f"{sign}.1f" if metric.startswith((*claims.RETRIEVAL, "NMI")) else f"{sign}.3g"


def cell_in_words(expression: str) -> str:
    """ "PFML at delta = 0.1 to 0.3" of "PFML;delta=0.1..0.3"."""
    said = []
    for cell in expression.split(" - "):
        method, _, _ = cell.partition(";")
        setting = _setting(cell)
        said.append(f"{method} at {setting}" if setting else method)
    return " minus ".join(said)


def _setting(cell: str) -> str:
    return cell.partition(";")[2].replace(";", ", ").replace("..", " to ").replace("=", " = ")


def _some(said: list[str], most: int = 4) -> list[str]:
    """The first ones; a claim may have a dozen, and the table has all."""
    return said if len(said) <= most else [*said[: most - 1], f"{len(said) - most + 1} more"]


def _and(names: list[str]) -> str:
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
        said = claims.stated().get(line.claim_id, {})
        rows.append(
            {"claim": line.claim_id, "the paper says": claims.statement(line.claim_id), "verdict": line.verdict}
            | {"because": line.reason, "published": said.get("expected_size", ""), "ours": _ours(line), "n": line.n}
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


def _ours(line) -> str:
    """An effect with its interval, which is called a range where it is one; single values of few seeds."""
    if not line.comparison:
        return ""
    form = ".4g" if tables.is_constant(line.comparison.rpartition(" vs ")[2]) else "+.3g"  # a value, or a difference
    if line.values:
        return f"{line.comparison}: {line.metric} {line.values}{line.unit}"
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
