"""The record: finished runs as lines of text in results/<profile>/runs/<notebook>.jsonl, kept with git, so that no run
is trained twice and none is lost with a machine.

A line of a run holds what tables need of it: the rows, the curve of its loss, its cost, and what made it. Its name,
`run`, is a digest of its spec, images and first weights, not of code or machine; `source` is the hash of the code that
trained it. What was measured on its weights later is a line of its own. Every line ends with its own sha256, which
finds accidents and not forgers. Files grow by whole lines only, so that pieces of a study from several machines merge
as text.

A line serves a spec if its source is that of the present code, or one that `checking.check` accepted in its place; any
other is stale: it is shown and marked, and no verdict rests on it. Profile quick has no record: it trains.
"""

import ast
import copy
import fcntl
import functools
import hashlib
import importlib
import inspect
import json
import os
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dmlrepro.files import FullDisk, cache_root, find_repository, read_json, replacing, repository_root, set_aside
from dmlrepro.training import sources

CURRENT, ACCEPTED, STALE = "current", "accepted", "stale"
SUM = "sha256"
STRETCHES = 50  # of a curve
NOT_MEASURING = ("training", "datasets", "networks", "files", "evidence")
_PARTICULAR = ("described", "labels", "cost", "made", SUM)  # what two lines of one run need not have in common
KINDS = {None: "whole networks", "head": "heads"}  # by what is trained; a block begins a tail


def folder() -> Path:
    """The folder of profiles whose runs/ hold the record: environment variable DMLREPRO_RECORD, else results/."""
    return repository_root() / os.environ.get("DMLREPRO_RECORD", "results")


def file_of(profile: str, notebook: str) -> Path | None:
    """Where the runs of a notebook are recorded; None for profile quick, which keeps none, and outside a repository."""
    if profile == "quick" or find_repository() is None:
        return None
    return folder() / profile / "runs" / f"{notebook}.jsonl"


def files(profile_folder: Path | None = None) -> list[Path]:
    """Every file of the record, or those of one folder of runs."""
    return sorted(folder().glob("*/runs/*.jsonl") if profile_folder is None else profile_folder.glob("*.jsonl"))


def digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def name_of(what: Mapping) -> str:
    """The name of a run from what its key is made of (`keys.identity_of`), without the code and the machine."""
    return digest({"spec": asked_of(what), "data": what["data"], "weights": what["weights"]})[:24]


def asked_of(what: Mapping) -> dict:
    """The spec of a run without its threads, which are where it is trained."""
    return {name: value for name, value in what["spec"].items() if name != "threads"}


# --- lines ------------------------------------------------------------------------------------------------------------


def append(file: Path, content: dict, unless: Callable[[], Any] = lambda: None) -> Any:
    """Add a line to a file of the record, whole and flushed to the disk. Half a line of a killed process goes.

    unless: asked while no other process writes; what it finds, if it does, is returned, and nothing is added.

    Raises:
        FullDisk: it does not fit on its disk; names the file.
    """
    with _alone_with(file), file.open("a+b") as opened:
        if (there_already := unless()) is not None:
            return there_already
        opened.seek(0)
        there = opened.read()
        whole = there[: there.rfind(b"\n") + 1]
        last = there[len(whole) :] + b"\n" if _content(there[len(whole) :]) else b""  # an editor took its end
        opened.truncate(len(whole))
        try:
            opened.write(last + _text(content).encode())
            opened.flush()
            os.fsync(opened.fileno())
        except OSError as error:
            opened.truncate(len(whole))
            raise FullDisk(f"cannot write to {file} ({error}): free space there and start again") from error
    return None


def rewrite(file: Path, changed: Callable[[dict], dict | None]) -> None:
    """Put what `changed` makes of each line of a file in its place; None: it goes."""
    with _alone_with(file):
        kept = [new for line in lines(file) if (new := changed(line)) is not None]
        with replacing(file) as temporary:
            temporary.write_text("".join(map(_text, kept)), encoding="utf8")


def _text(content: dict) -> str:
    content = json.loads(json.dumps(content))  # as it will be read
    return json.dumps(content | {SUM: digest(content)}, separators=(",", ":")) + "\n"


def _content(line: bytes) -> dict | None:
    """What a line holds; None if it is not as it was written."""
    try:
        content = json.loads(line)
        return content if content.pop(SUM) == digest(content) else None
    except (ValueError, LookupError, AttributeError, TypeError):
        return None


@contextmanager
def _alone_with(file: Path) -> Iterator[None]:
    """No two processes change the files of a folder at a time, on this machine."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # this file system has no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class _Read(NamedTuple):
    """A file as it was read last: so many bytes with this hash, and what their lines hold."""

    size: int
    sha256: str
    lines: list[dict]


_read: dict[Path, _Read] = {}


def lines(file: Path) -> list[dict]:
    """What the lines of a file hold; the last one does not count before it is whole. A file that has only grown is
    parsed from there on.

    Raises:
        ValueError: a line is not as it was written; names file and line.
    """
    text = file.read_bytes()
    known = _read.get(file, _Read(0, hashlib.sha256().hexdigest(), []))
    if hashlib.sha256(text[: known.size]).hexdigest() != known.sha256:
        known = _Read(0, "", [])
    contents = list(known.lines)
    *whole, last = text[known.size :].split(b"\n")
    for line in [*whole, last] if _content(last) else whole:
        content = _content(line)
        if content is None:
            raise ValueError(
                f"{file}, line {len(contents) + 1} is not what was written: take it from git, or remove the line, and "
                "its run is trained again"
            )
        contents.append(content)
    if not _content(last):
        size = len(text) - len(last)
        _read[file] = _Read(size, hashlib.sha256(text[:size]).hexdigest(), contents)
    return contents


def of_runs(runs_folder: Path) -> dict[str, dict[str, dict]]:
    """The lines of runs in a folder: by the name of the run, then by the source that trained it.

    Raises:
        ValueError: a line was edited, or two lines of one run and one source differ in more than what machines and
            costs they had; names both.
    """
    by_name: dict[str, dict[str, dict]] = {}
    where: dict[tuple[str, str], str] = {}
    for file in files(runs_folder):
        for number, line in enumerate(lines(file), start=1):
            if "run" not in line:
                continue
            name, source = line["run"], line["source"]
            known = by_name.setdefault(name, {}).setdefault(source, line)
            place = f"{file}, line {number}"
            first = where.setdefault((name, source), place)
            if known is not line and _general(known) != _general(line):
                raise ValueError(
                    f"{first} and {place} have different rows of run {name} ({line['described']}): remove one of them, "
                    "and what was measured on it"
                )
    return by_name


def _general(line: Mapping) -> dict:
    return {name: value for name, value in line.items() if name not in _PARTICULAR}


def find(runs_folder: Path, name: str, source: str) -> tuple[dict, str] | None:
    """The line that serves a run, and whether it is current, accepted or stale; None without any.

    source: the hash of the present code.
    """
    by_source = of_runs_once(runs_folder).get(name, {})
    if source in by_source:
        return by_source[source], CURRENT
    for older, line in by_source.items():
        if serves(kind_of(line), older, source):
            return line, ACCEPTED
    return (list(by_source.values())[-1], STALE) if by_source else None


def kind_of(line: Mapping) -> str:
    """ "potential_field, supervised, tails": the file of a line's loss, its scheme, and what is trained."""
    spec = line["spec"]
    return kind(spec.get("loss"), spec.get("scheme", "supervised"), spec.get("train_from"))


def kind(loss: str | None, scheme: str, train_from: str | None) -> str:
    """`kind_of` a run, from what its spec says."""
    return f"{(loss or 'untrained').partition('.')[0]}, {scheme}, {KINDS.get(train_from, 'tails')}"


def of_runs_once(runs_folder: Path) -> dict[str, dict[str, dict]]:
    """`of_runs`, read again only where a file has changed."""
    return _of_runs(runs_folder, _states(runs_folder))


def _states(runs_folder: Path) -> tuple:
    return tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files(runs_folder))


@functools.lru_cache(maxsize=4)
def _of_runs(runs_folder: Path, states: tuple) -> dict[str, dict[str, dict]]:
    return of_runs(runs_folder)


@functools.lru_cache(maxsize=4)
def _of_measurements(runs_folder: Path, states: tuple) -> dict[str, dict]:
    """The lines of measurements by what they are kept under; ValueError where two of them differ, by name."""
    by_key: dict[str, dict] = {}
    for file in files(runs_folder):
        for number, line in enumerate(lines(file), start=1):
            if "derived" in line and by_key.setdefault(line["derived"], line)["value"] != line["value"]:
                raise ValueError(
                    f"{file}, line {number} has another value of {line['described']} than an earlier line: remove one"
                )
    return by_key


# --- accepted code ----------------------------------------------------------------------------------------------------


def serves(kind: str, older: str, present: str, root: Path | None = None) -> bool:
    """Whether runs of a kind that one code trained serve another one: it is the same, or was accepted in its place."""
    return older == present or kind in accepted(root).get(present, {}).get(older, [])


def accepted(root: Path | None = None) -> dict[str, dict[str, list[str]]]:
    """{hash of a run's code: {hash of older code: the kinds of runs that both were found to train alike}}; root: the
    folder of profiles, default `folder`."""
    path = (root or folder()) / "accepted.json"
    if not path.exists():
        return {}
    there = path.stat()
    return _accepted_as(path, there.st_ino, there.st_mtime_ns)


@functools.lru_cache(8)  # it is asked about every line of the record
def _accepted_as(path: Path, inode: int, written: int) -> dict[str, dict[str, list[str]]]:
    return read_json(path, "remove it, and `python -m dmlrepro records check` again")


def accept(by_present: Mapping[str, Mapping[str, Iterable[str]]]) -> None:
    """Add to what is accepted."""
    path = folder() / "accepted.json"
    with _alone_with(path):
        merged = copy.deepcopy(accepted())
        for present, by_older in by_present.items():
            for older, kinds in by_older.items():
                known = merged.setdefault(present, {})
                known[older] = sorted({*known.get(older, []), *kinds})
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n", encoding="utf8")


# --- what is measured on a finished run -------------------------------------------------------------------------------


class NotMeasured(Exception):
    """Something is asked of a run of the record that was not measured on it."""


def derived(models: Sequence, function: Callable, **options: Any) -> Any:
    """function(*models, **options), made once: kept in the record of the first model, or in the cache if that has none.

    function: a function of a module, whose value is plain data as JSON has it. What it does is part of what the value
        is kept under, see `code_of`.
    """
    asked = [f"{function.__module__}.{function.__qualname__}", options, code_of(function)]
    file = models[0].record
    if file is None:
        return _cached([*asked, [model.key for model in models]], functools.partial(function, *models, **options))
    of = [[model.name, model.source] for model in models]
    key = kept_under(asked, of)

    known = measured_under(file, key)
    if known is None and any(model.measured_only for model in models):
        raise NotMeasured
    if known is None:
        described = f"{asked[0]} of {models[0].described}"
        value = json.loads(json.dumps(function(*models, **options)))  # as it will be read
        made = {"derived": key, "asked": asked, "of": of, "described": described, "value": value}
        # another process may have been faster
        known = append(file, made, unless=functools.partial(measured_under, file, key)) or made
    return known["value"]


def measured_under(file: Path, key: str) -> dict | None:
    """The line of a measurement in any file beside this one."""
    return _of_measurements(file.parent, _states(file.parent)).get(key)


def kept_under(asked: Sequence, of: Sequence) -> str:
    """What a measurement is kept under in the record; asked: the name of its function, the options and `code_of` it;
    of: name and source of each run."""
    return digest([*asked, of])[:24]


def _cached(key: list, build: Callable[[], Any]) -> Any:
    path = cache_root() / "derived" / f"{digest(key)[:24]}.json"
    if path.exists():
        try:
            content = json.loads(path.read_text(encoding="utf8"))
            if content[SUM] == digest([key, content["value"]]):
                return content["value"]
            set_aside(path, "its sha256 is not the one that it holds")
        except (ValueError, LookupError, TypeError) as error:
            set_aside(path, error)
    value = json.loads(json.dumps(build()))  # as it will be read
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({"value": value, SUM: digest([key, value])}), encoding="utf8")
    return value


@functools.cache
def code_of(function: Callable) -> str:
    """A hash of what a function does, and every function and class of this package that it names, with the plain
    constants that they name; but not those of NOT_MEASURING: what gives images and trained networks has been the same
    since the run was trained."""
    seen: dict[str, Any] = {}
    todo: list[Any] = [function]
    while todo:
        code = todo.pop()
        name = f"{code.__module__}.{code.__qualname__}"
        if name not in seen:
            named = list(_named_by(code))
            seen[name] = [sources.said(textwrap.dedent(inspect.getsource(code))), *filter(_is_plain, named)]
            todo += [plain for plain in map(_code, named) if plain is not None]
    return digest(seen)[:16]


def _is_plain(value: Any) -> bool:
    """Whether a constant is plain data, the same in every process."""
    try:
        return json.dumps(value) is not None
    except (TypeError, ValueError):
        return False


def _code(value: Any) -> Any:
    """The function or class of this package that a value is, as it was written; else None."""
    plain = inspect.unwrap(value) if callable(value) else None
    return plain if (inspect.isfunction(plain) or inspect.isclass(plain)) and _measures(plain.__module__) else None


def _named_by(what: Any) -> Iterator[Any]:
    """The values of the names that code mentions, by themselves or as `module.name` of this package, in their order."""
    scope, named, own = dict(vars(sys.modules[what.__module__])), [], set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(what)))):
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            module = importlib.import_module(node.module or "")
            scope |= {alias.asname or alias.name: _imported(module, alias.name) for alias in node.names}
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.Name):
            named.append((node.id, ""))
            own |= {node.id} if isinstance(node.ctx, ast.Store) else set()
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            named.append((node.value.id, node.attr))
    for first, second in named:
        value = scope.get(first)
        if second and isinstance(value, types.ModuleType) and _is_ours(value.__name__):
            value = vars(value).get(second)
        elif second:
            value = None
        if first not in own and value is not None:
            yield value


def _imported(module: types.ModuleType, name: str) -> Any:
    """`from module import name`, also of a module that nothing has imported yet."""
    if not hasattr(module, name) and hasattr(module, "__path__"):
        importlib.import_module(f"{module.__name__}.{name}")
    return getattr(module, name, None)


def _measures(module: str) -> bool:
    return _is_ours(module) and module.split(".")[1] not in NOT_MEASURING


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def curve(losses: np.ndarray) -> list[list[float]]:
    """[step, mean loss] of up to STRETCHES equal stretches of a run: its curve in the digits that a figure shows."""
    steps = np.arange(1, len(losses) + 1)
    parts = np.array_split(np.arange(len(losses)), min(STRETCHES, len(losses)) or 1)
    return [[float(steps[part].mean()), float(f"{losses[part].mean():.6g}")] for part in parts if len(part)]
