"""The store: finished runs as lines of text in results/<profile>/runs/<notebook>.jsonl, kept with git, so that no run
is trained twice and none is lost with a machine.

A line of a run holds what tables need of it: the rows, the scores of test classes, its cost, and what made it. Its
name, `run`, is a digest of its spec, images and first weights, not of code or machine. `version` is that of the code
that trained it; older lines have `source` instead, a hash of that code. What was measured on its weights later is a
line of its own. Every line ends with its own sha256, which finds accidents and not forgers. Files grow by whole lines
only, so that pieces of a study from several machines merge as text.

A line is valid if the present code is compatible with its version; any other is outdated: it is shown and marked, and
no verdict rests on it. Profile quick has no store: it trains.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from experiments import variables
from experiments.files import atomic_write, cache_root, kept_folder, locked, read_json, repository_root
from experiments.training import sources

SUM = "sha256"
# what two lines of one run need not have in common: older lines have a curve of the loss
_PARTICULAR = {"described", "labels", "cost", "made", "curve", SUM}
Function = TypeVar("Function", bound=Callable)


def once_per_state(read: Function) -> Function:
    """A function of a file, or of a folder of the store, that is called again only where something there changed."""
    known: dict[Path, tuple[list, Any]] = {}

    @functools.wraps(read)
    def reading(path: Path) -> Any:
        there = [path] if path.is_file() else files(path)
        state = [(file, (now := file.stat()).st_ino, now.st_mtime_ns, now.st_size) for file in there]
        if path not in known or known[path][0] != state:
            known[path] = state, read(path)
        return known[path][1]

    return cast(Function, reading)


def folder() -> Path:
    """The folder of profiles whose runs/ are the store: environment variable DMLREPRO_RECORD, else results/."""
    return repository_root() / (variables.folder("DMLREPRO_RECORD") or "results")


def file_of(profile: str, notebook: str) -> Path | None:
    """Where the runs of a notebook are stored; None for profile quick, which stores none."""
    return None if profile == "quick" else folder() / profile / "runs" / f"{notebook}.jsonl"


def files(profile_folder: Path | None = None) -> list[Path]:
    """Every file of the store, or those of one folder of runs."""
    return sorted(folder().glob("*/runs/*.jsonl") if profile_folder is None else profile_folder.glob("*.jsonl"))


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def name_of(what: Mapping) -> str:
    """The name of a run from what its key is made of (`keys.identity_of`), without the code and the machine."""
    return digest({name: what[name] for name in ("spec", "data", "weights")})[:24]


def kind(loss: str | None, algorithm: str, train_from: str | None) -> str:
    """ "potential_field.PotentialFieldLoss, supervised, last blocks": loss, algorithm and what is trained. Kinds have
    versions of their own."""
    part = {None: "whole network", "head": "head"}.get(train_from, "last blocks")
    return f"{loss or 'untrained'}, {algorithm}, {part}"


def kind_of(line: Mapping) -> str:
    spec = line["spec"]
    return kind(spec.get("loss"), spec.get("scheme", "supervised"), spec.get("train_from"))


def versions(kind: str) -> dict[str, Any]:
    """What results/versions.json says of a kind of runs: `version`, that of the present code, `compatible`, those whose
    lines it takes, and `sources`, the versions of older lines by the hash of their code. 1 where it says nothing."""
    path = repository_root() / "results" / "versions.json"
    known = committed(path) if path.is_file() else {}
    return known.get(kind, {"version": 1, "compatible": [1], "sources": {}})


def version_of(kind: str, code: int | str) -> int | None:
    """The version of the code that trained a run: of an older line by its source; None where nobody compared it."""
    return code if isinstance(code, int) else versions(kind)["sources"].get(code)


def code_of(line: Mapping) -> int | str:
    return line.get("version") or line["source"]


def is_valid(line: Mapping) -> bool:
    """Whether a table may rest on a line of a run: the present code is compatible with the one that trained it."""
    return is_compatible(kind_of(line), code_of(line))


def is_compatible(kind: str, code: int | str) -> bool:
    return version_of(kind, code) in versions(kind)["compatible"]


@once_per_state
def committed(path: Path) -> dict[str, Any]:
    """What a committed JSON file holds; ValueError names one that is damaged."""
    return read_json(path, "take it from git")


def append(file: Path, content: Mapping, unless: Callable[[], Any] = lambda: None) -> Any:
    """Add a line to a file of the store, whole and flushed to the disk; raises what `files.explained` does. unless:
    asked while no other process writes; what it finds, if it does, is returned, and nothing is added."""
    with locked(file.with_name("store")):
        if (there_already := unless()) is not None:
            return there_already
        there = file.read_bytes().splitlines() if file.exists() else []
        line = json.dumps(summed(content), separators=(",", ":")).encode()
        with atomic_write(file) as temporary:
            temporary.write_bytes(b"\n".join([*there, line, b""]))
    return None


def summed(content: Mapping) -> dict:
    """A line as it will be read, with its sha256."""
    content = json.loads(json.dumps({name: value for name, value in content.items() if name != SUM}))
    return content | {SUM: digest(content)}


def _content(line: bytes) -> dict | None:
    """What a line holds; None if it is not as it was written."""
    try:
        content = json.loads(line)
        sound = content[SUM] == digest({name: value for name, value in content.items() if name != SUM})
        return content if sound else None
    except (ValueError, LookupError, AttributeError, TypeError):
        return None


@once_per_state
def lines(file: Path) -> list[dict]:
    """What the lines of a file hold. ValueError names the file and the line that is not as it was written."""
    contents: list[dict] = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if (content := _content(line)) is None:
            raise ValueError(
                f"{file}, line {number} is not what was written: take it from git, or remove the line, and its run is "
                "trained again"
            )
        contents.append(content)
    return contents


def of_runs(runs_folder: Path) -> dict[str, list[dict]]:
    """The lines of runs in a folder by the name of the run, older ones first; a repetition of a line is left out.

    ValueError names a line that was edited, and two of one run, of one version and one rounding, that
    differ in more than what machines and costs they had, or of one measurement that differ in value."""
    return _by_name(runs_folder)[0]


def measured_under(file: Path, key: str) -> dict | None:
    """The line of a measurement in any file beside this one, by what it is kept under. Raises as `of_runs`."""
    return _by_name(file.parent)[1].get(key)


@once_per_state
def _by_name(runs_folder: Path) -> tuple[dict[str, list[dict]], dict[str, dict]]:
    of_run: dict[str, list[dict]] = {}
    of_measurement: dict[str, dict] = {}
    trained: dict[tuple, tuple[dict, str]] = {}
    for file in files(runs_folder):
        for number, line in enumerate(lines(file), start=1):
            place = f"{file}, line {number}"
            if "run" in line:
                where = (*environment(line), repr(line["made"].get("versions")), line["made"].get("threads"))
                twin, there = trained.setdefault((line["run"], *where, code_of(line)), (line, place))
                if twin is line:
                    of_run.setdefault(line["run"], []).append(line)
                elif any(twin.get(name) != line.get(name) for name in (twin.keys() | line.keys()) - _PARTICULAR):
                    raise ValueError(
                        f"{there} and {place} have different rows of run {line['run']} ({line['described']}): remove "
                        "one of them, and what was measured on it"
                    )
            elif asked := asked_by(line):
                known = of_measurement.setdefault(kept_under(asked, line["of"]), line)
                if known["value"] != line["value"]:
                    raise ValueError(
                        f"{place} has another value of {line['described']} than an earlier line: remove one"
                    )
    return of_run, of_measurement


def environment(line: Mapping) -> tuple[str, str]:
    """Device and numerics fingerprint of the machine that trained a line: only runs that share both are compared."""
    return line["made"]["device"], line["made"]["rounding"]


def find(runs_folder: Path, names: Sequence[str]) -> dict[str, tuple[dict, bool]]:
    """The lines that serve runs, by their names, and whether each is outdated; a name without a line is left out.

    Of a run's lines the newest valid one is taken, but those of one environment if it has a valid line of every run, or
    else of every run of a seed."""
    there = of_runs(runs_folder)
    every = {name: there[name] for name in names if name in there}
    valid = {name: [line for line in known if is_valid(line)] for name, known in every.items()}
    of_seeds: dict[int, list[str]] = {}
    for name, (line, *_) in every.items():
        of_seeds.setdefault(line["spec"]["seed"], []).append(name)
    for some in ([*every], *of_seeds.values()):
        for one in dict.fromkeys(environment(line) for name in some for line in reversed(valid[name])):
            own = {name: [line for line in valid[name] if environment(line) == one] for name in some}
            if all(own.values()):
                valid |= own
                break
    return {name: (valid[name][-1], False) if valid[name] else (known[-1], True) for name, known in every.items()}


def mark(line: Mapping) -> str:
    """By what measurements name the line of a run that they were made on: the hash of the code that trained it or, of
    a line with a version, its own sha256."""
    return line.get("source") or line[SUM]


class NotMeasured(Exception):
    """Something is asked of the weights or images of a stored run that was not measured on it."""


def measurement(name: str, version: int = 1) -> Callable[[Function], Function]:
    """A decorator: what a function measures is stored under a name and version that outlive its place in the code.
    Whoever changes what it measures raises the version."""

    def named(function: Function) -> Function:
        vars(function)["measurement"] = (name, version)
        return function

    return named


def derived(models: Sequence, function: Callable, **options: Any) -> Any:
    """function(*models, **options), made once: kept in the store of the first model, or in the cache if that has none.
    function: of a module, whose value is plain data as JSON has it, see `measurement`."""
    name, version = vars(function).get("measurement", (f"{function.__module__}.{function.__qualname__}", 1))
    file = models[0].record
    if file is None:
        code = sources.bytes_hash(sources.EVERYTHING)
        return cached([name, options, code, [model.key for model in models]], lambda: function(*models, **options))
    asked, of = [name, options, version], [[model.name, mark(model.line)] for model in models]
    key = kept_under(asked, of)
    known, described = measured_under(file, key), f"{name} of {models[0].described}"
    if known is None and any(model.measured_only for model in models):
        raise NotMeasured(f"{described} was not measured")
    if known is None:
        value = json.loads(json.dumps(function(*models, **options)))  # as it will be read
        made = {"derived": key, "asked": asked, "of": of, "described": described, "value": value}
        # another process may have been faster
        known = append(file, made, unless=functools.partial(measured_under, file, key)) or made
    return known["value"]


def kept_under(asked: Sequence, of: Sequence) -> str:
    """What a measurement is kept under; asked: its name, options and version; of: name and `mark` of each run."""
    return digest([*asked, of])[:24]


def asked_by(line: Mapping) -> list | None:
    """Name, options and version of a line of a measurement. An older line has the path of its function and a hash of
    its code, which results/measures.json translates; None where that does not know them."""
    name, options, version = line.get("asked", (None, {}, 0))
    if isinstance(version, str):
        known = committed(repository_root() / "results" / "measures.json")
        name, version = known.get(name, {}).get(version, (None, 0))
    return [name, options, version] if name else None


def cached(key: list, build: Callable[[], Any]) -> Any:
    """The plain data that `build()` returns, kept in the cache under a key that is plain data too."""

    def write(made: Path) -> None:
        (made / "value.json").write_text(json.dumps(build()), encoding="utf8")

    place = kept_folder(cache_root() / "derived" / digest(key)[:24], write)
    return json.loads((place / "value.json").read_text(encoding="utf8"))
