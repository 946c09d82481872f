"""Notebook 93: the committed benchmarks as figures: how cost grows, and what it is against peers. Scripts in
benchmarks/ make the tables, and the workflow executes this notebook after publishing, like that of the ledger."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments import papers
from experiments.figures import comparisons
from experiments.files import repository_root
from experiments.params import Params
from experiments.study import Study


class Benchmark(NamedTuple):
    """How one table of results/benchmarks is read."""

    title: str  # what is measured
    peers: Mapping[str, str] = {"*": "product"}  # {form: that of ours that it is compared with}; "*": all others
    size: str = ""  # the column along which cost grows
    axis: str = ""  # its title


FIELDS = {"NormalizedSoftmax": "MFCont", "matmul": "MFCWMS", "dense": "MFCWMS", "Cont": "MFCont", "CWMS": "MFCWMS"}
AS_DEEP = {"matmul": "product", "PML": "product", "PML deep": "deep"}
LOSSES = {
    "pfml": Benchmark("PFML", {"*": "product", "resnet50": "resnet50"}, "classes", "classes with 2 proxies each"),
    "nivmf": Benchmark("EL-nivMF"),
    "mean_field": Benchmark("Mean fields", FIELDS, "batch", "images in one batch"),
    "k_center": Benchmark("CCP's k-center"),
    "plm": Benchmark("PLM's pieces", size="points", axis="points"),
}
OTHERS = {
    "metrics": Benchmark("Metrics", AS_DEEP, "size", "images"),
    "retrieval": Benchmark("Ranking"),
    "loop": Benchmark("Training loop", {"*": "loop"}),
    "tail": Benchmark("Trained tail", {"*": "tail"}),
}
BENCHMARKS = LOSSES | OTHERS


def folder() -> Path:
    return repository_root() / "results" / "benchmarks"


def table_of(name: str) -> pd.DataFrame:
    """A table with columns case, form, metric and value; empty where it was not made. Its values are of one machine,
    turn by turn."""
    path = folder() / f"{name}.csv"
    if not path.exists():
        return pd.DataFrame(columns=["case", "form", "metric", "value"])
    table = pd.read_csv(path, keep_default_na=False)
    if name == "nivmf":
        return table.rename(columns={"size": "case", "implementation": "form"})
    if name == "metrics":  # twelve large classes are another load than many small ones, and no further size of it
        return table.assign(classes=table["case"].str.extract(r"( in \d+)$", expand=False).fillna(""))
    if name == "tail":
        return table.assign(case=table["dataset"], metric="seconds", value=table["times_the_tail"])
    if name == "loop":  # the bare network's time over the loop's, measured turn by turn, as the table has it
        times = {"loop": 1.0, "bare network": table["ratio"]}
        return pd.concat(table.assign(form=form, metric="seconds", value=value) for form, value in times.items())
    return table


def ratios(names: Iterable[str]) -> pd.DataFrame:
    """What a peer takes over what ours takes, both of one run: columns time and, where it was measured, memory."""
    rows: dict[str, dict[str, float]] = {}
    for name in names:
        benchmark, table = BENCHMARKS[name], table_of(name)
        of_run = [column for column in ("case", "turns", "device", benchmark.size) if column in table]
        for (case, *_, metric), some in table.groupby([*of_run, "metric"], sort=False):
            values, first = dict(zip(some["form"], some["value"])), some.iloc[0]
            device = str(first.get("device", "cpu"))
            where = f"{benchmark.title}, {case}" + (f", B = {first['batch']:,}" if name == "mean_field" else "")
            where += "" if device.lower().startswith("cpu") else f", {device}"
            for form, value in values.items():
                ours = benchmark.peers.get(form, benchmark.peers.get("*"))
                if form != ours and ours in values:
                    label = f"{where}: {form}" + (f" / {ours}" if ours != "product" else "")
                    measure = {"seconds": "time", "megabytes": "memory"}[metric]
                    rows.setdefault(label, {})[measure] = float(f"{value / values[ours]:.3g}")
    return pd.DataFrame.from_dict(rows, orient="index").fillna("")


def series(name: str) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """{metric: {form: (sizes, values)}} of a table with a size, of forms measured at three sizes, at least, that are
    alike in all else."""
    size, table = BENCHMARKS[name].size, table_of(name)
    alike = [column for column in table if column not in ("case", "members", size, "value")]
    curves: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for _, rows in table.sort_values(size, kind="stable").groupby(alike, sort=False) if size in table else ():
        if rows[size].nunique() >= 3:
            form, metric = rows[["form", "metric"]].iloc[0]
            curves.setdefault(metric, {})[form] = (rows[size].to_numpy(float), rows["value"].to_numpy(float))
    return curves


def growth_figure() -> Figure:
    """How time and memory grow, a panel per benchmark and measure; the fitted powers stand in the legends."""
    units, charts = {"seconds": "time (s)", "megabytes": "peak memory (MB)"}, []
    for name, (title, _, _, axis) in BENCHMARKS.items():
        charts += [(title, axis, units[metric], forms) for metric, forms in series(name).items()]
    return comparisons.growth(charts, names=papers.names())


def check() -> None:
    """Print whether every script of benchmarks/ has its table, and that is read; the sentence is the regression
    test."""
    scripts = {path.stem for path in (repository_root() / "benchmarks").glob("*.py")} - {"harness"}
    left = sorted(name for name in scripts | {*BENCHMARKS} if name not in BENCHMARKS or table_of(name).empty)
    print(f"every benchmark of results/benchmarks is read here: {f'no, not {left}' if left else 'yes'}")


Performance = Study("93_performance", Params, saves=False)  # whatever its parameters, it reads the same tables
