"""What an edit does to the runs on record: nothing, which a sample trained again shows, or something.

The record is divided by what trains a run: the file of its loss, its scheme, and how much of the network is trained. Of
each such kind that other code than the present one has trained, SAMPLE runs are trained again, spread over the files.
The code is accepted if all rows are the same bytes where the processor rounds as it did, and elsewhere if each row lies
within 3 standard deviations over seeds of the recorded one and their mean deviation within 2 / sqrt(SAMPLE) of them.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dmlrepro.training import records, runs
from dmlrepro.training.spec import RunSpec

SAMPLE = 10  # runs of each kind
EACH, MEAN = 3.0, 2.0  # standard deviations over seeds: of a row, and of the mean deviation times sqrt(runs)
KINDS = {None: "whole networks", "head": "heads"}  # by what is trained; a block begins a tail


def states() -> list[dict]:
    """A row per kind, file and state: {"file", "kind", "state", "runs"}; state is current, accepted or stale."""
    counts: dict[tuple[str, str, str], int] = {}
    for file, line, state in _served():
        key = (_named(file), kind_of(line), state)
        counts[key] = counts.get(key, 0) + 1
    return [dict(zip(("file", "kind", "state", "runs"), (*key, count))) for key, count in sorted(counts.items())]


def _named(file: Path) -> str:
    return f"{file.parent.parent.name}/{file.stem}"


def kind_of(line: Mapping) -> str:
    """ "potential_field, supervised, tails": the file of the loss, the scheme, and what of the network is trained."""
    spec = spec_of(line)
    loss = "untrained" if spec.loss is None else spec.loss.partition(".")[0]
    return f"{loss}, {spec.scheme}, {KINDS.get(spec.train_from, 'tails')}"


def spec_of(line: Mapping) -> RunSpec:
    """The spec of a line, without the labels that tables give it."""
    return RunSpec(**line["spec"])


def source_of(line: Mapping) -> str:
    """The hash of the present code of what a line trains."""
    spec = spec_of(line)
    return runs.source_hash(spec.loss, spec.scheme)


def _served() -> Iterator[tuple[Path, dict, str]]:
    """(file, line, state) of every run on record, of its line that serves it."""
    for file in records.files():
        first = {line["run"]: line for line in reversed(records.lines(file)) if "run" in line}
        for name, line in first.items():
            found = records.find(file.parent, name, source_of(line))
            assert found is not None
            yield file, *found


def check(jobs: int | None = None) -> list[dict]:
    """Train a sample of every kind of stale runs again, and accept the code of which no kind differs.

    Returns:
        a row per kind: {"kind", "runs", "trained", "differ": what the first run that differs has otherwise, or ""}.
    """
    stale: dict[tuple[str, str, str], list[tuple[Path, dict]]] = {}
    for file, line, state in _served():
        if state == records.STALE:
            stale.setdefault((source_of(line), line["source"], kind_of(line)), []).append((file, line))
    samples = {key: spread(found) for key, found in stale.items()}
    lines = [line for found in samples.values() for line in found]
    trained = dict(zip(map(id, lines), runs.run_all([spec_of(line) for line in lines], jobs=jobs))) if lines else {}
    deviations = deviations_over_seeds(line for _, line, _ in _served())
    rows, refused = [], set()
    for (present, older, kind), found in samples.items():
        differ = difference([(line, trained[id(line)]) for line in found], deviations)
        if differ:
            refused.add((present, older))
        rows.append({"kind": kind, "runs": len(stale[present, older, kind]), "trained": len(found), "differ": differ})
    accepted: dict[str, list[str]] = {}
    for present, older, _ in samples:
        if (present, older) not in refused:
            accepted.setdefault(present, []).append(older)
    if accepted:
        records.accept(accepted)
    return rows


def spread(found: Sequence[tuple[Path, dict]]) -> list[dict]:
    """At most SAMPLE lines, of each file in turn, from all parts of it."""
    files: dict[Path, list[dict]] = {}
    for file, line in found:
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
            values.setdefault((_but_the_seed(line), _row(row)), []).append(row["value"])
    return {key: float(np.std(found, ddof=1)) for key, found in values.items() if len(found) > 1}


def _but_the_seed(line: Mapping) -> str:
    return records.digest({name: value for name, value in line["spec"].items() if name != "seed"})


def _row(row: Mapping) -> tuple:
    return tuple(row.get(name, "") for name in ("selection", "metric", "network"))


def difference(pairs: Sequence[tuple[Mapping, Any]], deviations: Mapping[tuple, float]) -> str:
    """What tells runs trained now from their lines, in words; "" where nothing does.

    Rows of kept evaluations are left out where the processor rounds otherwise.
    """
    scaled = []
    for line, run in pairs:
        if run.made["rounding"] == line["made"]["rounding"]:
            if run.rows != line["rows"]:
                return f"{line['described']} has other rows on a processor that rounds alike"
            continue
        then, now = (
            {_row(row): row["value"] for row in rows if row["selection"] != "every"}
            for rows in (line["rows"], run.rows)
        )
        if then.keys() != now.keys():
            return f"{line['described']} has rows of other names"
        for row, value in then.items():
            deviation = deviations.get((_but_the_seed(line), row), 0.0)
            if now[row] == value:
                continue
            apart = abs(now[row] - value) / deviation if deviation else math.inf
            if apart > EACH:
                return f"{line['described']}: {' '.join(filter(None, row))} was {value:.6g}, is {now[row]:.6g}"
            scaled.append((now[row] - value) / deviation)
    if scaled and abs(np.mean(scaled)) > MEAN / math.sqrt(len(pairs)):
        return f"the rows of {len(pairs)} runs lie {np.mean(scaled):+.2f} standard deviations beside theirs on average"
    return ""


def renew(names: Sequence[str] = (), jobs: int | None = None) -> int:
    """Train every stale run again and put the new lines in the place of the old ones; returns how many.

    names: of notebooks, as in "10_pfml_retrieval"; none: all.
    """
    count = 0
    for file in records.files():
        if names and file.stem not in names:
            continue
        stale = [line for each, line, state in _served() if each == file and state == records.STALE]
        if stale:
            runs.run_all([spec_of(line) for line in stale], jobs=jobs, record=file, renew=True)
            records.keep_only(file, functools.partial(_stays, records.of_runs_once(file.parent)))
            count += len(stale)
    return count


def _stays(found: Mapping[str, Mapping[str, dict]], line: Mapping) -> bool:
    """Whether a line is not of older code of a run that the present code has trained too, nor measured on such; found:
    of `records.of_runs`."""
    if "run" in line:
        present = source_of(line)
        return line["source"] == present or present not in found[line["run"]]
    return all(_stays(found, found[name][source]) for name, source in line["of"] if source in found.get(name, {}))
