"""Moving the tables of a build folder to results/, and how they differ from those that are committed there."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.analysis import goldens
from experiments.analysis.provenance import PARTS, damage, record, table_paths
from experiments.analysis.results import in_percent, without_outcomes
from experiments.analysis.saving import MADE_BY, OWN, read
from experiments.analysis.tables import IDENTITY
from experiments.datasets.manifests import is_own
from experiments.files import atomic_write


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
    paths = [path for path in table_paths(build) if not notebooks or path.stem.partition("--")[0] in notebooks]
    if not paths:
        raise FileNotFoundError(f"no tables{' of ' * bool(notebooks)}{', '.join(notebooks)} in {build}; run them first")
    tables = {path: read(path) for path in paths}
    moved = 0
    for path, table in tables.items():
        made = record(path)
        own = made.get(OWN) or is_own(made.get("parameters", {}).get("dataset", ""))
        new = (target.parent / OWN / target.name if own else target) / path.name
        if not damage(new):
            there = record(new)
            # by the same code and searches; costs differ in every run
            same = [made.get(name) for name in MADE_BY] == [there.get(name) for name in MADE_BY]
            # records are equal where all files are: they hold the sums of the others
            if made == there if everything else same and _repeats(new, table):
                continue
        for part in (*PARTS, ".json"):  # the record goes last: without it nothing counts as saved
            if path.with_suffix(part).exists():
                with atomic_write(new.with_suffix(part)) as temporary:
                    temporary.write_bytes(path.with_suffix(part).read_bytes())
            else:
                new.with_suffix(part).unlink(missing_ok=True)
        moved += 1
    return len(tables), moved


def _repeats(committed: Path, table: pd.DataFrame) -> bool:
    """Whether a table says what a committed one says: the same rows with the same numbers, or with such as another
    processor may make of them, which is all golden values of both within their tolerance."""
    there = read(committed)
    joined, beyond = _side_by_side(there, table), _beyond(committed, there, table)
    return bool(joined["_merge"].eq("both").all()) and (_same_numbers(joined) or beyond == 0)


def difference(build: Path, target: Path) -> str:
    """One line on how the numbers of a build folder differ from those in `target`, in points of metrics in percent."""
    paths = [path for path in table_paths(build) if (target / path.name).exists()]
    parts = [_side_by_side(read(target / path.name), read(path)) for path in paths]
    if not parts:
        return ""
    joined = pd.concat(parts)
    apart = (joined["value_build"] - joined["value"]).abs()
    if not (differing := int(((apart > 0) | (joined["_merge"] != "both")).sum())):
        return ""
    largest = max(apart[joined["metric"].map(in_percent)].dropna(), default=0.0)
    return f"{differing} of {len(joined)} numbers differ from the committed ones, the largest by {largest:.2f}"


def outdated(build: Path, target: Path) -> dict[str, str]:
    """The committed tables in `target` that are not what the present code makes of them in a build folder, and why. Any
    other number on a processor that rounds alike is a change of the code, elsewhere one beyond a golden tolerance."""
    known = {path.name for path in table_paths(target)}
    reasons = {path: _why_outdated(target / path.name, path) for path in table_paths(build) if path.name in known}
    return {path.stem: why for path, why in reasons.items() if why}


def _why_outdated(committed: Path, built: Path) -> str:
    if wrong := damage(committed):
        return wrong
    there, table = read(committed), read(built)
    if beyond := _beyond(committed, there, table):
        return f"{beyond} golden values are beyond their tolerance"
    joined = _side_by_side(there, table)
    if alone := int((joined["_merge"] != "both").sum()):
        return f"{alone} rows are in one of the two only"
    if _same_numbers(joined):
        return ""
    was, now = (record(path) for path in (committed, built))
    shared = was["parameters"].keys() & now["parameters"].keys()
    changed = sorted(name for name in shared if was["parameters"][name] != now["parameters"][name])
    if changed:
        return f"it was made with other parameters ({', '.join(changed)})"
    if was["rounding"] == now["rounding"]:
        apart = (joined["value_build"] - joined["value"]).abs()
        return f"{int((apart > 0).sum())} of {len(apart)} numbers differ, on a processor that rounds alike"
    return ""


def _beyond(committed: Path, *versions: pd.DataFrame) -> int | None:
    """How many golden values of a table are beyond their tolerance, in the worse of its versions; None for a table
    without golden values, as that of another profile."""
    path = goldens.folder() / committed.name
    if not path.exists() or set(versions[-1]["profile"]) != {"quick"}:
        return None
    values = goldens.read(path)
    return max(len(goldens.missed(version, values)) for version in versions)


def _side_by_side(committed: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    one, other = map(without_outcomes, (committed, table))
    return one.merge(other, on=IDENTITY, how="outer", suffixes=("", "_build"), indicator=True)


def _same_numbers(joined: pd.DataFrame) -> bool:
    """Whether they agree but for the last digit that is written, which the number of threads may change."""
    return bool(np.isclose(joined["value_build"], joined["value"], rtol=1e-6, atol=1.5e-6).all())
