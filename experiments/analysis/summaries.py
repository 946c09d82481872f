"""Tables as a reader sees them: means with intervals, with few digits, beside the published numbers."""

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from experiments.analysis.statistics import MIN_SEEDS, t_interval
from experiments.analysis.tables import chosen
from experiments.files import repository_root


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
    return readable(beside, {name: decimals(beside[name].dropna()) for name in beside})


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
    return wide.sort_index(level="protocol", sort_remaining=False, kind="stable").astype(object).fillna("")


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
