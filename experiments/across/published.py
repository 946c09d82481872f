"""Notebook 90: every published table joined with our rows of the same experiment, and what differs between the two.
They belong together if they name the same method, the same measure and, in an ablation, the same level."""

import itertools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import claims, saving, stored, summaries, tables
from experiments.figures import comparisons
from experiments.files import repository_root
from experiments.params import Params
from experiments.study import Study

METRICS = {("meanfield", "epoch"): "best_epoch", ("nivmf", "mAP@1000"): "mAP@1000/class_size"}  # a paper's name: ours
SAME = {"R@1": "P@1", "P@1": "R@1"}  # one measure under two names
LEVELS = {  # how a paper states a level: the setting of our tables
    r"\b(alpha|delta|delta_rep|M|N_rho|m|N_alpha|N_beta)=([\d.]+)": r"\1=\2",
    r"lambda_MF=([\d.]+)": r"lambda=\1",
    r"batch size (\d+)": r"batch=\1",
    r"(\d+)-dim": r"dim=\1",
    r"(\d)0% label noise": r"label_noise=0.\1",
}


def printed() -> pd.DataFrame:
    """Every row of data/published, the figures' last, with the notebook that repeats it ("" where none does)."""
    stems = {path.stem for path in (repository_root() / "data" / "published").glob("*.csv")} - {"effects"}
    of_papers = [f"{paper}{end}" for paper in claims.papers() for end in ("", "_figures")]
    ordered = [*filter(stems.__contains__, of_papers), *sorted(stems - {*of_papers})]
    rows = pd.concat([summaries.published(stem) for stem in ordered], ignore_index=True)
    repeated = {(row["paper"], row["table"]): row["notebook"] for row in claims.rows_of("printed_tables.csv")}
    return rows.assign(notebook=[repeated.get(key, "") for key in zip(rows["paper"], rows["table"])])


def cell_of(paper: str, table: str, method: str, split: str) -> tables.Cell:
    """A published row as a cell of our tables: its method by our name, and the levels that it states."""
    if method in (known := summaries.printed_names(paper, table)):
        return tables.Cell.read(known[method])
    name, _, own = method.rpartition(" ") if re.search(r" M=\d+$", method) else (method, "", "")
    stated = f"{split}; {own}"
    settings = [match.expand(level) for form, level in LEVELS.items() for match in re.finditer(form, stated)]
    return tables.Cell(summaries.printed_names(paper).get(name, name), tables.settings_of(";".join(settings)))


class Ours(NamedTuple):
    """Our side of a published row: the mean over n seeds, in which table, under which cell and protocol."""

    value: float
    n: int
    source: stored.Stored
    cell: tables.Cell
    protocol: str


def _found(source: stored.Stored, by_protocol: Mapping[str, tables.Cells], row: Any) -> Ours | None:
    """What a table of ours has beside a published row: the row of its cell."""
    cell = cell_of(row.paper, row.table, row.method, row.split_or_setting)
    metric = METRICS.get((row.paper, row.metric), row.metric)
    # folds scored apart or together come first, as the published row states
    scored = next((word for word in ("separated", "concatenated") if word in row.split_or_setting), "conventional")
    for protocol in sorted(by_protocol, key=lambda name: (scored not in name, "mlrc" in name.lower())):
        for name in (metric, SAME.get(metric, metric)):
            levels = by_protocol[protocol].get((cell.method, name), {})
            for level in filter(cell.covers, levels):
                values = [*levels[level].values()]
                return Ours(float(np.mean(values)), len(values), source, level, protocol)
    return None


def joined() -> pd.DataFrame:
    """Every published row with `ours`, an Ours, or None where results/ has no such row, and whether that is of the
    `same_data`, or a part of it. Of several tables of ours that stands first which is of the row's data, then of the
    profile that carries most, then which has most rows of the same comparison, then which has most seeds."""
    rows, cells = printed(), {}
    sources = {name: stored.stored(name) for name in filter(None, rows["notebook"].unique())}
    for source in itertools.chain.from_iterable(sources.values()):
        own = tables.final_rows(source.table)
        own = own[(own["dataset"] != tables.SYNTHETIC) & (own["setting"] != tables.CURVE)]
        cells[source] = {name: tables.cells_of(some) for name, some in own.groupby("protocol", sort=False)}
    by_place: dict[int, Ours] = {}
    for (_, _, dataset, _), some in rows.groupby(["paper", "table", "dataset", "backbone"], sort=False):
        ranked = []
        for source in sources.get(some["notebook"].iloc[0], ()):
            found = {row.Index: _found(source, cells[source], row) for row in some.itertuples()}
            answers = {place: ours for place, ours in found.items() if ours}
            place = saving.PROFILES.index(source.profile)
            ranked.append(((not _is_of(source, dataset), place, -len(answers)), answers))
        for _, answers in sorted(ranked, key=lambda of: of[0]):
            by_place = answers | by_place
    rows = rows.assign(ours=[by_place.get(place) for place in rows.index])
    return rows.assign(same_data=[bool(row.ours and _is_of(row.ours.source, row.dataset)) for row in rows.itertuples()])


def _is_of(source: stored.Stored, dataset: str) -> bool:
    """Whether a table of ours is of a published data set, or of a part of it."""
    names = map(claims.short_name, source.table["dataset"].unique())
    return dataset in {claims.BENCHMARKS.get(name, name) for name in names}


def beside(rows: pd.DataFrame, paper: str) -> pd.DataFrame:
    """The joined rows of a paper, "published / ours": a row per method and level, with what both sides were measured
    on, our seeds, and the trials that chose our settings."""
    index = ["table", "published on", "ours on", "method", "seeds", "tuned"]
    lines = []
    for row in rows[(rows["paper"] == paper) & rows["ours"].notna()].itertuples():
        ours, dim = row.ours, "" if np.isnan(row.dim) else f"{row.dim:.0f} dimensions"
        theirs = ", ".join(filter(None, (row.dataset, row.backbone, dim, row.split_or_setting)))
        where = f"{ours.source.heading}, {ours.protocol} protocol"
        trials = ours.source.trials.get(ours.cell.method, 0)
        numbers = " / ".join(f"{value:.{summaries.decimals([value])}f}" for value in (row.value, ours.value))
        line = (row.table, theirs, where, ours.cell.said, ours.n, f"{trials} trials" if trials else "no")
        lines.append((*line, row.metric, numbers))
    table = pd.DataFrame(lines, columns=[*index, "metric", "numbers"]).drop_duplicates([*index, "metric"])
    table = table.sort_values(index[:3], kind="stable")
    return table.set_index([*index, "metric"])["numbers"].unstack("metric", sort=False).fillna("")


def counterparts(rows: pd.DataFrame) -> pd.DataFrame:
    """How many numbers of each published table are joined, and how many of them on its own data, or a part of them."""
    table = rows["paper"].map(claims.name_of) + " " + rows["table"]
    counted = rows.assign(table=table, notebook=rows["notebook"].str[:2], rows=1, joined=rows["ours"].notna())
    counted = counted.groupby(["table", "notebook"], sort=False)[["rows", "joined", "same_data"]].sum().astype(int)
    return counted.reset_index().rename(columns={"same_data": "on its own data, or a part"})


def deviations(rows: pd.DataFrame) -> pd.DataFrame:
    """Both sides of every comparison of three and more methods in one retrieval score, each less the mean over these
    methods, without demos: columns paper, table, dataset, comparison, method, own (the paper's method), same_data,
    theirs and ours."""
    both = rows[rows["ours"].map(lambda side: side is not None and side.source.profile != "quick")]
    conditions = both["split_or_setting"].map(lambda split: re.sub("|".join(LEVELS), "", split).strip("; "))
    sources = both["ours"].map(lambda ours: (ours.source.profile, ours.source.stem)).rename("source")
    context = ["paper", "table", "dataset", "backbone", "dim", conditions, sources]
    compared = both.groupby(context, sort=False, dropna=False)
    both = both.assign(
        comparison=compared.ngroup(),
        printed=both["method"],
        method=both["ours"].map(lambda side: str(side.cell)),
        own=both["method_source"] == "ours",
        paper=both["paper"].map(claims.name_of),
        ours=both["ours"].map(lambda side: side.value),
        place=both["metric"].map({"MAP@R": 0, "R@1": 1, "P@1": 2}),
    )
    deciding = both["place"] == both.groupby("comparison")["place"].transform("min")
    both = both[deciding].drop_duplicates(["comparison", "printed", "split_or_setting"])
    both = both[both.groupby("comparison")["printed"].transform("nunique") >= 3]
    means = both.groupby("comparison")[["value", "ours"]].transform("mean")
    both = both.assign(theirs=both["value"] - means["value"], ours=both["ours"] - means["ours"])
    columns = ["paper", "table", "dataset", "comparison", "method", "own", "same_data", "theirs", "ours"]
    return both.sort_values("comparison", kind="stable")[columns].reset_index(drop=True)


def agreement(rows: pd.DataFrame) -> pd.DataFrame:
    """How similar the orders of methods are: a row per comparison of `deviations` with Kendall's tau-b between both
    sides, 1 for the same order and -1 for the opposite one."""
    names = ["paper", "table", "dataset", "same data"]
    compared = deviations(rows).rename(columns={"same_data": "same data"}).groupby(["comparison", *names], sort=False)
    table = compared.size().rename("methods").reset_index(names).reset_index(drop=True)
    return table.assign(tau=[round(some["theirs"].corr(some["ours"], "kendall"), 2) for _, some in compared])


def figure(rows: pd.DataFrame) -> Figure:
    return comparisons.theirs_and_ours(deviations(rows), "points")


def check() -> None:
    """Print whether every published table is joined; the sentence is the regression test."""
    rows = printed()
    lost = sorted(set(rows.loc[rows["notebook"] == "", "table"]))
    print(f"every table of data/published has its experiment: {f'no, not {lost}' if lost else 'yes'}")


Published = Study("90_published_vs_ours", Params, saves=False)  # whatever its parameters, it reads the same tables
