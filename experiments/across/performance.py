"""Notebook 93: the committed benchmarks as figures: how cost grows, and what it is against peers.

Nothing is measured here. `benchmarks/` holds the scripts that make the tables of results/benchmarks, each against the
peers named in it; the workflow executes this notebook after publishing, like that of the ledger.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments import papers
from experiments.figures import comparisons
from experiments.files import repository_root
from experiments.params import Params
from experiments.study import Study

POINTS = 3  # sizes of a fitted exponent, at least
UNITS = {"seconds": "time (s)", "megabytes": "peak memory (MB)"}


class PerformanceParams(Params):
    """The parameters of notebook 93; whatever they are, it reads the same tables."""


@dataclass(frozen=True)
class Benchmark:
    """How one table of results/benchmarks is read.

    title: what is measured. peers: {form: the form of ours that it is compared with}; "*" stands for all others.
    size: the column along which cost grows, and its axis title. unlike: columns that no two sizes need share.
    long: the table as one with columns case, form, metric and value, where it is another.
    """

    title: str
    peers: Mapping[str, str] = field(default_factory=lambda: {"*": "product"})
    size: Any = None
    unlike: tuple[str, ...] = ("case", "members")
    long: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table


def _loop(table: pd.DataFrame) -> pd.DataFrame:
    """The bare network's time over the loop's, measured turn by turn, as the table has it."""
    times = {"loop": 1.0, "bare network": table["ratio"]}
    parts = [table.assign(form=form, metric="seconds", value=value) for form, value in times.items()]
    return pd.concat(parts)[["case", "device", "form", "metric", "value"]]


def _tail(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(case=table["dataset"], metric="seconds", value=table["times_the_tail"])


def _workflow(table: pd.DataFrame) -> pd.DataFrame:
    """Executions whose runs are in the cache."""
    kind = table["case"].str.partition(", runs in the cache")
    cached = table.assign(form=kind[0], case="runs in the cache", metric="seconds", value=table["cpu_seconds"])
    return cached[kind[1] != ""]


def _metrics(table: pd.DataFrame) -> pd.DataFrame:
    """With the kind of classes: twelve large ones are another load than many small ones, and no further size of it."""
    return table.assign(classes=table["case"].str.extract(r"( in \d+)$", expand=False).fillna(""))


FIELDS = {"NormalizedSoftmax": "MFCont", "matmul": "MFCWMS", "dense": "MFCWMS", "Cont": "MFCont", "CWMS": "MFCWMS"}
LOSSES: dict[str, Benchmark] = {
    "pfml": Benchmark("PFML", size=("classes", "classes with 2 proxies each")),
    "nivmf": Benchmark("EL-nivMF", long=lambda table: table.rename(columns={"size": "case", "implementation": "form"})),
    "mean_field": Benchmark("Mean fields", FIELDS, ("batch", "images in one batch")),
    "k_center": Benchmark("CCP's k-center"),
    "plm": Benchmark("PLM's pieces", size=("points", "points")),
}
OTHERS: dict[str, Benchmark] = {
    "metrics": Benchmark(
        "Metrics",
        {"matmul": "product", "PML": "product", "PML deep": "default"},
        ("size", "images"),
        ("case",),
        _metrics,
    ),
    "retrieval": Benchmark("Ranking"),
    "imports": Benchmark("Import", long=lambda table: table.assign(case=table["modules"].map("{} modules".format))),
    "loop": Benchmark("Training loop", {"*": "loop"}, long=_loop),
    "tail": Benchmark("Trained tail", {"*": "tail"}, long=_tail),
    "workflow": Benchmark("Workflow", {"papermill by hand": "workflow"}, long=_workflow),
}
BENCHMARKS = LOSSES | OTHERS
NO_COSTS = ("regimes_", "planning")  # so tables begin that compare scores and not costs


def folder() -> Path:
    return repository_root() / "results" / "benchmarks"


def table_of(name: str) -> pd.DataFrame:
    """A table in its long form; empty where it was not made. Its values are of one machine, turn by turn."""
    path = folder() / f"{name}.csv"
    if not path.exists():
        return pd.DataFrame(columns=["case", "form", "metric", "value"])
    return BENCHMARKS[name].long(pd.read_csv(path, keep_default_na=False))


# --- against peers ----------------------------------------------------------------------------------------------------


def ratios(names: Sequence[str] = tuple(BENCHMARKS)) -> pd.DataFrame:
    """What a peer takes over what ours takes, both of one run: columns benchmark, label, kind ("time" or "memory"),
    device, form (the peer) and ratio."""
    pairs = []
    for name in names:
        benchmark, table = BENCHMARKS[name], table_of(name)
        of_run = [
            column for column in ("case", "turns", "device", benchmark.size and benchmark.size[0]) if column in table
        ]
        for key, rows in table.groupby([*of_run, "metric"], sort=False):
            values = dict(zip(rows["form"], rows["value"]))
            for form, value in values.items():
                ours = benchmark.peers.get(form, benchmark.peers.get("*"))
                if form != ours and ours in values and not (name == "pfml" and form == "resnet50"):
                    case = (
                        str(key[0]) if benchmark.size is None or name != "mean_field" else f"{key[0]}, B = {key[-2]:,}"
                    )
                    kind = {"seconds": "time", "megabytes": "memory"}[key[-1]]
                    device = str(rows["device"].iloc[0]) if "device" in rows else "cpu"
                    on = "" if device.lower().startswith("cpu") else f", {device}"
                    label = f"{benchmark.title}, {case}{on}: {form} / {ours}"
                    pairs.append(
                        (benchmark.title, label.replace(" / product", ""), kind, device, form, value / values[ours])
                    )
    return pd.DataFrame(pairs, columns=["benchmark", "label", "kind", "device", "form", "ratio"])


def ratio_figure(names: Sequence[str]) -> Figure:
    return comparisons.ratios(ratios(names), "a peer over ours, within one run")


# --- growth -----------------------------------------------------------------------------------------------------------


def series(name: str) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """{metric: {form: (sizes, values)}} of a table with a size, of forms measured at POINTS sizes that are alike in all
    else."""
    benchmark, table = BENCHMARKS[name], table_of(name)
    if benchmark.size is None or table.empty:
        return {}
    size = benchmark.size[0]
    alike = [column for column in table if column not in (*benchmark.unlike, size, "value")]
    curves: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for _, rows in table.groupby(alike, sort=False):
        rows = rows.sort_values(size)
        if rows[size].nunique() >= POINTS:
            form, metric = rows[["form", "metric"]].iloc[0]
            curves.setdefault(metric, {})[form] = (rows[size].to_numpy(float), rows["value"].to_numpy(float))
    return curves


def growth_figure() -> Figure:
    """How time and memory grow, a panel per benchmark and measure."""
    charts = [
        (BENCHMARKS[name].title, BENCHMARKS[name].size[1], UNITS[metric], forms)
        for name in BENCHMARKS
        for metric, forms in series(name).items()
    ]
    return comparisons.growth(charts, names=papers.names())


def exponents() -> pd.DataFrame:
    """The fitted powers: a row per benchmark, measure and form with the slope of the logarithms, its 95 % t interval,
    how many sizes it has, and their range."""
    from scipy import stats

    rows = []
    for name, benchmark in BENCHMARKS.items():
        for metric, forms in series(name).items():
            for form, (sizes, values) in forms.items():
                fit = stats.linregress(np.log(sizes), np.log(values))
                half = stats.t.ppf(0.975, len(sizes) - 2) * fit.stderr
                extent = f"{sizes.min():,.0f} to {sizes.max():,.0f} {benchmark.size[1]}"
                interval = (fit.slope, fit.slope - half, fit.slope + half)
                rows.append((benchmark.title, UNITS[metric], form, *interval, len(sizes), extent))
    columns = ["benchmark", "what", "form", "exponent", "95 % from", "to", "sizes", "over"]
    return pd.DataFrame(rows, columns=columns).round(2)


# --- what is read -----------------------------------------------------------------------------------------------------


def absent() -> list[str]:
    """Benchmarks that results/ has no table of, in words."""
    return [
        f"{benchmark.title}: not run (`{name}.csv`)" for name, benchmark in BENCHMARKS.items() if table_of(name).empty
    ]


def unread() -> list[str]:
    """Tables of results/benchmarks of costs that no Benchmark reads."""
    there = sorted(path.stem for path in folder().glob("*.csv"))
    return [name for name in there if name not in BENCHMARKS and not name.startswith(NO_COSTS)]


def check() -> None:
    """Print whether every table of results/benchmarks is read; the sentence is the regression test."""
    left = unread()
    print(f"every benchmark of results/benchmarks is read here: {f'no, not {left}' if left else 'yes'}")


Performance = Study("93_performance", PerformanceParams, saves=False)
