"""The made parts of the README and of the pages beside it: verdicts counted, which loss, errata, cost."""

import textwrap
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments import papers
from experiments.across import ledger as shown
from experiments.analysis import claims, comparing, ledger, stored, tables
from experiments.analysis.judging import Verdict
from experiments.analysis.statistics import MIN_SEEDS, t_interval
from experiments.analysis.tables import Expression
from experiments.report import catalogue, costs, published, verdicts

PANELS = 3  # data sets that are drawn
SHOWN = 3  # claims that a list names


def parts() -> dict[str, str]:
    """The made parts of README.md by name."""
    return {"verdicts": state()}


def figures() -> dict[str, Figure]:
    """By the names of their files."""
    from experiments.figures.effects import rankings as draw

    ranked = {textwrap.fill(title, 36): table for title, table in rankings().items()}
    return {"matrix": shown.matrix(verdicts.made()), "which_loss": draw(ranked, "R@1", names=papers.names())}


# --- the first screen -------------------------------------------------------------------------------------------------


def state() -> str:
    """The claims by verdict, those whose tests stand as they were frozen apart."""
    here, tests = verdicts.here(), catalogue.claims()
    frozen = {claim_id for claim_id in here if not tests[claim_id].revised}
    by_verdict = {word: [claim_id for claim_id in here if here[claim_id] == word] for word in Verdict}
    rows = [
        table_row([str(word), str(len(of)), str(len(frozen.intersection(of))), _linked(of)])
        for word, of in by_verdict.items()
        if of
    ]
    return "\n".join(
        [table_row(["verdict", "claims", "test frozen before its runs", "which"]), "|---|---|---|---|", *rows]
    )


def table_row(cells: Iterable[str]) -> str:
    """A row of a Markdown table; without blanks, so that a count of words counts no bars."""
    return f"|{'|'.join(cells)}|"


def _linked(claim_ids: list[str], most: int = SHOWN) -> str:
    """Claims with links to the pages of their papers, and what they say in short."""
    short = claims.short_statements()
    named = [
        f"[{claim_id}](docs/papers/{claim_id.partition('-')[0]}.md) “{short[claim_id]}”"
        for claim_id in claim_ids[:most]
    ]
    more = [f"[{len(claim_ids) - most} more](docs/matrix.md)"] if len(claim_ids) > most else []
    return ", ".join([*named, *more])


# --- which loss -------------------------------------------------------------------------------------------------------


def rankings() -> dict[str, pd.DataFrame]:
    """What a table is of -> its losses, the highest mean R@1 first: columns method, mean, low, high, tuned, untrained,
    what the features have as they are, and values by seed."""
    order = list(ledger.PLACES)
    by_dataset = comparisons()
    short = {dataset: claims.short_name(dataset) for dataset in by_dataset}
    chosen = sorted(
        by_dataset, key=lambda dataset: order.index(short[dataset]) if short[dataset] in order else len(order)
    )[:PANELS]
    ranked = {}
    for dataset in chosen:
        table = pd.concat([_ranked(name, saved) for name, saved in by_dataset[dataset].items()])
        table = table.drop_duplicates("method").sort_values("mean", ascending=False, ignore_index=True)
        first = next(iter(by_dataset[dataset].values()))
        few = ", a direction only" if first.few_seeds or first.profile == "quick" else ""
        older = ", older code" if any(saved.older for saved in by_dataset[dataset].values()) else ""
        ranked[f"{first.plain_label}{few}{older}"] = table
    return ranked


def _ranked(name: str, saved: stored.Stored) -> pd.DataFrame:
    numbers, rows = stored.Numbers(saved.table), []
    cells = {method: method for method in numbers.methods if method not in comparing.UNTRAINED}
    for method in catalogue.studies()[name].ranked:  # where the paper's own loss was trained in another way only, that
        levels = numbers.cells.get((method, "R@1"), {})
        if levels and all(level.setting for level in levels):
            del cells[method]
            cells |= {str(level): f"{method} ({level.setting.replace('=', ' ')})" for level in levels}
    for cell, label in cells.items():
        try:
            by_seed = tables.by_seed(numbers.cells, Expression.read(cell), "R@1")
        except tables.MissingRows:
            continue
        values = np.array([*by_seed.values()])
        low, high = t_interval(values) if len(values) >= MIN_SEEDS else (np.nan, np.nan)
        tuned = saved.trials.get(cell.partition(";")[0], 0) >= comparing.TUNED
        row = {"method": label, "mean": values.mean(), "low": low, "high": high, "tuned": tuned}
        rows.append(row | {"untrained": numbers.mean("untrained"), "values": by_seed})
    return pd.DataFrame(rows)


def comparisons() -> dict[str, dict[str, stored.Stored]]:
    """Data set -> notebook that ranks losses, beside the untrained -> its table of most losses and seeds there."""
    by_dataset: dict[str, dict[str, stored.Stored]] = {}
    for name in (name for name, study in catalogue.studies().items() if study.ranked):
        for saved in stored.stored(name):
            methods = set(saved.table["method"])
            if "untrained" in methods and len(methods - comparing.UNTRAINED) > 2:
                by_dataset.setdefault(saved.table["dataset"].iloc[0], {}).setdefault(name, saved)
    return by_dataset


# --- errata and cost --------------------------------------------------------------------------------------------------


def errata_table(rows: pd.DataFrame, root: str) -> Iterator[str]:
    """Errata, a row each with our reading and the test that shows it, for a page from which `root` leads to the
    repository's."""
    yield table_row(["where", "severity", "what is wrong", "our reading"])
    yield "|---|---|---|---|"
    for row in rows.itertuples():
        file, _, test = row.test.partition("::")
        where = f"{claims.name_of(row.paper)}, {row.where}"
        reading = f"[{row.reading}]({root}{row.file}) ([test]({root}{file} '{test}'))"
        cells = (where, row.severity, row.wrong.replace("|", r"\|"), reading)
        yield table_row(cells)


def hours() -> pd.DataFrame:
    """By paper: hours of `small`, GPU-hours of `paper` by data set, and of the search before."""
    table = costs.table().assign(paper=lambda rows: rows["paper"].map(published.papers()["name"]))
    small = table[table["profile"] == "small"].groupby("paper", sort=False)["hours"].sum()
    paper = table[table["profile"] == "paper"]
    wide = paper.pivot_table(index="paper", columns="dataset", values="hours", aggfunc="sum", sort=False, fill_value=0)
    wide = wide.assign(all=wide.sum(axis=1), tuning=paper.groupby("paper")["tuning_hours"].sum())
    wide.insert(0, "small", small)
    return wide.loc[published.papers()["name"]].fillna(0)


def cost() -> str:
    table = hours()
    data = [name for name in table if name not in ("small", "all", "tuning")]
    where = " / ".join(data)
    lines = [
        table_row(
            [
                "paper",
                "hours, `small`",
                f"GPU-hours, `paper`: {where}",
                "in all",
                "tuning before",
                "days, one A100",
            ]
        ),
        "|---|---|---|---|---|---|",
    ]
    for name, row in [*table.iterrows(), ("total", table.sum())]:
        gpu_hours = " / ".join(f"{row[dataset]:.0f}" for dataset in data)
        days = (row["all"] + row["tuning"]) / 24
        numbers = (f"{value:.0f}" for value in (row["all"], row["tuning"], days))
        lines.append(table_row([str(name), f"{row['small']:.0f}", gpu_hours, *numbers]))
    disk = published.disk().groupby("profile")[["download", "decoded"]].sum().sum(axis=1)
    lines += [
        "",
        "Runs times median seconds on record; `paper` at "
        f"[{costs.IMAGES_PER_SECOND} images per second](../experiments/report/costs.py); days count tuning. Disk: "
        f"{disk['quick']:.0f} GB of packages, {disk['small']:.0f} GB of birds and cars, "
        f"{disk['paper']:.0f} GB more of SOP; InShop is not counted.",
    ]
    return "\n".join(lines)
