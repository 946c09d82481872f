"""Whether the stored runs are what the present code trains: a sample trained again, and compared.

Of each kind, see `records.kind`, some runs are trained again, spread over all that are stored. They agree if all rows
are the same bytes where the machine is alike (rounding, device, threads and versions of packages), and elsewhere if
each row lies within 3 standard deviations over seeds of the stored one and their mean deviation within 2 / sqrt(runs)
of them.
"""

import dataclasses
import math
import typing
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.training import recorded, records, runs
from experiments.training.spec import RunSpec

SAMPLE = 2  # runs of each kind
EACH, MEAN = 3.0, 2.0  # standard deviations over seeds: of a row, and of the mean deviation times sqrt(runs)
SEEDS = 3  # so many values give a deviation
LEAST = 1e-3  # the least deviation: of fractions a tenth of a point, which seeds that agree do not show
ALIKE = ("rounding", "device", "threads", "versions")
LOOKS = ("keep_history", "eval_every", "eval_every_epochs")  # what the first seed may have beside the others


def states() -> list[dict]:
    """A row per kind, file and state: {"file", "kind", "state", "runs"}; state is valid or outdated."""
    counts = Counter(
        (
            f"{file.parent.parent.name}/{file.stem}",
            records.kind_of(line),
            "valid" if records.is_valid(line) else "outdated",
        )
        for file, line in _runs()
    )
    return [dict(zip(("file", "kind", "state", "runs"), (*key, count))) for key, count in sorted(counts.items())]


def spec_of(line: Mapping) -> RunSpec:
    """The spec of a line, with the labels and on as many threads as it was recorded with."""
    optional = [field for field in dataclasses.fields(RunSpec) if type(None) in typing.get_args(field.type)]
    nothing = {field.name: None for field in optional if field.default is not None}  # left out of a line where None
    spec = recorded.spec_from_record(line["spec"])
    return RunSpec(**nothing | spec | line["labels"] | {"threads": line["made"]["threads"] or None})


def _runs() -> list[tuple[Path, dict]]:
    """(file, line) of every stored run."""
    return [(file, line) for file in records.files() for line in records.lines(file) if "run" in line]


def check(sample: int = SAMPLE, kinds: Collection[str] = (), jobs: int | None = None) -> list[dict]:
    """Train a sample of every kind of valid runs again and compare it with what is stored.

    Args:
        sample: runs of each kind.
        kinds: only those whose name contains one of these; none: all.

    Returns:
        a row per kind: {"kind", "runs", "trained", "differ": what the first run that differs has otherwise, or what
        hinders training, as a run that diverges now, or ""}.
    """
    valid = [line for _, line in _runs() if records.is_valid(line)]
    deviations = deviations_over_seeds(valid)
    of_kind: dict[str, list[dict]] = {}
    for line in valid:
        of_kind.setdefault(records.kind_of(line), []).append(line)
    rows = []
    for kind, lines in sorted(of_kind.items()):
        if kinds and not any(part in kind for part in kinds):
            continue
        drawn = [lines[i] for i in np.linspace(0, len(lines) - 1, min(sample, len(lines))).astype(int)]
        try:
            differ = difference(drawn, runs.run_all([spec_of(line) for line in drawn], jobs=jobs), deviations)
        except (FloatingPointError, ValueError, RuntimeError) as error:
            differ = " ".join(str(error).split())
        rows.append({"kind": kind, "runs": len(lines), "trained": len(drawn), "differ": differ})
    return rows


def deviations_over_seeds(lines: Iterable[Mapping]) -> dict[tuple, float]:
    """The standard deviation over seeds of every row of runs that differ in nothing else, by (setting, row)."""
    values: dict[tuple, list[float]] = {}
    for line in lines:
        for row, value in _at_the_end(line["rows"]).items():
            values.setdefault((_but_the_seed(line), row), []).append(value)
    return {key: max(float(np.std(seeds, ddof=1)), LEAST) for key, seeds in values.items() if len(seeds) >= SEEDS}


def _but_the_seed(line: Mapping) -> str:
    spec = line["spec"]
    ends = spec.get("patience") or spec.get("restore_best")  # then what is looked at decides the weights
    left_out = ("seed", *(() if ends else LOOKS))
    return records.digest({name: value for name, value in spec.items() if name not in left_out})


def difference(lines: Sequence[Mapping], trained: Sequence[Any], deviations: Mapping[tuple, float]) -> str:
    """What tells runs trained now from their lines, in words; "" where nothing does.

    Rows of kept evaluations are left out where the machine is another. A selection that too few seeds have, such as the
    best of the steps that only the first seed was looked at, deviates as the last step does.
    """
    scaled, compared = [], 0
    for line, run in zip(lines, trained):
        if all(run.made[name] == line["made"][name] for name in ALIKE):
            if run.rows != line["rows"]:
                return f"{line['described']} has other rows on a machine that is alike"
            continue
        then, now = map(_at_the_end, (line["rows"], run.rows))
        if then.keys() != now.keys():
            return f"{line['described']} has rows of other names"
        compared += 1
        for row, value in then.items():
            setting = _but_the_seed(line)
            last = deviations.get((setting, ("last", *row[1:])), LEAST)
            deviation = deviations.get((setting, row), last)
            if abs(now[row] - value) > EACH * deviation:
                return f"{line['described']}: {' '.join(filter(None, row))} was {value:.6g}, is {now[row]:.6g}"
            scaled.append((now[row] - value) / deviation)
    if scaled and abs(np.mean(scaled)) > MEAN / math.sqrt(compared):
        return f"the rows of {compared} runs lie {np.mean(scaled):+.2f} standard deviations beside theirs on average"
    return ""


def _at_the_end(rows: Iterable[Mapping]) -> dict[tuple, float]:
    names = ("selection", "metric", "network")
    return {tuple(row.get(n, "") for n in names): row["value"] for row in rows if row["selection"] != "every"}
