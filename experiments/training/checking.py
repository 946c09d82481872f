"""Whether the stored runs are what the present code trains: a sample trained again, and compared.

Of each kind, see `records.kind`, some runs are trained again, spread over all that a CPU or GPU, as this machine has,
trained: what takes a GPU minutes takes a CPU hours. Where the machine is the same (rounding, device, threads, package
versions) they agree if all rows do, but for the order of sums. Elsewhere each row of the last step has to lie within
3 standard deviations over seeds of the stored one, and their mean deviation within 2 / sqrt(runs) of them.
"""

import dataclasses
import math
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.training import keys, records, runs
from experiments.training.spec import RunSpec, from_record

SUMMED = 1e-7  # what another order of the sums in a metric may change
EACH, MEAN = 3.0, 2.0  # standard deviations over seeds: of a row, and of the mean deviation times sqrt(runs)
SEEDS = 3  # so many values give a deviation
LEAST = 1e-3  # the least deviation: of fractions a tenth of a point, which seeds that agree do not show
KIND_OF_MACHINE = ("rounding", "device", "threads", "versions")
PARTICULAR = ("seed", "keep_history", "eval_every", "eval_every_epochs")  # what runs that differ by seed may differ in


def states() -> pd.DataFrame:
    """How many runs are valid and outdated, by file and kind."""
    rows = []
    for file in records.files():
        for line in (line for line in records.lines(file) if "run" in line):
            state = "valid" if records.is_valid(line) else "outdated"
            rows.append((f"{file.parent.parent.name}/{file.stem}", records.kind_of(line), state))
    return pd.DataFrame(rows, columns=["file", "kind", "state"]).value_counts(sort=False).rename("runs").reset_index()


def spec_of(line: Mapping) -> RunSpec:
    """The spec of a line, with the labels and on as many threads as it was recorded with."""
    fields = [field for field in dataclasses.fields(RunSpec) if type(None) in typing.get_args(field.type)]
    left_out = {field.name: None for field in fields if field.default is not None}  # of the line where it is None
    labels = line["labels"] | {"threads": line["made"]["threads"] or None}
    return from_record(left_out | line["spec"], **labels)


def check(sample: int, kinds: Collection[str] = (), jobs: int | None = None) -> list[dict]:
    """Train a sample of every kind of valid runs again and compare it with what is stored. sample: runs of each kind.
    kinds: only those whose name contains one of these; none: all. Returns a row per kind: {"kind", "runs": that this
    kind of device trained, "trained", "differ": what the first run that differs has otherwise, what hinders, or ""}.
    """
    of_kind: dict[str, list[dict]] = {}
    on_cpu = keys.device_name().startswith("CPU")
    for line in (line for file in records.files() for line in records.lines(file) if "run" in line):
        kind = records.kind_of(line)
        own = line["made"]["device"].startswith("CPU") == on_cpu
        if own and records.is_valid(line) and any(part in kind for part in kinds or [""]):
            of_kind.setdefault(kind, []).append(line)
    rows = []
    for kind, lines in sorted(of_kind.items()):
        drawn = [lines[i] for i in np.linspace(0, len(lines) - 1, min(sample, len(lines))).astype(int)]
        try:
            runs.forget(map(spec_of, drawn))  # what the cache has would be compared with itself
            differ = difference(drawn, runs.run_all([*map(spec_of, drawn)], jobs=jobs), lines)
        except (FloatingPointError, ValueError, RuntimeError) as error:
            differ = " ".join(str(error).split())
        rows.append({"kind": kind, "runs": len(lines), "trained": len(drawn), "differ": differ})
    return rows


def difference(lines: Sequence[Mapping], trained: Sequence[Any], of_kind: Iterable[Mapping]) -> str:
    """What tells runs trained now from their lines, in words; "" where nothing does.

    of_kind: all lines of their kind, whose seeds give the standard deviations.
    """
    seeds: dict[tuple, list[float]] = {}
    for line in of_kind:
        for row, value in _values(line["rows"], every=False).items():
            seeds.setdefault((_setting(line), row), []).append(value)
    scaled, compared = [], 0
    for line, run in zip(lines, trained):
        same_kind = all(run.made[name] == line["made"][name] for name in KIND_OF_MACHINE)
        then, now = (_values(rows, every=same_kind) for rows in (line["rows"], run.rows))
        if then.keys() != now.keys():
            return f"{line['described']} has rows of other names"
        if same_kind:
            if any(abs(now[row] - value) > SUMMED for row, value in then.items()):
                return f"{line['described']} has other rows on a machine of the same kind"
            continue
        compared += 1
        for row, value in then.items():
            values = seeds[_setting(line), row]
            deviation = max(float(np.std(values, ddof=1)), LEAST) if len(values) >= SEEDS else LEAST
            scaled.append((now[row] - value) / deviation)
            if abs(scaled[-1]) > EACH:
                return f"{line['described']}: {' '.join(row)} was {value:.6g}, is {now[row]:.6g}"
    if scaled and abs(np.mean(scaled)) > MEAN / math.sqrt(compared):
        return f"the rows of {compared} runs lie {np.mean(scaled):+.2f} standard deviations beside theirs on average"
    return ""


def _setting(line: Mapping) -> str:
    return records.digest({name: value for name, value in line["spec"].items() if name not in PARTICULAR})


def _values(rows: Iterable[Mapping], every: bool) -> dict[tuple, float]:
    """The values of all rows, or of those of the last step, by what tells them apart."""
    names = ("metric", "network", "selection", "step") if every else ("metric", "network")
    chosen = [row for row in rows if every or row["selection"] == "last"]
    return {tuple(str(row.get(name, "")) for name in names): row["value"] for row in chosen}
