"""Tables in files: one CSV per notebook and profile, its costs and a picture beside it, and the record of all three.

A CSV holds only what is deterministic on one machine; seconds and bytes go to `<notebook>.cost.csv`. Files are replaced
atomically and only after every row is valid. `<stem>.json` is the record: what made a table, the sha256 of each of its
files, and its own. Nothing counts as saved that this record does not confirm.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments import variables
from experiments.analysis import results
from experiments.analysis.tables import COLUMNS, IDENTITY
from experiments.datasets.manifests import is_own
from experiments.files import atomic_write, read_signed, repository_root, sha256, signed, write_text
from experiments.training.records import SUM

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = (".csv", ".cost.csv", ".png")  # of a table, beside its record
SUMS = "files"  # the entry of the record that has the sum of each part; it is signed besides
EXECUTIONS = "executions.json"  # of a build folder, what the workflow was asked for: no table's
PROFILES = ("paper", "small", "quick")  # those that carry more come first
OWN = "own"  # in results/, what readers' own images or losses gave; an entry of the record of a table of such a loss
MADE_BY = TRAINED_BY, SEARCHES, LINES = "trained_by", "searches", "lines"  # of a table's record, see `made_by`


def output_folder(profile: str) -> Path:
    """DMLREPRO_RESULTS (the workflow's build folder) or results/, of a profile."""
    return repository_root() / (variables.folder("DMLREPRO_RESULTS") or "results") / profile


def table_path(params: Any) -> Path:
    """The CSV of a notebook under its parameters. What a reader's own images gave, or a loss of their own (`own` of the
    parameters), goes to results/own/, which git ignores, unless DMLREPRO_RESULTS says where."""
    folder = output_folder(params.profile)
    theirs = is_own(params.as_dict().get("dataset", "")) or getattr(params, "own", False)
    if theirs and variables.folder("DMLREPRO_RESULTS") is None:
        folder = folder.parent / OWN / folder.name
    return folder / f"{params.stem}.csv"


def table_paths(folder: Path) -> list[Path]:
    """The CSV of every table of which a folder has any file, sorted: the CSV itself may be the one that is missing."""
    ends = sorted((*PARTS, ".json"), key=len, reverse=True)
    files = [path.name for path in folder.glob("*") if path.name != EXECUTIONS]
    stems = {name.removesuffix(end) for name in files if (end := next(filter(name.endswith, ends), ""))}
    return [folder / f"{stem}.csv" for stem in sorted(stems)]


def save(table: pd.DataFrame, params: Any, *, runs: Sequence = (), cost: pd.DataFrame | None = None) -> Path:
    """Write `<stem>.csv`, with costs `<stem>.cost.csv`, and the record of both, `<stem>.json`; returns the CSV's path.

    When neither numbers nor parameters did change, the provenance of the run that first made them stays. runs: the
    finished runs of the table, for its provenance and, without `cost`, its costs.
    """
    results.validate(table)
    if cost is None and runs:
        cost = results.costs(runs)
    path = table_path(params)
    text = to_csv(table)
    made = {} if damage(path) else record(path)
    same_parameters = made.get("parameters") == json.loads(json.dumps(params.as_dict()))
    if not (same_parameters and path.read_text(encoding="utf8") == text):
        made = provenance(params, runs)
        write_text(path, text)
        for part in PARTS[1:]:  # costs and a picture of other numbers
            path.with_suffix(part).unlink(missing_ok=True)
    # equal numbers may rest on others
    made = {name: value for name, value in made.items() if name not in MADE_BY} | made_by(params, runs)
    if cost is not None:
        write_text(path.with_suffix(".cost.csv"), cost.to_csv(index=False, float_format="%.7g", lineterminator="\n"))
    seal(path, made)
    return path


def save_picture(figure: "Figure", params: Any) -> None:
    """Write `<stem>.png` beside the table that `save` has written, but for quick: the committed page, an execution of
    that profile, shows the pictures of others. ValueError: no table was saved there."""
    if params.profile != "quick":
        path = table_path(params)
        made = record(path)
        with atomic_write(path.with_suffix(".png")) as temporary:
            figure.savefig(temporary, format="png", bbox_inches="tight")
        seal(path, made)


def to_csv(table: pd.DataFrame) -> str:
    ordered = table.sort_values(IDENTITY, kind="stable").astype({"value": float})  # of objects no digits are rounded
    return ordered.to_csv(index=False, float_format="%.6f", lineterminator="\n")


def read(path: Path | str) -> pd.DataFrame:
    """A results CSV; ValueError: a row is no result, or a file of the table is not as it was saved; names the file."""
    record(Path(path))
    text_columns = {name: str for name in COLUMNS if name not in ("dim", "seed", "step", "value")}
    try:
        table = pd.read_csv(path, dtype=text_columns, keep_default_na=False)
        results.validate(table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return table


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


def provenance(params: Any, finished: Sequence = ()) -> dict[str, Any]:
    """What made a table: parameters, commit, package versions, device. `runs` counts the finished runs by what made
    them, as another machine. `device` and `rounding` are those of the runs, of this process without any."""
    from experiments.training import keys, sources

    made = [json.dumps(run.made, sort_keys=True) for run in {run.key: run for run in finished}.values()]
    groups = [{"count": made.count(text)} | json.loads(text) for text in sorted(set(made))]
    return {
        "notebook": params.notebook,
        "parameters": params.as_dict(),
        **({OWN: True} if getattr(params, "own", False) else {}),
        **sources.checkout(),
        "versions": sources.versions(),
        "device": " + ".join(sorted({group["device"] for group in groups})) or keys.device_name(),
        "rounding": " + ".join(sorted({group["rounding"] for group in groups})) or keys.rounding(),
        "runs": groups,
    }


def made_by(params: Any, finished: Sequence) -> dict[str, Any]:
    """What the finished runs of a table rest on: `searches`, where committed ones chose settings of its methods: by
    method the file, how many trials it has, and its sha256; `trained_by`, [loss, algorithm, what is trained, version of
    the code] once each, by which `stored` finds what is outdated; `lines`, the start of the sha256 of each line."""
    methods, searches = {run.spec.method for run in finished}, {}
    for method, search in params.searches().items() if methods else ():
        if method in methods:
            file, trials = params.search_name(search["method"]), len(search["trials"])
            searches[method] = {"file": file, "trials": trials, "sha256": search["sha256"]}
    lines = {run.line[SUM][:16]: run for run in finished if run.line}
    trained_by = {
        (run.spec.loss or "", run.spec.algorithm, run.spec.train_from or "", run.version) for run in lines.values()
    }
    entries = {SEARCHES: searches, TRAINED_BY: [list(code) for code in sorted(trained_by)], LINES: sorted(lines)}
    return {name: entry for name, entry in entries.items() if entry}
