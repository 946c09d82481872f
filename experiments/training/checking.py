"""Whether the stored runs are what the present code trains: a sample trained again, and compared.

Of each kind, see `records.kind`, some runs are trained again, spread over the files. They agree if all rows are the
same bytes where the machine is alike (rounding, device, threads and versions of packages), and elsewhere if each row
lies within 3 standard deviations over seeds of the stored one and their mean deviation within 2 / sqrt(runs) of them.
"""

import dataclasses
import math
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.files import FullDisk
from experiments.training import recorded, records, runs
from experiments.training.spec import RunSpec

SAMPLE = 2  # runs of each kind
EACH, MEAN = 3.0, 2.0  # standard deviations over seeds: of a row, and of the mean deviation times sqrt(runs)
SEEDS = 3  # so many values give a deviation
LEAST = 1e-3  # the least deviation: of fractions a tenth of a point, which seeds that agree do not show
ALIKE = ("rounding", "device", "threads", "versions")
Line = typing.TypeVar("Line")
LOOKS = ("keep_history", "eval_every", "eval_every_epochs")  # what the first seed may have beside the others


def states() -> list[dict]:
    """A row per kind, file and state: {"file", "kind", "state", "runs"}; state is valid or outdated."""
    counts: dict[tuple[str, str, str], int] = {}
    for file, line in _runs():
        key = (named(file), records.kind_of(line), "valid" if records.is_valid(line) else "outdated")
        counts[key] = counts.get(key, 0) + 1
    return [dict(zip(("file", "kind", "state", "runs"), (*key, count))) for key, count in sorted(counts.items())]


def named(file: Path) -> str:
    """ "small/10_pfml_retrieval"."""
    return f"{file.parent.parent.name}/{file.stem}"


def spec_of(line: Mapping) -> RunSpec:
    """The spec of a line, with the labels and on as many threads as it was recorded with."""
    spec = recorded.spec_from_record(line["spec"])
    return RunSpec(**_nothing() | spec | line["labels"] | {"threads": line["made"]["threads"] or None})


def _nothing() -> dict[str, None]:
    """The fields of a spec that are left out of a line where they are None, though their default is something."""
    fields = [field for field in dataclasses.fields(RunSpec) if type(None) in typing.get_args(field.type)]
    return {field.name: None for field in fields if field.default is not None}


def _runs() -> list[tuple[Path, dict]]:
    """(file, line) of every stored run."""
    return [(file, line) for file in records.files() for line in records.lines(file) if "run" in line]


def check(sample: int = SAMPLE, kinds: Collection[str] = (), jobs: int | None = None) -> list[dict]:
    """Train a sample of every kind of valid runs again and compare it with what is stored.

    Args:
        sample: runs of each kind.
        kinds: only those whose name contains one of these; none: all.

    Returns:
        a row per kind: {"kind", "runs", "trained", "differ": what the first run that differs has otherwise, or ""}.
    """
    valid = [(file, line) for file, line in _runs() if records.is_valid(line)]
    deviations = deviations_over_seeds(line for _, line in valid)
    of_kind: dict[str, list[tuple[Path, dict]]] = {}
    for file, line in valid:
        of_kind.setdefault(records.kind_of(line), []).append((file, line))
    rows = []
    for kind, lines in sorted(of_kind.items()):
        if kinds and not any(part in kind for part in kinds):
            continue
        drawn = spread(lines, sample)
        differ = _failure(drawn, jobs) or difference(
            [(line, run) for line, run in zip(drawn, runs.run_all([spec_of(line) for line in drawn]))], deviations
        )
        rows.append({"kind": kind, "runs": len(lines), "trained": len(drawn), "differ": differ})
    return rows


def _failure(sample: Sequence[Mapping], jobs: int | None) -> str:
    """Train a sample; in words what hinders it, as a run that diverges now, or ""."""
    try:
        runs.run_all([spec_of(line) for line in sample], jobs=jobs)
    except (FullDisk, MemoryError):
        raise
    except (FloatingPointError, ValueError, RuntimeError) as error:
        return " ".join(str(error).split())
    return ""


def spread(lines: Sequence[tuple[Path, Line]], count: int = SAMPLE) -> list[Line]:
    """At most `count` lines, of each file in turn, from all parts of it."""
    if not lines:
        return []
    files: dict[Path, list[Line]] = {}
    for file, line in lines:
        files.setdefault(file, []).append(line)
    share = math.ceil(count / len(files))
    parts = [[own[i] for i in np.linspace(0, len(own) - 1, min(share, len(own))).astype(int)] for own in files.values()]
    turns = [part[turn] for turn in range(share) for part in parts if turn < len(part)]
    return turns[:count]


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
