"""The regression check of all notebooks, see analysis/goldens.py: new values, what moved, what executions took."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from experiments.analysis import goldens, saving
from experiments.analysis.tables import COLUMNS
from experiments.files import read_json, write_text
from experiments.report import catalogue
from experiments.study import Study
from experiments.training import runs


def accept(names: Iterable[str]) -> None:
    """Make `tests/golden/<notebook>.csv` of those notebooks that save a table, from results/quick; print what moved.
    ValueError: a table is missing or not as it was saved; then no golden value is replaced."""
    params_of = {name: quick(study) for name in names if (study := catalogue.find(name)).saves}
    paths = {name: saving.output_folder("quick") / f"{params.notebook}.csv" for name, params in params_of.items()}
    tables = {name: saving.read(path) for name, path in paths.items()}
    for name, params in params_of.items():
        study = catalogue.find(name)
        new = goldens.means(tables[name])
        # methods whose algorithm ends a problem early and begins the next
        early = {spec.method for spec in study.specs_untrained(params) if spec.algorithm == "chance_constrained"}
        new["tolerance"] = goldens.tolerances(new, goldens.deviations(repeats(study), early))
        new = new.drop(columns="seeds")
        path = goldens.path_of(params)
        old = goldens.read(path) if path.exists() else new.head(0)
        joined = old.merge(new, on=goldens.IDENTITY, how="outer", suffixes=("_old", "_new"))
        moved = joined[~((joined["value_old"] - joined["value_new"]).abs() < 1e-6)]
        print(f"{params.notebook}: {len(moved)} of {len(joined)} golden values moved")
        if len(moved):
            print(moved.to_string(index=False))
        write_text(path, new.to_csv(index=False, float_format="%.6f", lineterminator="\n"))


def drift(folder: Path, names: Iterable[str]) -> pd.DataFrame:
    """The golden values of notebooks, those that have any, beside the tables of a folder, see `goldens.beside`: a
    missing table counts as if all its values were outside. FileNotFoundError: there is no such folder."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}; give one that holds tables, as build/quick after `make results`")
    parts = [pd.DataFrame(columns=[*goldens.IDENTITY, "golden", "tolerance", "new", "moved"], dtype=float)]
    for name in names:
        if (golden := goldens.path_of(quick(catalogue.find(name)))).exists():
            path = folder / golden.name
            table = saving.read(path) if path.exists() else pd.DataFrame(columns=COLUMNS)
            parts.append(goldens.beside(table, goldens.read(golden)).assign(notebook=golden.stem))
    return pd.concat(parts[1:] or parts, ignore_index=True)


def summary(folder: Path) -> pd.DataFrame:
    """What the executed notebooks of a build folder took, and the rows of their tables; FileNotFoundError: none."""
    rows = []
    for path in sorted(folder.glob("*.ipynb")):
        seconds = read_json(path, "remove it and `make results`")["metadata"]["papermill"]["duration"]
        table = path.with_name(f"{path.stem.replace('+', ',')}.csv")  # workflow/grid.py names executions
        rows.append((path.stem, round(seconds, 1), len(pd.read_csv(table)) if table.exists() else 0))
    if not rows:
        raise FileNotFoundError(f"no executed notebooks in {folder}; make results")
    return pd.DataFrame(rows, columns=["notebook", "seconds", "rows"])


def quick(study: Study):
    return study.configured({"profile": "quick"})


def repeats(study: Study) -> list[pd.DataFrame]:
    """The golden values of the first seed alone, once for each repeat; empty for a notebook that trains nothing."""
    params = quick(study)
    specs = [spec for spec in study.specs(params) if spec.seed == 0]
    if all(spec.loss is None for spec in specs):
        return []
    numbers = range(goldens.REPEATS + 1)
    numbered = [[spec.replace(replica=number * (spec.loss is not None)) for spec in specs] for number in numbers]
    runs.run_all([spec for some in numbered for spec in some])  # side by side
    return [goldens.means(study.table(runs.run_all(some), params)) for some in numbered]
