"""What an edit does to the measurements on record: nothing, which a sample measured again shows, or something.

A measurement is kept under the code of its function and of all that it names. Where that code is another one now, a
sample of what it measured is measured again, on runs that are trained again for it, and all of it is kept under the
present code if the sample has the same values. Only a machine like the one that trained a run can tell: elsewhere its
embeddings are others by themselves.
"""

import importlib
import inspect
import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dmlrepro.training import checking, keys, records, runs, sources
from dmlrepro.training.spec import RunSpec


class _Measured(NamedTuple):
    """A line of a measurement, and the specs of the runs that it was made on."""

    line: dict
    specs: list[RunSpec]


def check(jobs: int | None = None) -> list[dict]:
    """Measure a sample of what every older code measured again, and keep what it measured under the present one where
    the sample is as it was. Values of older code go where the present one has measured the same.

    Returns:
        a row per function and older code: {"kind", "runs": measurements, "trained": those of the sample, "differ": what
        is otherwise, or ""}.
    """
    _drop_replaced()
    rows = []
    for (name, _), lines in _stale().items():
        known = [(file, _Measured(line, specs)) for file, line in lines if (specs := _repeatable(file, line))]
        sample = checking.spread(known)
        differ = _difference(sample, jobs)
        if not differ:
            for file in dict.fromkeys(file for file, _ in lines):
                _take_over(file, [line for other, line in lines if other == file])
        rows.append({"kind": f"measured by {name}", "runs": len(lines), "trained": len(sample), "differ": differ})
    return rows


def states() -> list[dict]:
    """A row per file and function whose measurements there are stale, as those of `checking.states`."""
    counts = Counter((file, name) for (name, _), lines in _stale().items() for file, _ in lines)
    return [
        {"file": checking.named(file), "kind": f"measured by {name}", "state": records.STALE, "runs": count}
        for (file, name), count in sorted(counts.items())
    ]


def _stale() -> dict[tuple[str, str], list[tuple[Path, dict]]]:
    """What other code than the present one measured: (file, line) by the name of the function and the code."""
    stale: dict[tuple[str, str], list[tuple[Path, dict]]] = {}
    for file in records.files():
        for line in records.lines(file):
            if "asked" in line:
                name, options, code = line["asked"]
                if (function := _function(name, options)) and records.code_of(function) != code:
                    stale.setdefault((name, code), []).append((file, line))
    return stale


def _function(name: str, options: Mapping[str, Any]) -> Callable | None:
    """The function of a measurement; None where there is none of its name and options any more, so that nothing asks
    for it."""
    module, _, own = name.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), own)
        inspect.signature(function).bind_partial(**options)
    except (ModuleNotFoundError, AttributeError, TypeError):
        return None
    return function


def _repeatable(file: Path, line: Mapping) -> list[RunSpec]:
    """The specs of the runs that were measured, if training them here gives the same embeddings; else none."""
    here = {"rounding": keys.rounding(), "device": keys.device_name(), "versions": sources.versions()}
    trained = [records.of_runs_once(file.parent).get(name, {}).get(source) for name, source in line["of"]]
    alike = all(
        run
        and records.serves(records.kind_of(run), run["source"], checking.source_of(run))
        and all(run["made"][what] == here[what] for what in here)
        for run in trained
    )
    return [checking.spec_of(run) for run in trained if run] if alike else []


def _difference(sample: list[_Measured], jobs: int | None) -> str:
    """What tells values measured now from those on record, in words; "" where nothing does."""
    if not sample:
        return "none of their runs was trained on a machine like this one, and only there can it be told"
    trained = iter(runs.run_all([spec for measured in sample for spec in measured.specs], jobs=jobs))
    for line, specs in sample:
        name, options, _ = line["asked"]
        function = _function(name, options)
        assert function is not None  # as `_stale` has it
        value = function(*itertools.islice(trained, len(specs)), **options)
        if json.loads(json.dumps(value)) != line["value"]:
            return f"{line['described']} has another value"
    return ""


def _drop_replaced() -> None:
    """Drop what older code measured and the present one has measured itself, in any file, on a machine whose embeddings
    may be others."""
    stale = [entry for lines in _stale().values() for entry in lines]
    for file in dict.fromkeys(file for file, _ in stale):
        every = (line for other in records.files(file.parent) for line in records.lines(other))
        there = {line["derived"] for line in every if "derived" in line}
        replaced = {line["derived"] for other, line in stale if other == file and _present(line)["derived"] in there}
        if replaced:
            _without(file, replaced)


def _without(file: Path, measured: set[str]) -> None:
    records.rewrite(file, lambda line: None if line.get("derived") in measured else line)


def _take_over(file: Path, older: list[dict]) -> None:
    """Keep what older code measured under the present code."""
    keys_of_older = {line["derived"] for line in older}
    records.rewrite(file, lambda line: _present(line) if line.get("derived") in keys_of_older else line)


def _present(line: dict) -> dict:
    """A line of a measurement as the present code would have kept it."""
    name, options, _ = line["asked"]
    function = _function(name, options)
    assert function is not None  # as `_stale` has it
    asked = [name, options, records.code_of(function)]
    return line | {"derived": records.kept_under(asked, line["of"]), "asked": asked}
