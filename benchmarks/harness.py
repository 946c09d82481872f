"""What the benchmarks share: their command, a process for each measurement and its memory, limits, the table."""

import argparse
import csv
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from experiments import timing
from experiments.analysis.saving import output_folder
from experiments.files import atomic_write


def options(doc: str, measures: Mapping[str, Callable] | None = None, **others: str | int) -> argparse.Namespace:
    """The options of a benchmark's command: --quick and `others`, {name: default}. With --measure, which `apart` gives,
    the function of that name in `measures` prints what it returns as JSON, and the process ends."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one small case, nothing written")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    for name, default in others.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    given = parser.parse_args()
    if given.measure:
        kind, *arguments = json.loads(given.measure)
        print(json.dumps((measures or {})[kind](*arguments)))
        sys.exit()
    return given


def finish(name: str, rows: Sequence[Mapping], passed: bool, quick: bool, **formats: str) -> NoReturn:
    """Write the table unless it was a quick one; the exit status is 1 if a limit was missed."""
    if not quick:
        write_table(rows, output_folder("benchmarks") / f"{name}.csv", **formats)
    sys.exit(not passed)


def process_peak_bytes(call: Callable[[], object], device: str) -> int:
    """How far a call raises the peak memory of this process above its state before; on a GPU, of the allocator.

    Unlike `timing.peak_bytes` it sees what libraries allocate for themselves. What the process has freed but not given
    back counts as before, so measure in a fresh process (`apart`), after a tiny call that loads what any call needs.
    """
    if device == "cuda":
        return timing.peak_bytes(call, device)
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _resident_peak()
    call()
    return _resident_peak() - before


def _resident_peak() -> int:
    if sys.platform == "linux":  # getrusage starts there from the peak of the process that spawned this one
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def apart(script: str, *arguments):
    """What `python SCRIPT --measure ARGUMENTS` prints in a process of its own; arguments and result are JSON."""
    command = [sys.executable, script, "--measure", json.dumps(arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def within(words: str, value: float, *, most: float | None = None, least: float | None = None) -> bool:
    """Print a measured value, and its limit if it has one; whether it keeps that."""
    limits = [f"{word} {limit:.4g}" for word, limit in (("at most", most), ("at least", least)) if limit is not None]
    print(f"{words} {value:.4g}" + "".join(f" (limit: {limit})" for limit in limits), flush=True)
    return (most is None or value <= most) and (least is None or value >= least)


def ratios_within(
    measured: Iterable[tuple[str, str, Mapping[str, float]]], limits: Mapping[tuple[str, str, str], float]
) -> bool:
    """Print the product's value over every other form's; whether all that have a limit keep it.

    measured: (case, metric, {form: value}), where one form is "product"; limits: {(case, metric, form): ratio}.
    """
    kept = [
        within(f"{case}: {metric} over the {form}'s", values["product"] / value, most=limits.get((case, metric, form)))
        for case, metric, values in measured
        for form, value in values.items()
        if form != "product"
    ]
    return all(kept)


def with_ratios(rows: Sequence[Mapping], ours: Mapping[str, str] | None = None) -> list[dict]:
    """The rows with `ratio`, what a form takes over what ours takes in a row that is equal otherwise; None for ours.

    ours: {form: that of the package which does the same work}; of the others it is "product"."""
    ours, found = ours or {}, []

    def place(row: Mapping, form: str) -> tuple:
        return (form, *(value for name, value in row.items() if name not in ("form", "value")))

    values = {place(row, row["form"]): row["value"] for row in rows}
    for row in rows:
        base = None if row["form"] in ("product", *ours.values()) else ours.get(row["form"], "product")
        own = values.get(place(row, base)) if base else None
        found.append({**row, "ratio": row["value"] / own if own else None})
    return found


def write_table(rows: Sequence[Mapping], path: Path, **formats: str) -> None:
    """A benchmark's CSV, replaced atomically; floats with four digits, or as `formats` says of their column. Where the
    rows name their `device`, those of other devices stay."""
    others: list[dict] = []
    if "device" in rows[0] and path.exists():
        devices = {row["device"] for row in rows}
        with path.open(newline="", encoding="utf8") as file:
            # rows with other columns are of another version of the benchmark
            others = [row for row in csv.DictReader(file) if row.keys() == rows[0].keys()]
        others = [row for row in others if row["device"] not in devices]
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf8") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        for row in [*others, *rows]:
            table.writerow({k: format(v, formats.get(k, ".4g")) if isinstance(v, float) else v for k, v in row.items()})
