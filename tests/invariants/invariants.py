"""What no refactoring may change, computed from results/ and the code, and compared with the dumps in expected/.

    python tests/invariants/invariants.py            # compare; exits 1 where something differs
    python tests/invariants/invariants.py --write    # write the dumps anew, after a change that was meant

I1  each table of results/small is rebuilt from the store with the parameters in its .json, and has the same bytes
I2  the verdict of each claim in each context
I3  the present code takes every run and every measurement from the store that it took before; nothing is trained
I4  the golden values of profile quick
I5  the RunSpecs of all studies, profiles and data sets
"""

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple
from unittest import mock

from experiments.analysis import claims, goldens, results, saving, tables
from experiments.files import repository_root
from experiments.profiles import RECIPES
from experiments.report import catalogue, verdicts
from experiments.study import Execution, Study
from experiments.training import checking, keys, loop, records, runs, scheduling
from experiments.training.spec import LABELS

EXPECTED = Path(__file__).parent / "expected"
ROUNDED = 1e-3  # of a synthetic value, which is computed and not trained: what another processor rounds otherwise
Rows = list[dict[str, Any]]


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def small() -> Path:
    return repository_root() / "results" / "small"


def never(*given: Any, **named: Any) -> Any:
    raise AssertionError("a run was trained or an image was loaded")


class Asked(NamedTuple):
    """The lines of the store that were asked for: names of runs, keys of measurements."""

    runs: set[str]
    measured: set[str]


@contextmanager
def nothing_trains(asked: Asked) -> Iterator[None]:
    """Training raises, and what is measured is noted. Runs without a line raise too: they would have to be trained."""
    kept = records.measured_under

    def noted(file: Path, key: str) -> Any:
        if (line := kept(file, key)) is not None:
            asked.measured.add(line["derived"])
        return line

    with (
        mock.patch.object(loop, "train", never),
        mock.patch.object(scheduling, "do_all", nothing_missing),
        mock.patch.object(records, "measured_under", noted),
    ):
        yield


@cache
def rebuilt() -> tuple[list[str], Asked]:
    """What differs in tables that are made anew from the store, in words, and the lines asked for on the way."""
    pilots, asked, differing = claims.frozen()["pilots"], Asked(set(), set()), []
    for path in saving.table_paths(small()):
        if path.stem not in pilots:
            differing += rebuilt_differences(path, asked)
    return differing, asked


def rebuilt_differences(path: Path, asked: Asked) -> list[str]:
    """The first line of a table that the store does not give; [] where the bytes are the same."""
    with nothing_trains(asked):
        now = saving.to_csv(table_of(path, asked)).splitlines()
    there = path.read_text(encoding="utf8").splitlines()
    lines = [(one, other) for one, other in zip(there, now) if one != other and not rounded(one, other)]
    if not lines and len(there) == len(now):
        return []
    return [f"{path.stem}: {len(lines)} of {len(there)} lines differ, first {lines[:1]}"]


def nothing_missing(parallel: dict, alone: dict, *_: Any) -> dict:
    if missing := parallel | alone:
        first = runs.named(next(iter(missing.values())).args[1])
        raise AssertionError(f"{len(missing)} runs have no line, the first: {first}")
    return {}


def table_of(path: Path, asked: Asked):
    """A table made anew from the store, and all that is measured for its verdicts."""
    study = catalogue.find(path.stem.partition("--")[0])
    known = study.params.defaults()  # an older version may have had others
    params = study.configured({name: v for name, v in saving.record(path)["parameters"].items() if name in known})
    assert params.stem == path.stem, f"the parameters in {path.stem}.json now name {params.stem}"
    finished = runs.run_all(study.specs(params), record=records.file_of("small", study.name))
    asked.runs.update(run.name for run in finished)
    for run in finished:  # what `Execution.run` measures before a run is on record
        Execution(study, params).measure(run)
    notebook = repository_root() / "notebooks" / f"{study.name}.ipynb"
    if "study.verdicts(table, runs)" in notebook.read_text(encoding="utf8"):
        results.hits(finished, params)
    return study.table(finished, params)


def tables_now() -> Rows:
    """I1: the sha256 of each table as it lies in results/small, and whether it is rebuilt or, of a pilot, only kept."""
    how = {True: "kept", False: "rebuilt"}
    pilots, paths = claims.frozen()["pilots"], saving.table_paths(small())
    return [{"table": path.stem, "how": how[path.stem in pilots], "sha256": sha256(path)} for path in paths]


def rounded(one: str, other: str) -> bool:
    """Whether two rows of a table are one synthetic value, rounded by two processors."""
    (*names, value), (*others, now) = (text.split(",") for text in (one, other))
    alike = names == others and names[tables.COLUMNS.index("dataset")] == tables.SYNTHETIC
    return alike and abs(float(value) - float(now)) <= ROUNDED * max(abs(float(value)), 1e-3)


def verdicts_now() -> Rows:
    """I2: every verdict that results/ allows, in the order of the ledger."""
    columns = ["claim_id", "profile", "stem", "metric", "verdict"]
    return [dict(zip(columns, row)) for row in verdicts.lines()[columns].itertuples(index=False)]


def ledger_now() -> list[str]:
    with (repository_root() / "results" / "claims.csv").open(encoding="utf8", newline="") as file:
        return [row["verdict"] for row in csv.DictReader(file)]


def store_now() -> Rows:
    """I3: by file of the store its runs and measurements, how many of them the present code takes, how many tables ask
    for, and a digest of what they are."""
    asked, rows = rebuilt()[1], []
    for file in records.files(small() / "runs"):
        lines = records.lines(file)
        names = sorted(line["run"] for line in lines if "run" in line)
        found = [line["run"] for line in lines if "run" in line and is_served(file, line)]
        measured = [line for line in lines if "derived" in line]
        taken = sorted(line["derived"] for line in measured if is_measured(file, line))
        in_tables = sorted(line["derived"] for line in measured if line["derived"] in asked.measured)
        rows.append(
            {
                "file": file.stem,
                "runs": len(names),
                "served_runs": len(found),
                "runs_of_tables": len(asked.runs & {*names}),
                "measurements": len(measured),
                "served_measurements": len(taken),
                "measurements_of_tables": len(in_tables),
                "digest": digest([names, sorted(found), taken, in_tables]),
            }
        )
    return rows


def is_served(file: Path, line: dict[str, Any]) -> bool:
    """Whether the spec of a line, read into today's RunSpec, finds this line and may rest on it."""
    name = records.name_of(keys.identity_of(checking.spec_of(line))["what"])
    found, outdated = records.find(file.parent, [name]).get(name, (None, True))
    return found is line and not outdated


def is_measured(file: Path, line: dict[str, Any]) -> bool:
    """Whether a function of today finds this line, measured on runs that are served."""
    asked = records.asked_by(line)
    if asked is None or tuple(asked[::2]) not in measurements_known():
        return False
    lines = records.of_runs(file.parent)
    measured_on = [one for name, mark in line["of"] for one in lines.get(name, ()) if records.mark(one) == mark]
    if len(measured_on) < len(line["of"]) or not all(is_served(file, one) for one in measured_on):
        return False
    served = records.measured_under(file, records.kept_under(asked, line["of"]))
    return served is not None and served["value"] == line["value"]


@cache
def measurements_known() -> set[tuple[str, int]]:
    """Name and version of every function that measures, found by its decorator."""
    catalogue.studies()  # imports them
    values = [value for module in list(sys.modules.values()) for value in list(vars(module).values())]
    return {value.measurement for value in values if type(value) is FunctionType and hasattr(value, "measurement")}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def goldens_now() -> Rows:
    """I4."""
    return [{"golden": path.stem, "sha256": sha256(path)} for path in sorted(goldens.folder().glob("*.csv"))]


def specs_of(study: Study, profile: str, dataset: str) -> list[dict[str, Any]] | str:
    """The RunSpecs of a study as plain data, labels included; "refused" where the study does not take the data set."""
    try:
        params = study.configured({"profile": profile, "dataset": dataset})
        specs = study.specs_untrained(params)
    except ValueError:
        return "refused"
    return [{name: getattr(spec, name) for name in LABELS} | spec.as_dict() for spec in specs]


def specs_now() -> Rows:
    """I5: how many RunSpecs each study has at each profile and data set, and a digest of them."""
    rows = []
    for name, study in catalogue.studies().items():
        for profile, dataset in ((profile, dataset) for profile, datasets in RECIPES.items() for dataset in datasets):
            specs = specs_of(study, profile, dataset)
            counted = ("", specs) if specs == "refused" else (len(specs), digest(specs))
            rows.append(
                dict(zip(("notebook", "profile", "dataset", "specs", "digest"), (name, profile, dataset, *counted)))
            )
    return rows


DUMPS = {"tables": tables_now, "verdicts": verdicts_now, "store": store_now, "goldens": goldens_now, "specs": specs_now}


def expected(name: str) -> Rows:
    with (EXPECTED / f"{name}.csv").open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


def differences(name: str, now: Rows | None = None) -> list[str]:
    there, made = expected(name), DUMPS[name]() if now is None else now
    plain = [{key: str(value) for key, value in row.items()} for row in made]
    gone = [f"{name}: no more {row}" for row in there if row not in plain]
    new = [f"{name}: now {row}" for row in plain if row not in there]
    order = [f"{name}: another order"] if not gone and not new and there != plain else []
    return gone + new + order


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the dumps anew")
    if parser.parse_args(arguments).write:
        for name, made in DUMPS.items():
            with (EXPECTED / f"{name}.csv").open("w", encoding="utf8", newline="") as file:
                rows = made()
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        return 0
    found = [line for name in DUMPS for line in differences(name)] + rebuilt()[0]
    print("\n".join(found) or "I1 to I5 hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
