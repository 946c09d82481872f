"""Notebook 90: every published table joined with our rows of the same experiment, and what differs between the two.

Nothing is trained here. A published row and ours belong together if they name the same method, the same measure and,
in an ablation, the same level. Ours are those of the table in results/ that carries most: on the row's own data, or a
part of them, where there is one; else on whatever data its experiment was run.
"""

import functools
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from IPython.display import HTML, Markdown
from matplotlib.figure import Figure

from experiments import papers
from experiments.analysis import claims, saving, stored, summaries, tables
from experiments.figures import comparisons
from experiments.files import repository_root
from experiments.params import Params
from experiments.study import Study

METRICS = {"epoch": "best_epoch"}  # a paper's name of a measure: ours
SAME = {"R@1": "P@1", "P@1": "R@1"}  # one measure under two names
LEVELS = {  # how a paper states a level: the setting of our tables
    r"\b(alpha|delta|delta_rep|M|N_rho|m|N_alpha|N_beta)=([\d.]+)": r"\1=\2",
    r"lambda_MF=([\d.]+)": r"lambda=\1",
    r"batch size (\d+)": r"batch=\1",
    r"(\d+)-dim": r"dim=\1",
}
EFFECTS = "effects"  # the one file of data/published that is no paper's tables: what they claim, as differences
NOISE = re.compile(r"(\d+)% label noise")


# --- the join ---------------------------------------------------------------------------------------------------------


def printed() -> pd.DataFrame:
    """Every row of data/published, the figures' last, with the notebook that repeats it ("" where none does)."""
    paths = (repository_root() / "data" / "published").glob("*.csv")
    stems = sorted(path.stem for path in paths if path.stem != EFFECTS)
    ordered = [f"{paper}{end}" for paper in claims.papers() for end in ("", "_figures") if f"{paper}{end}" in stems]
    stems = [*ordered, *(set(stems) - set(ordered))]
    rows = pd.concat([summaries.published(stem) for stem in stems], ignore_index=True)
    notebooks = [said(paper, "EXPERIMENTS").get(table, "") for paper, table in zip(rows["paper"], rows["table"])]
    return rows.assign(notebook=notebooks)


@functools.cache  # asked of every row
def said(paper: str, what: str) -> dict[str, Any]:
    """What the methods of a paper's room say of its printed tables: EXPERIMENTS, CELLS, MEASURES or PRINTED; {} where
    they say nothing."""
    return getattr(papers.modules().get(paper), what, {})


def cell_of(paper: str, table: str, method: str, split: str) -> tables.Cell:
    """A published row as a cell of our tables: its method by our name, and the levels that it states."""
    if method in (known := said(paper, "CELLS").get(table, {})):
        return tables.Cell.read(known[method])
    name, _, own = method.rpartition(" ") if re.search(r" M=\d+$", method) else (method, "", "")
    stated = f"{split}; {own}"
    settings = [
        re.sub(pattern, written, match.group(0))
        for pattern, written in LEVELS.items()
        for match in re.finditer(pattern, stated)
    ]
    settings += [f"label_noise={int(match.group(1)) / 100:g}" for match in NOISE.finditer(stated)]
    return tables.Cell(said(paper, "PRINTED").get(name, name), tables.settings_of(";".join(settings)))


class Ours(NamedTuple):
    """Our side of a published row: the mean over n seeds, in which table, under which cell and protocol."""

    value: float
    n: int
    source: stored.Stored
    cell: tables.Cell
    protocol: str


class _Values:
    """The means of one of our tables, by protocol."""

    def __init__(self, source: stored.Stored):
        self.source = source
        rows = tables.final_rows(source.table)
        rows = rows[(rows["dataset"] != tables.SYNTHETIC) & (rows["setting"] != tables.CURVE)]
        self.by_protocol = {name: tables.cells_of(some) for name, some in rows.groupby("protocol", sort=False)}
        self.datasets = {claims.short_name(name) for name in rows["dataset"]}
        changes = source.stem.partition("--")[2].split(",")
        self.changes = sum(not change.startswith("dataset=") for change in changes if change)
        self.profile = saving.PROFILES.index(source.profile)

    def find(self, cell: tables.Cell, metric: str, split: str) -> Ours | None:
        """The row of a cell, else of the same settings at the only other level there is, as dim=16 for dim=64."""
        for protocol in sorted(self.by_protocol, key=lambda name: _unlike(name, split)):
            for name in filter(None, (metric, SAME.get(metric))):
                levels = self.by_protocol[protocol].get((cell.method, name), {})
                matching = [level for level in levels if cell.covers(level)]
                if cell.settings:
                    alike = [level for level in levels if level.settings.keys() == cell.settings.keys()]
                    matching = matching or (alike if len(alike) == 1 else [])
                for level in matching[:1]:
                    values = [*levels[level].values()]
                    return Ours(float(np.mean(values)), len(values), self.source, level, protocol)
        return None


def _unlike(protocol: str, split: str) -> tuple[bool, bool]:
    """How unlike a protocol of ours is what a published row states: folds scored apart or together come first."""
    scored = next((word for word in ("separated", "concatenated") if word in split), "conventional")
    return scored not in protocol, "mlrc" in protocol.lower()


def joined() -> pd.DataFrame:
    """Every published row with `ours`, an Ours, or None where results/ has no such row. Of several tables of ours on
    data other than the row's, that stands first which has most rows of the same comparison."""
    rows = printed()
    names = filter(None, rows["notebook"].unique())
    values = {name: [_Values(source) for source in stored.stored(name)] for name in names}
    by_place: dict[int, Ours] = {}
    for key, some in rows.groupby(["paper", "table", "dataset", "backbone"], sort=False):
        own = next((short for short, known in claims.BENCHMARKS.items() if known == key[2]), key[2])
        answers = {table: _answers(table, some) for table in values.get(some["notebook"].iloc[0], ())}
        least = {ours: (own not in ours.datasets, ours.profile, -len(answers[ours]), ours.changes) for ours in answers}
        order = sorted(answers, key=least.__getitem__)
        for table in reversed(order):
            by_place |= answers[table]
    return rows.assign(ours=[by_place.get(place) for place in rows.index])


def _answers(values: _Values, rows: pd.DataFrame) -> dict[int, Ours]:
    """By place, what one table of ours has beside published rows."""
    by_place = {}
    for row in rows.itertuples():
        cell = cell_of(row.paper, row.table, row.method, row.split_or_setting)
        metric = said(row.paper, "MEASURES").get(row.metric, METRICS.get(row.metric, row.metric))
        if ours := values.find(cell, metric, row.split_or_setting):
            by_place[row.Index] = ours
    return by_place


def groups(rows: pd.DataFrame) -> Iterable[tuple[tuple[Any, ...], pd.DataFrame]]:
    """The joined rows of each comparison: of one table, data set, network and protocol, with one table of ours."""
    both = rows[rows["ours"].notna()]
    stems = both["ours"].map(lambda ours: (ours.source.profile, ours.source.stem))
    split = both["split_or_setting"].map(_condition)
    keys = ["paper", "table", "dataset", "backbone", "dim"]
    return both.groupby([*keys, split.rename("split"), stems.rename("stem")], sort=False, dropna=False)


def _condition(split: str) -> str:
    """What a row says of its conditions beside the level of an ablation."""
    for pattern in (*LEVELS, NOISE.pattern):
        split = re.sub(pattern, "", split)
    return "; ".join(filter(None, (part.strip() for part in split.split(";"))))


# --- what is shown ----------------------------------------------------------------------------------------------------


def beside(rows: pd.DataFrame, paper: str) -> Markdown:
    """The joined rows of a paper: a table per comparison, "published / ours", below what both sides were measured on;
    a row per method and level with our seeds and the trials that chose our settings."""
    lines = []
    for (_, table, dataset, backbone, dim, split, _), some in groups(rows[rows["paper"] == paper]):
        first: Ours = some["ours"].iloc[0]
        source, metrics = first.source, list(dict.fromkeys(some["metric"]))
        methods = {ours.cell.method for ours in some["ours"]}
        dims = sorted({*source.table.loc[source.table["method"].isin(methods), "dim"]})
        theirs = [backbone, "" if np.isnan(dim) else f"{dim:.0f} dimensions", split]
        ours = [source.plain_label, f"dimensions {', '.join(f'{size:.0f}' for size in dims)}", first.protocol]
        marks = f"{source.profile}{', a direction only' * source.few_seeds}{', older code' * source.older}"
        heading = f"**{claims.name_of(paper)}, {table}, {dataset or 'all data'}.** "
        published, link = ", ".join(filter(None, theirs)), f"[{source.notebook[:2]}]({source.notebook}.ipynb)"
        lines.append(f"{heading}Published: {published}. Ours ({link}, {marks}): {', '.join(ours)}.")
        lines += ["", f"| method | {' | '.join(metrics)} | seeds | tuned |", f"|{'---|' * (len(metrics) + 3)}"]
        for (method, stated), cells in some.groupby(["method", "split_or_setting"], sort=False):
            values = {row.metric: f"{_number(row.value)} / {_number(row.ours.value)}" for row in cells.itertuples()}
            side: Ours = cells["ours"].iloc[0]
            wanted, trials = cell_of(paper, table, method, stated), source.trials.get(side.cell.method, 0)
            name = side.cell.said + ("" if wanted.covers(side.cell) else f" for {wanted.setting_said}")
            shown = [name, *(values.get(metric, "") for metric in metrics), f"{side.n}"]
            lines.append(f"| {' | '.join(shown)} | {f'{trials} trials' if trials else 'no'} |")
        lines.append("")
    return Markdown("\n".join(lines) or f"No row of {claims.name_of(paper)} has a counterpart in results/ so far.")


def _number(value: float) -> str:
    return f"{value:.{summaries.decimals([value])}f}"


def without_counterpart(rows: pd.DataFrame) -> HTML:
    """How many rows of each published table are joined, and what no row of ours stands beside: methods and measures
    that are not here, and data not run."""
    lines = []
    for (paper, table), some in rows.groupby(["paper", "table"], sort=False):
        both = some[some["ours"].notna()]
        own = both[np.array([_is_own(row.ours, row.dataset) for row in both.itertuples()], bool)]
        line = {"table": f"{claims.name_of(paper)} {table}", "notebook": some["notebook"].iloc[0][:2]}
        line |= {"rows": len(some), "joined": len(both), "on its own data, or a part": len(own)}
        line |= {f"{column}s not here": _but(some[column], both[column]) for column in ("method", "metric")}
        lines.append(line | {"data without runs": _but(some["dataset"], own["dataset"])})
    with pd.option_context("display.max_colwidth", None):
        return HTML(pd.DataFrame(lines).to_html(index=False))


def _but(values: pd.Series, known: pd.Series, shown: int = 6) -> str:
    names = [name for name in values.unique() if name and name not in set(known)]
    return ", ".join(names[:shown]) + f" and {len(names) - shown} more" * (len(names) > shown)


def _is_own(ours: Ours, dataset: str) -> bool:
    return dataset in {claims.BENCHMARKS.get(claims.short_name(name)) for name in ours.source.table["dataset"].unique()}


# --- do the orders agree ----------------------------------------------------------------------------------------------


def deviations(rows: pd.DataFrame) -> pd.DataFrame:
    """Both sides of every comparison of three and more methods in one retrieval score, each less the mean over these
    methods: columns paper, table, dataset, comparison, method, own (the paper's method), same_data, theirs and ours."""
    columns = ["paper", "table", "dataset", "comparison", "method", "own", "same_data", "theirs", "ours"]
    parts = [pd.DataFrame(columns=columns)]
    for number, (key, some) in enumerate(groups(rows)):
        scores = [metric for metric in some["metric"].unique() if metric.startswith(claims.RETRIEVAL)]
        wanted = next((metric for metric in ("MAP@R", "R@1", "P@1") if metric in scores), None)
        some = some[some["metric"] == wanted].drop_duplicates(["method", "split_or_setting"])
        if len(some) < 3 or some["method"].nunique() < 3:
            continue
        ours = some["ours"].map(lambda side: side.value)
        where = {"paper": claims.name_of(key[0]), "table": key[1], "dataset": key[2], "comparison": number}
        where |= {"same_data": _is_own(some["ours"].iloc[0], key[2])}
        part = some.assign(**where, method=some["ours"].map(lambda side: str(side.cell)))
        part = part.assign(own=some["method_source"] == "ours", theirs=some["value"] - some["value"].mean())
        parts.append(part.assign(ours=ours - ours.mean())[columns])
    return pd.concat(parts[1:] or parts, ignore_index=True)


def agreement(rows: pd.DataFrame) -> pd.DataFrame:
    """How alike the orders of methods are: a row per comparison of `deviations` with Kendall's tau-b between both
    sides, 1 for the same order and -1 for the opposite one."""
    names = {"paper": "paper", "table": "table", "dataset": "dataset", "same_data": "same data"}
    by_comparison = deviations(rows).groupby(["comparison", *names], sort=False)[["theirs", "ours"]]
    table = by_comparison.size().rename("methods").to_frame()
    table["tau"] = [round(some["theirs"].corr(some["ours"], method="kendall"), 2) for _, some in by_comparison]
    return table.reset_index([*names]).reset_index(drop=True).rename(columns=names)


def figure(rows: pd.DataFrame) -> Figure:
    return comparisons.theirs_and_ours(deviations(rows), "points")


def check() -> None:
    """Print whether every published table is joined; the sentence is the regression test."""
    rows = printed()
    lost = sorted(set(rows.loc[rows["notebook"] == "", "table"]))
    print(f"every table of data/published has its experiment: {f'no, not {lost}' if lost else 'yes'}")


Published = Study("90_published_vs_ours", Params, saves=False)  # whatever its parameters, it reads the same tables
