"""Whether a table, with all that lies beside it, is still what was saved.

`<stem>.json` holds what made a table, the sha256 of each of its files, and its own. Nothing counts as saved that this
record does not confirm. Nothing heavy is imported here, because `make results` asks at its start.
"""

import json
from pathlib import Path

from experiments.files import read_signed, sha256, signed, write_text

PARTS = (".csv", ".cost.csv", ".png")  # of a table, beside its record
EXECUTIONS = "executions.json"  # of a build folder, what the workflow was asked for: no table's
SUMS = "files"  # the entry of the record that has the sum of each part; it is signed besides


def table_paths(folder: Path) -> list[Path]:
    """The CSV of every table of which a folder has any file, sorted: the CSV itself may be the one that is missing."""
    ends = sorted((*PARTS, ".json"), key=len, reverse=True)
    files = [path.name for path in folder.glob("*") if path.name != EXECUTIONS]
    stems = {name.removesuffix(end) for name in files if (end := next(filter(name.endswith, ends), ""))}
    return [folder / f"{stem}.csv" for stem in sorted(stems)]


def seal(table: Path, made: dict) -> None:
    """Write the record of a table, what made it with the sums of its parts as they lie there now."""
    sums = {part: sha256(table.with_suffix(part)) for part in PARTS if table.with_suffix(part).exists()}
    write_text(table.with_suffix(".json"), signed(made | {SUMS: sums}))


def record(table: Path) -> dict:
    """What made a table, by the record beside it; ValueError names a file that is not the one that was saved."""
    if wrong := damage(table):
        again = "make it again (`make results`, or execute its notebook with the same parameters)"
        raise ValueError(f"{wrong}; {again}, or take it from git")
    return json.loads(table.with_suffix(".json").read_text(encoding="utf8"))


def damage(table: Path) -> str:
    """Which file of a table is not as it was saved, and what of it; "" where all are."""
    path = table.with_suffix(".json")
    try:
        sums = dict(read_signed(path, "it was edited or written in part")[SUMS])
    except FileNotFoundError:
        return f"{path} is missing"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"{path} is no record of a table ({error})"
    for part in PARTS:
        file = table.with_suffix(part)
        if not file.exists() and (part in sums or part == PARTS[0]):
            return f"{file} is missing"
        if file.exists() and sums.get(part) != sha256(file):
            return f"{file} is not what was saved: its sha256 is not the one in {path.name}"
    return ""
