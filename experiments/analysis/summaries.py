"""Tables as a reader sees them: means with intervals, with few digits, beside the published numbers; verdicts and
comparisons, what the judge found in words of `judging.Verdict` and numbers."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.analysis import claims, tables
from experiments.analysis.comparing import Comparison
from experiments.analysis.statistics import MIN_SEEDS, t_interval
from experiments.analysis.tables import CALLED, Expression, chosen
from experiments.files import repository_root

GLOSSARY = (
    "(k of n): supported comparisons of those that decide. Holm: p adjusted for the number of claims of the paper. "
    "Detectable: the effect that so many seeds find in four cases of five, after Holm. Over classes: 95 % of redraws "
    "of the test classes. Intervals are of 95 %, of equivalences 90 %; of bounds the range of all rows. Tuned: equal "
    "tuning budget for all methods compared. Controls, preconditions and intervals over classes decide nothing."
)


def published(
    paper: str, table: str | Sequence[str] | None = None, **where: str | float | Iterable[str | float]
) -> pd.DataFrame:
    """Published rows of a paper, e.g. published("pfml", "Table 1", dataset="CUB-200-2011", metric="R@1"); a list stands
    for any of its members. ValueError when nothing matches, with what the column holds."""
    path = repository_root() / "data" / "published" / f"{paper}.csv"
    rows = pd.read_csv(path, keep_default_na=False, na_values={"value": [""], "std_or_ci": [""], "dim": [""]})
    if table is not None:
        where = {"table": table} | where
    for column, wanted in where.items():
        wanted = [wanted] if isinstance(wanted, str | int | float) else list(wanted)
        selected = rows[rows[column].isin(wanted)]
        if selected.empty:
            known = sorted(set(rows[column]))
            raise ValueError(f"{paper}: no published row with {column} in {wanted}; it holds {known}")
        rows = selected
    return rows.reset_index(drop=True)


@functools.cache  # asked of every row of notebook 90
def printed_names(paper: str, table: str = "") -> dict[str, str]:
    """{a paper's name of a method: ours}; of a table with rows in words of their own: {row: cell of our tables}."""
    rows = claims.rows_of("printed_methods.csv")
    return {row["printed"]: row["ours"] for row in rows if (row["paper"], row["table"]) == (paper, table)}


def beside_published(ours: pd.DataFrame, theirs: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """One row per method: the published numbers of each data set beside our mean over seeds, for reading, not for
    comparing scales. Ours are at the chosen step (`tables.chosen`), of the first protocol in the table.

    Metrics that the table does not have are left out, as R@2 on SOP, whose ranks are 1, 10, 100 and 1000; ValueError
    when none is left. A cell is empty where nothing was measured or published; a column has the digits of `decimals`.
    """
    ours = chosen(ours[ours["protocol"] == ours["protocol"].iloc[0]])
    present = [metric for metric in metrics if metric in set(ours["metric"])]
    if not present:
        raise ValueError(f"metrics: the table has none of {', '.join(metrics)}; it has {sorted(set(ours['metric']))}")
    published_part = theirs[theirs["metric"].isin(metrics)].pivot_table(
        index="method", columns=["dataset", "metric"], values="value", aggfunc="first"
    )
    published_part.columns = [f"published {dataset} {metric}" for dataset, metric in published_part.columns]
    mean = ours.groupby(["method", "metric"])["value"].mean().unstack()[present]
    mean.columns = [f"ours {ours['dataset'].iloc[0]} {metric}" for metric in mean.columns]
    order = list(mean.index) + [method for method in published_part.index if method not in mean.index]
    beside = mean.join(published_part, how="outer").reindex(order)
    return readable(beside, {name: decimals(beside[name].dropna()) for name in beside}).rename(index=CALLED)


def recalls(table: pd.DataFrame) -> list[str]:
    """The names R@K of a table, by rank: each benchmark has its own."""
    names = {name for name in table["metric"] if name.startswith("R@")}
    return sorted(names, key=lambda name: int(name.removeprefix("R@")))


def pivot(table: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """`with_interval` of every metric, a row per protocol, setting and method, at the chosen step (`tables.chosen`)."""
    rows = chosen(table)
    shown = rows[rows["metric"].isin(metrics)]
    digits = {name: decimals(values) for name, values in shown.groupby("metric")["value"]}
    texts = shown.groupby(["protocol", "setting", "method", "metric"], sort=False)["value"].apply(
        lambda values: with_interval(values, digits[values.name[-1]])  # the name is that of the group
    )
    wide = texts.unstack("metric", sort=False).reindex(columns=list(metrics))
    # rows of a protocol stay in the order in which they were trained, so that N = 2 precedes N = 10
    wide = wide.sort_index(level="protocol", sort_remaining=False, kind="stable").astype(object).fillna("")
    default = {"": "default"} if any(wide.index.get_level_values("setting")) else {}
    return wide.rename(index=default, level="setting").rename(index=CALLED, level="method")


def readable(table: pd.DataFrame, digits: int | Mapping[str, int]) -> pd.DataFrame:
    """A table to be shown: its numbers with so many decimals, and nothing where nothing was measured or printed."""
    return table.round(digits).astype(object).fillna("")


def decimals(values: Iterable[float]) -> int:
    """How many decimals a metric is written with: percentages have one, distances of unit vectors and ratios three."""
    return 1 if max((abs(value) for value in values), default=0) > 2 else 3


def with_interval(values: Sequence[float], digits: int, sign: str = " ± ") -> str:
    """The mean ± half of Student's 95 % interval over at least MIN_SEEDS seeds; of fewer the mean alone."""
    low, high = t_interval([*values])
    mean = sum(values) / len(values)
    return f"{mean:.{digits}f}" + (f"{sign}{(high - low) / 2:.{digits}f}" if len(values) >= MIN_SEEDS else "")


@dataclass(frozen=True, eq=False)
class Judged:
    """Verdicts, a row per claim and context, and the comparisons they rest on; shown in a notebook as two tables.

    verdicts: k supported of n deciding comparisons, reason (`comparing.Reason`) and the comparisons that it is about
        (detail), role ("named" data sets of the claim, or "out of scope"), and of its least favourable comparison:
        effect, interval [low, high] ("95 %", of an equivalence "90 %", of a bound the "range"), p, p_holm, detectable,
        class_low, class_high, zero (what the effect is compared with) and `compared`, the Comparison.
    comparisons: the same of every comparison, with its outcome before any adjustment and whether it decides ("yes",
        "control", "precondition"); dataset is empty of a study without images.
    """

    verdicts: pd.DataFrame
    comparisons: pd.DataFrame

    def __repr__(self) -> str:
        """A line per verdict, the claim's name first."""
        width = max([8, *self.verdicts["claim_id"].map(len)])
        return "\n".join(f"{line.claim_id:<{width}} {in_words(line)}" for line in self.verdicts.itertuples())

    def _repr_html_(self) -> str:
        verdicts, compared = verdict_table(self.verdicts), comparison_table(self.comparisons)
        with pd.option_context("display.max_colwidth", None):
            shown = f"{verdicts.to_html()}<p>{GLOSSARY}</p>"
            return shown + (f"<p>Every comparison:</p>{compared.to_html(index=False)}" if len(compared) else "")


def in_words(line: Any) -> str:
    """ "supported", "mixed (3 of 5)", "not run: seeds missing"."""
    count = f" ({line.k} of {line.n})" if line.verdict in ("mixed", "supported in part") else ""
    return f"{line.verdict}{count}" + (f": {line.reason}" if line.reason else "")


def said(compared: Comparison) -> str:
    """A comparison for people: "PFML: M = 30 vs M = 15", "PFML at M = 30 vs CPML", "trend of PFML at M = 1 to 5"."""
    if compared.baseline == Expression():
        return f"trend of {compared.subject.said}"
    cells = (*compared.subject.cells, *compared.baseline.cells)
    if len(cells) == 2 and len({cell.method for cell in cells}) == 1 and all(cell.settings for cell in cells):
        return f"{cells[0].method}: {' vs '.join(cell.setting_said for cell in cells)}"
    return f"{compared.subject.said} vs {compared.baseline.said}"


def ours(line: Any) -> str:
    """A line's comparison with effect and interval: "PFML vs CPML: R@1 +3.0 [+2.6, +3.4]"; of fewer seeds the single
    values; of a comparison with a constant the value itself. Measures have two digits of the width of the interval."""
    if not line.comparison:
        return ""
    compared = line.compared
    part, (effect, low, high) = compared.part, compared.estimate
    if part.metric.startswith((*claims.RETRIEVAL, "NMI")):
        form = ".1f"
    elif compared.few or part.by_rows or not high > low:
        form = ".3g"
    else:
        form = f".{min(4, max(0, 1 - math.floor(math.log10(high - low))))}f"
    form = form if compared.baseline.is_constant else f"+{form}"
    if compared.few:
        numbers = ", ".join(f"{value:{form}}{part.unit}" for value in compared.in_unit(compared.effects))
    else:
        effect, low, high = (f"{x + 0.0:{form}}{part.unit}" for x in (effect, low, high))
        numbers = f"{effect} [{low}, {high}]"
    return f"{said(compared)}: {part.metric} {numbers}"


def verdict_table(verdicts: pd.DataFrame) -> pd.DataFrame:
    stated = claims.stated()
    rows = [
        {"the paper says": stated.get(line.claim_id, {}).get("statement", "")}
        | {"verdict": in_words(line), "published": stated.get(line.claim_id, {}).get("expected_size", "")}
        | {"ours": ours(line), "seeds": line.seeds, "required": line.required}
        | _where(line)
        | {"data are": line.role, "tuned": line.tuned, "mixes": line.mixes, "Holm": _number(line.p_holm)}
        | {"detectable": _number(line.detectable), "revised": line.revised, "not tested": line.untested_parts}
        for line in verdicts.itertuples(index=False)
    ]
    table = pd.DataFrame(rows, index=verdicts["claim_id"].rename("claim"))
    return table.loc[:, (table != "").any()]


def comparison_table(comparisons: pd.DataFrame) -> pd.DataFrame:
    rows = [
        {"claim": line.claim_id, "decides": line.decides, "interpretation": line.interpretation, "ours": ours(line)}
        | {"seeds": line.seeds, "outcome": line.outcome, "reason": line.reason, "required": line.required}
        | _where(line)
        | {"tuned": line.tuned, "mixes": line.mixes, "p": _number(line.p), "detectable": _number(line.detectable)}
        | {"over classes": f"{_number(line.class_low, 3)} to {_number(line.class_high, 3)}".removeprefix(" to ")}
        for line in comparisons.itertuples(index=False)
    ]
    table = pd.DataFrame(rows)
    return table.loc[:, (table != "").any()]


def _number(value: float, digits: int = 2) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}g}"


def _where(line: Any) -> dict[str, str]:
    """Data set and network of a line; protocols differ in MLRC alone, separated and concatenated."""
    folds = line.protocol if "MLRC" in line.protocol else ""
    dataset = "no images" if line.dataset == tables.SYNTHETIC else line.dataset
    data = ", ".join(str(part) for part in (line.profile, dataset, folds) if part)
    return {"data": data, "network": line.backbone, "device": line.device}
