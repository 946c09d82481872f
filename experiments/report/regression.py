"""Tables of a build folder and committed ones: what moved, publishing, new golden values, see analysis/goldens.py."""

from collections.abc import Collection, Iterable
from pathlib import Path

import pandas as pd

from experiments.analysis import goldens, saving
from experiments.analysis.results import without_outcomes
from experiments.analysis.saving import MADE_BY, OWN, PARTS, damage, read, record, table_paths
from experiments.analysis.tables import IDENTITY
from experiments.datasets.manifests import is_own
from experiments.files import atomic_write, read_json, write_text
from experiments.params import Params
from experiments.report import catalogue
from experiments.study import Study
from experiments.training import runs


def publish(build: Path, target: Path, notebooks: Collection[str] = (), *, everything: bool = False) -> tuple[int, int]:
    """Move the tables of a build folder to `target`; returns how many there are, and how many are new or changed.

    Every table is validated before the first one is moved. One that repeats what is there leaves it as it is, with the
    provenance of the run that first made it; `everything` moves it all the same, so that tables, costs and executed
    notebooks are of one execution. A damaged one is replaced. Tables of a reader's own images, or of a loss of their
    own, go to the folder `own` beside `target`. notebooks: only the tables of these; none: all.

    Raises:
        FileNotFoundError: the folder has no tables of these notebooks.
        ValueError: a table is not valid or was edited; names the file and the first bad row.
    """
    asked = {*_asked(build).values()}  # not what an earlier build left there
    paths = [path for path in table_paths(build) if not asked or path.stem in asked]
    paths = [path for path in paths if not notebooks or path.stem.partition("--")[0] in notebooks]
    if not paths:
        raise FileNotFoundError(f"no tables{' of ' * bool(notebooks)}{', '.join(notebooks)} in {build}; run them first")
    for path in paths:
        read(path)
    moved = 0
    for path in paths:
        made = record(path)
        own = made.get(OWN) or is_own(made.get("parameters", {}).get("dataset", ""))
        new = (target.parent / OWN / target.name if own else target) / path.name
        if not damage(new):
            there = record(new)
            # by the same code and searches; costs differ in every run
            same = [made.get(name) for name in MADE_BY] == [there.get(name) for name in MADE_BY]
            # records are equal where all files are: they hold the sums of the others
            if made == there if everything else same and _repeats(new, path):
                continue
        for part in (*PARTS, ".json"):  # the record goes last: without it nothing counts as saved
            if path.with_suffix(part).exists():
                with atomic_write(new.with_suffix(part)) as temporary:
                    temporary.write_bytes(path.with_suffix(part).read_bytes())
            else:
                new.with_suffix(part).unlink(missing_ok=True)
        moved += 1
    return len(paths), moved


def _asked(build: Path) -> dict[str, str]:
    """The stems of tables by the names of the executions that the workflow was asked for; {} without a workflow."""
    if not (path := build / saving.EXECUTIONS).exists():
        return {}
    grid = read_json(path, "`make results` makes it anew")
    profile = {"profile": grid["profile"]}
    return {
        name: catalogue.find(each["notebook"]).configured(profile | each["parameters"]).stem
        for name, each in grid["executions"].items()
    }


def outdated(build: Path, target: Path) -> dict[str, str]:
    """The committed tables in `target` that are not what the present code makes of them in a build folder, and why. Any
    other number where the rounding is the same is a change of the code, elsewhere one beyond a golden tolerance."""
    known = {path.name for path in table_paths(target)}
    reasons = {path: _why_outdated(target / path.name, path) for path in table_paths(build) if path.name in known}
    return {path.stem: why for path, why in reasons.items() if why}


def _why_outdated(committed: Path, built: Path) -> str:
    if wrong := damage(committed):
        return wrong
    if beyond := _beyond(committed, built):
        return f"{beyond} golden values are beyond their tolerance"
    joined = _side_by_side(committed, built)
    if alone := int(joined["alone"].sum()):
        return f"{alone} rows are in one of the two only"
    if _same_numbers(joined):
        return ""
    was, now = (record(path) for path in (committed, built))
    shared = was["parameters"].keys() & now["parameters"].keys()
    changed = sorted(name for name in shared if was["parameters"][name] != now["parameters"][name])
    if changed:
        return f"it was made with other parameters ({', '.join(changed)})"
    differing = f"{(joined['apart'] > 0).sum()} of {len(joined)} numbers differ, on a processor with the same rounding"
    return differing if was["rounding"] == now["rounding"] else ""


def _repeats(committed: Path, built: Path) -> bool:
    """Whether a table says what a committed one says: the same rows with the same numbers, or with such as another
    processor may make of them, which is all golden values of both within their tolerance."""
    joined = _side_by_side(committed, built)
    return not joined["alone"].any() and (_same_numbers(joined) or _beyond(committed, built) == 0)


def _beyond(committed: Path, built: Path) -> int | None:
    """How many golden values are beyond their tolerance, in the worse of two tables; None for one without golden
    values, as that of another profile."""
    path, versions = goldens.folder() / committed.name, [read(committed), read(built)]
    if not path.exists() or set(versions[1]["profile"]) != {"quick"}:
        return None
    return max(len(goldens.missed(version, goldens.read(path))) for version in versions)


def _side_by_side(committed: Path, built: Path) -> pd.DataFrame:
    """The rows of two tables: value and value_build, how far `apart` they are, and which are `alone`."""
    one, other = (without_outcomes(read(path)) for path in (committed, built))
    joined = one.merge(other, on=IDENTITY, how="outer", suffixes=("", "_build"), indicator=True)
    return joined.assign(apart=(joined["value_build"] - joined["value"]).abs(), alone=joined["_merge"] != "both")


def _same_numbers(joined: pd.DataFrame) -> bool:
    """Whether they agree but for the last digit that is written, which the number of threads may change."""
    return bool((joined["apart"] <= 1.5e-6 + 1e-6 * joined["value"].abs()).all())


def accept(names: Iterable[str]) -> None:
    """Make `tests/golden/<notebook>.csv` of those notebooks that save a table, from results/quick; print what moved.
    ValueError: a table is missing or not as it was saved; then no golden value is replaced."""
    studies = [study for name in names if (study := catalogue.find(name)).saves]
    tables = [read(saving.output_folder("quick") / f"{study.name}.csv") for study in studies]
    for study, table in zip(studies, tables):
        params, new = study.configured({"profile": "quick"}), goldens.means(table)
        # methods whose algorithm ends a problem early and begins the next
        early = {spec.method for spec in study.specs_untrained(params) if spec.algorithm == "chance_constrained"}
        new["tolerance"] = goldens.tolerances(new, goldens.deviations(repeats(study, params), early))
        new = new.drop(columns="seeds")
        path = goldens.folder() / f"{study.name}.csv"
        old = goldens.read(path) if path.exists() else new.head(0)
        joined = old.merge(new, on=goldens.IDENTITY, how="outer", suffixes=("_old", "_new"))
        moved = joined[~((joined["value_old"] - joined["value_new"]).abs() < 1e-6)]
        print(f"{study.name}: {len(moved)} of {len(joined)} golden values moved")
        if len(moved):
            print(moved.to_string(index=False))
        write_text(path, new.to_csv(index=False, float_format="%.6f", lineterminator="\n"))


def summary(folder: Path) -> pd.DataFrame:
    """What the executed notebooks of a build folder took, and the rows of their tables; FileNotFoundError: none."""
    if not (paths := sorted(folder.glob("*.ipynb"))):
        raise FileNotFoundError(f"no executed notebooks in {folder}; make results")
    rows, stems = [], _asked(folder)
    for path in paths:
        seconds = read_json(path, "remove it and `make results`")["metadata"]["papermill"]["duration"]
        table = path.with_name(f"{stems.get(path.stem, path.stem)}.csv")
        rows.append((path.stem, round(seconds, 1), len(pd.read_csv(table)) if table.exists() else 0))
    return pd.DataFrame(rows, columns=["notebook", "seconds", "rows"])


def repeats(study: Study, params: Params) -> list[pd.DataFrame]:
    """The golden values of the first seed alone, once for each repeat; empty for a notebook that trains nothing."""
    specs = [spec for spec in study.specs(params) if spec.seed == 0]
    if all(spec.loss is None for spec in specs):
        return []
    numbers = range(goldens.REPEATS + 1)
    numbered = [[spec.replace(replica=number * (spec.loss is not None)) for spec in specs] for number in numbers]
    runs.run_all([spec for some in numbered for spec in some])  # side by side
    return [goldens.means(study.table(runs.run_all(some), params)) for some in numbered]
