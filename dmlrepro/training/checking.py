"""What an edit does to the runs on record: nothing, which a sample trained again shows, or something.

The record is divided by what trains a run: the file of its loss, its scheme, and how much of the network is trained. Of
each such kind that other code than the present one has trained, SAMPLE runs are trained again, spread over the files;
older codes that were found to train a kind alike are one code here.
The code is accepted for a kind if all rows are the same bytes where the machine is alike (rounding, device, threads and
versions of packages), and elsewhere if each row lies within 3 standard deviations over seeds of the recorded one and
their mean deviation within 2 / sqrt(SAMPLE) of them.
"""

import dataclasses
import functools
import math
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dmlrepro.files import FullDisk
from dmlrepro.training import keys, records, runs
from dmlrepro.training.spec import RunSpec

SAMPLE = 10  # runs of each kind
EACH, MEAN = 3.0, 2.0  # standard deviations over seeds: of a row, and of the mean deviation times sqrt(runs)
SEEDS = 3  # so many values give a deviation
LEAST = 1e-3  # the least deviation: of fractions a tenth of a point, which seeds that agree do not show
ALIKE = ("rounding", "device", "threads", "versions")
Line = typing.TypeVar("Line")
LOOKS = ("keep_history", "eval_every", "eval_every_epochs")  # what the first seed may have beside the others


def states() -> list[dict]:
    """A row per kind, file and state: {"file", "kind", "state", "runs"}; state is current, accepted or stale."""
    counts: dict[tuple[str, str, str], int] = {}
    for file, line, state in _served():
        key = (named(file), records.kind_of(line), state)
        counts[key] = counts.get(key, 0) + 1
    return [dict(zip(("file", "kind", "state", "runs"), (*key, count))) for key, count in sorted(counts.items())]


def named(file: Path) -> str:
    """ "small/10_pfml_retrieval"."""
    return f"{file.parent.parent.name}/{file.stem}"


def spec_of(line: Mapping) -> RunSpec:
    """The spec of a line, with the labels and on as many threads as it was recorded with."""
    return RunSpec(**_nothing() | line["spec"] | line["labels"] | {"threads": line["made"]["threads"] or None})


def _nothing() -> dict[str, None]:
    """The fields of a spec that are left out of a line where they are None, though their default is something."""
    fields = [field for field in dataclasses.fields(RunSpec) if type(None) in typing.get_args(field.type)]
    return {field.name: None for field in fields if field.default is not None}


def source_of(line: Mapping) -> str:
    """The hash of the present code of what a line trains."""
    spec = spec_of(line)
    return keys.source_hash(spec.loss, spec.scheme)


def _served() -> Iterator[tuple[Path, dict, str]]:
    """(file, line, state) of every run on record, of the line that serves it; ValueError names what fits no spec."""
    for file in records.files():
        first = {line["run"]: line for line in reversed(records.lines(file)) if "run" in line}
        for name, line in first.items():
            try:
                source = source_of(line)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{file}, run {name} ({line['described']}): {error}; remove its lines") from error
            serving = records.find(file.parent, name, source)
            assert serving is not None
            yield file, *serving


def check(jobs: int | None = None) -> list[dict]:
    """Train a sample of every kind of stale runs again, and accept the code that trained those that are as they were.

    Returns:
        a row per kind: {"kind", "runs", "trained", "differ": what the first run that differs has otherwise, or ""}.
    """
    served = list(_served())
    accepted = records.accepted()
    stale: dict[tuple[str, frozenset[str], str], list[tuple[Path, dict]]] = {}
    for file, line, state in served:
        if state == records.STALE:
            kind = records.kind_of(line)
            stale.setdefault((source_of(line), alike(line["source"], kind, accepted), kind), []).append((file, line))
    deviations = deviations_over_seeds(line for _, line, _ in served)
    rows = []
    for (present, older, kind), lines in stale.items():
        sample = spread(lines)
        differ = _failure(sample, jobs) or difference(
            [(line, run) for line, run in zip(sample, runs.run_all([spec_of(line) for line in sample]))], deviations
        )
        if not differ:
            records.accept({present: {code: [kind] for code in older}})
        rows.append({"kind": kind, "runs": len(lines), "trained": len(sample), "differ": differ})
    return rows


def alike(code: str, kind: str, accepted: Mapping[str, Mapping[str, Collection[str]]]) -> frozenset[str]:
    """`code` and all that was found to train a kind of runs as it does, see `records.accepted`."""
    family, todo = {code}, [code]
    while todo:
        known = todo.pop()
        linked = {older for older, kinds in accepted.get(known, {}).items() if kind in kinds}
        linked |= {present for present, by_older in accepted.items() if kind in by_older.get(known, ())}
        todo += linked - family
        family |= linked
    return frozenset(family)


def _failure(sample: Sequence[Mapping], jobs: int | None) -> str:
    """Train a sample; in words what hinders it, as a run that diverges now, or ""."""
    try:
        runs.run_all([spec_of(line) for line in sample], jobs=jobs)
    except (FullDisk, MemoryError):
        raise
    except (FloatingPointError, ValueError, RuntimeError) as error:
        return " ".join(str(error).split())
    return ""


def spread(lines: Sequence[tuple[Path, Line]]) -> list[Line]:
    """At most SAMPLE lines, of each file in turn, from all parts of it."""
    if not lines:
        return []
    files: dict[Path, list[Line]] = {}
    for file, line in lines:
        files.setdefault(file, []).append(line)
    share = math.ceil(SAMPLE / len(files))
    parts = [[own[i] for i in np.linspace(0, len(own) - 1, min(share, len(own))).astype(int)] for own in files.values()]
    turns = [part[turn] for turn in range(share) for part in parts if turn < len(part)]
    return turns[:SAMPLE]


def deviations_over_seeds(lines: Iterable[Mapping]) -> dict[tuple, float]:
    """The standard deviation over seeds of every row of runs that differ in nothing else, by (setting, row)."""
    values: dict[tuple, list[float]] = {}
    for line in lines:
        for row in line["rows"]:
            if row["selection"] != "every":
                values.setdefault((_but_the_seed(line), _row(row)), []).append(row["value"])
    return {key: max(float(np.std(seeds, ddof=1)), LEAST) for key, seeds in values.items() if len(seeds) >= SEEDS}


def _but_the_seed(line: Mapping) -> str:
    spec = line["spec"]
    ends = spec.get("patience") or spec.get("restore_best")  # then what is looked at decides the weights
    left_out = ("seed", *(() if ends else LOOKS))
    return records.digest({name: value for name, value in spec.items() if name not in left_out})


def _row(row: Mapping) -> tuple:
    return tuple(row.get(name, "") for name in ("selection", "metric", "network"))


def difference(pairs: Sequence[tuple[Mapping, Any]], deviations: Mapping[tuple, float]) -> str:
    """What tells runs trained now from their lines, in words; "" where nothing does.

    Rows of kept evaluations are left out where the machine is another.
    """
    scaled, compared = [], 0
    for line, run in pairs:
        if all(run.made[name] == line["made"][name] for name in ALIKE):
            if run.rows != line["rows"]:
                return f"{line['described']} has other rows on a machine that is alike"
            continue
        then, now = map(_at_the_end, (line["rows"], run.rows))
        if then.keys() != now.keys():
            return f"{line['described']} has rows of other names"
        compared += 1
        for row, value in then.items():
            deviation = _deviation(_but_the_seed(line), row, deviations)
            if abs(now[row] - value) > EACH * deviation:
                return f"{line['described']}: {' '.join(filter(None, row))} was {value:.6g}, is {now[row]:.6g}"
            scaled.append((now[row] - value) / deviation)
    if scaled and abs(np.mean(scaled)) > MEAN / math.sqrt(compared):
        return f"the rows of {compared} runs lie {np.mean(scaled):+.2f} standard deviations beside theirs on average"
    return ""


def _deviation(setting: str, row: tuple, deviations: Mapping[tuple, float]) -> float:
    """That of a row, and of a selection that too few seeds have, such as the best of the steps that only the first seed
    was looked at, that of the last step."""
    last = ("last", *row[1:])
    return deviations.get((setting, row), deviations.get((setting, last), LEAST))


def _at_the_end(rows: Iterable[Mapping]) -> dict[tuple, float]:
    return {_row(row): row["value"] for row in rows if row["selection"] != "every"}


def renew(
    names: Sequence[str] = (),
    jobs: int | None = None,
    measure: Callable[[Path, runs.RunResult], None] = lambda file, run: None,
) -> int:
    """Train every stale run again and put the new lines in the place of the old ones; returns how many.

    Args:
        names: of notebooks, as in "10_pfml_retrieval"; none: all.
        measure: called with the file and each run before it is recorded, see `runs.run_all`.
    """
    stale: dict[Path, list[dict]] = {}
    for file, line, state in _served():
        if state == records.STALE and (not names or file.stem in names):
            stale.setdefault(file, []).append(line)
    for file, lines in stale.items():
        how: dict[str, Any] = {"record": file, "measure": functools.partial(measure, file), "renew": True}
        runs.run_all([spec_of(line) for line in lines], jobs=jobs, **how)
        records.rewrite(file, functools.partial(_kept, records.of_runs_once(file.parent)))
    return sum(map(len, stale.values()))


def _kept(recorded: Mapping[str, Mapping[str, dict]], line: dict) -> dict | None:
    return line if _stays(recorded, line) else None


def _stays(recorded: Mapping[str, Mapping[str, dict]], line: Mapping) -> bool:
    """Whether a line is not of older code of a run that the present code has trained too, nor measured on such;
    recorded: of `records.of_runs`."""
    if "run" in line:
        present = source_of(line)
        return line["source"] == present or present not in recorded[line["run"]]
    return all(
        _stays(recorded, recorded[name][source]) for name, source in line["of"] if source in recorded.get(name, {})
    )
