"""Notebook 93: the committed benchmarks as figures: how cost grows, and what it is against peers. Scripts in
benchmarks/ make the tables, and the workflow executes this notebook after publishing, like that of the ledger."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments import papers
from experiments.figures.style import WIDTH, described, listed, panels, ticks_at
from experiments.files import repository_root
from experiments.params import Params
from experiments.study import Study

# table of results/benchmarks: (what is measured, the column along which cost grows)
BENCHMARKS = {
    "pfml": ("PFML", "classes"),
    "nivmf": ("EL-nivMF", ""),
    "mean_field": ("Mean fields", "batch"),
    "k_center": ("CCP's k-center", ""),
    "plm": ("PLM's pieces", "points"),
    "metrics": ("Metrics", "images"),
    "retrieval": ("Ranking", ""),
    "loop": ("Training loop", ""),
    "tail": ("Trained tail", ""),
}


def folder() -> Path:
    return repository_root() / "results" / "benchmarks"


def table_of(name: str) -> pd.DataFrame:
    """A table with columns case, form, metric, value and ratio, what a peer takes over what ours takes in one run."""
    return pd.read_csv(folder() / f"{name}.csv", keep_default_na=False, na_values={"ratio": "", "value": ""})


def ratios() -> pd.DataFrame:
    """What a peer takes over what ours takes, both of one run: columns time and memory."""
    rows = pd.concat(table_of(name).assign(benchmark=title) for name, (title, _) in BENCHMARKS.items())
    rows["of"] = rows["metric"].map({"seconds": "time", "megabytes": "memory"})
    rows["device"] = rows["device"].where(rows["device"].str.startswith("NVIDIA"), "")  # else a CPU
    rows = rows.dropna(subset="ratio").set_index(["benchmark", "case", "device", "form", "of"])
    return rows["ratio"].unstack(sort=False).map("{:.3g}".format, na_action="ignore").fillna("")


def curves() -> dict[tuple[str, str, str], dict[str, pd.DataFrame]]:
    """{(benchmark, size, metric): {form: rows}} of rows that differ in size alone, of three sizes at least."""
    found: dict[tuple[str, str, str], dict[str, pd.DataFrame]] = {}
    for name, (title, size) in BENCHMARKS.items():
        if size:
            table = table_of(name).sort_values(size, kind="stable")
            alike = [column for column in table if column not in ("case", "members", size, "value", "ratio")]
            for _, rows in table.groupby(alike, sort=False):
                if rows[size].nunique() >= 3:
                    form, metric = rows[["form", "metric"]].iloc[0]
                    found.setdefault((title, size, metric), {})[form] = rows
    return found


def growth_figure() -> Figure:
    """How time and memory grow, on logarithmic axes, a panel per benchmark and measure; the fitted powers stand in the
    legends."""
    units, names, charts = {"seconds": "time (s)", "megabytes": "peak memory (MB)"}, papers.names(), curves()
    with panels(len(charts), 3.1, WIDTH, most=2) as (figure, axes):
        for axis, ((title, size, metric), forms) in zip(axes, charts.items()):
            for form, rows in forms.items():
                power, _ = np.polyfit(np.log(rows[size]), np.log(rows["value"]), 1)
                label = f"{form}: slope {power:.2f}"
                axis.loglog(rows[size], rows["value"], marker=names.marker(form), color=names.color(form), label=label)
            axis.set(xlabel=size, ylabel=units[metric], title=title)
            ticks_at(axis, list(rows[size]))
            low, high = axis.get_ylim()
            axis.set_ylim(low, high * (high / low) ** (0.09 * len(forms)))  # what grows leaves the upper left free
            axis.legend(fontsize="small", loc="upper left")
    return described(figure, f"Growth with size on logarithmic axes: {listed(title for title, *_ in charts)}.")


def check() -> None:
    """Print whether every script of benchmarks/ is read here; the sentence is the regression test."""
    scripts = {path.stem for path in (repository_root() / "benchmarks").glob("*.py")} - {"harness"}
    left = sorted(scripts ^ {*BENCHMARKS})
    print(f"every benchmark of results/benchmarks is read here: {f'no, not {left}' if left else 'yes'}")


Performance = Study("93_performance", Params, saves=False)  # whatever its parameters, it reads the same tables
