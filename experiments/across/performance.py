"""Notebook 93: the committed benchmarks as figures: how cost grows, and what it is against peers. Scripts in
benchmarks/ make the tables, and the workflow executes this notebook after publishing, like that of the ledger."""

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


def table_of(name: str) -> pd.DataFrame:
    """A table with columns case, form, metric, value and ratio, what a peer takes over what ours takes in one run."""
    path = repository_root() / "results" / "benchmarks" / f"{name}.csv"
    return pd.read_csv(path, keep_default_na=False, na_values={"ratio": "", "value": ""})


def ratios() -> pd.DataFrame:
    """What a peer takes over what ours takes, both of one run: columns time and memory."""
    rows = pd.concat(table_of(name).assign(benchmark=title) for name, (title, _) in BENCHMARKS.items())
    rows["of"] = rows["metric"].map({"seconds": "time", "megabytes": "memory"})
    rows["device"] = rows["device"].where(rows["device"].str.startswith("NVIDIA"), "")  # else a CPU
    rows = rows.dropna(subset="ratio").set_index(["benchmark", "case", "device", "form", "of"])
    return rows["ratio"].unstack(sort=False).map("{:.3g}".format, na_action="ignore").fillna("")


def growth_figure() -> Figure:
    """How time grows, on logarithmic axes, a panel per benchmark with a size: a line per form of rows that differ in
    size alone, of three sizes at least; the fitted powers stand in the legends."""
    names, sized = papers.names(), {name: of for name, of in BENCHMARKS.items() if of[1]}
    with panels(len(sized), 3.1, WIDTH, most=2) as (figure, axes):
        for axis, (name, (title, size)) in zip(axes, sized.items()):
            table = table_of(name).query("metric == 'seconds'").sort_values(size, kind="stable")
            alike = [column for column in table if column not in ("case", "members", size, "value", "ratio")]
            lines = [rows for _, rows in table.groupby(alike, sort=False) if rows[size].nunique() >= 3]
            for rows in lines:
                form, (power, _) = rows["form"].iloc[0], np.polyfit(np.log(rows[size]), np.log(rows["value"]), 1)
                label, color = f"{form}: slope {power:.2f}", names.color(form)
                axis.loglog(rows[size], rows["value"], marker=names.marker(form), color=color, label=label)
                ticks_at(axis, list(rows[size]))
            axis.set(xlabel=size, ylabel="time (s)", title=title)
            low, high = axis.get_ylim()
            axis.set_ylim(low, high * (high / low) ** (0.09 * len(lines)))  # what grows leaves the upper left free
            axis.legend(fontsize="small", loc="upper left")
    titles = listed(title for title, _ in sized.values())
    return described(figure, f"Growth of time with size on logarithmic axes: {titles}.")


def check() -> None:
    """Print whether every script of benchmarks/ is read here; the sentence is the regression test."""
    scripts = {path.stem for path in (repository_root() / "benchmarks").glob("*.py")} - {"harness"}
    left = sorted(scripts ^ {*BENCHMARKS})
    print(f"every benchmark of results/benchmarks is read here: {f'no, not {left}' if left else 'yes'}")


Performance = Study("93_performance", Params, saves=False)  # whatever its parameters, it reads the same tables
