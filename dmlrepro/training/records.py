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
import functools
import hashlib
import importlib
import inspect
import json
import os
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dmlrepro.files import alone, cache_root, find_repository, read_json, replacing, repository_root, set_aside

CURRENT, ACCEPTED, STALE = "current", "accepted", "stale"
SUM = "sha256"
STRETCHES = 50  # of a curve
NOT_MEASURING = ("training", "datasets", "networks", "files", "evidence")
_PARTICULAR = ("cost", "made", SUM)  # what lines of one run from two machines need not have in common


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
    """The name of a run from what its key is made of (`runs.identity_of`), without the code."""
    return digest({name: what[name] for name in ("spec", "data", "weights")})[:24]


# --- lines ------------------------------------------------------------------------------------------------------------


def append(file: Path, content: dict) -> None:
    """Add a line to a file of the record, whole and flushed to the disk. Half a line of a killed process goes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with _alone_with(file), file.open("a+b") as opened:
        opened.seek(0)
        opened.truncate(opened.read().rfind(b"\n") + 1)
        opened.write(_text(content).encode())
        opened.flush()
        os.fsync(opened.fileno())


def keep_only(file: Path, wanted: Callable[[dict], bool]) -> None:
    """Leave those lines of a file that are wanted, of runs and of what was measured on them."""
    with _alone_with(file):
        kept = [line for line in lines(file) if wanted(line)]
        with replacing(file) as temporary:
            temporary.write_text("".join(map(_text, kept)), encoding="utf8")


def _text(content: dict) -> str:
    return json.dumps(content | {SUM: digest(content)}, separators=(",", ":")) + "\n"


def _alone_with(file: Path):
    """No two processes change a file at a time. Its lock lies in the cache, because results/ is in git."""
    return alone(cache_root() / "locks" / f"{digest(str(file))[:16]}.lock")


def lines(file: Path) -> list[dict]:
    """What the lines of a file hold; the last one does not count before it is whole.

    Raises:
        ValueError: a line is not as it was written; names file and line.
    """
    state = file.stat()
    return _lines(file, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=256)
def _lines(file: Path, written: int, size: int) -> list[dict]:
    found = []
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], start=1):
        try:
            content = json.loads(line)
            sound = content.pop(SUM) == digest(content)
        except (ValueError, LookupError, AttributeError):
            sound = False
        if not sound:
            raise ValueError(
                f"{file}, line {number} is not what was written: take it from git, or remove the line, and its run is "
                "trained again"
            )
        found.append(content)
    return found


def of_runs(runs_folder: Path) -> dict[str, dict[str, dict]]:
    """The lines of runs in a folder: by the name of the run, then by the source that trained it.

    Raises:
        ValueError: a line was edited, or two lines of one run and one source differ in more than what machines and
            costs they had; names both.
    """
    found: dict[str, dict[str, dict]] = {}
    where: dict[tuple[str, str], Path] = {}
    for file in files(runs_folder):
        for line in lines(file):
            if "run" not in line:
                continue
            name, source = line["run"], line["source"]
            known = found.setdefault(name, {}).setdefault(source, line)
            first = where.setdefault((name, source), file)
            if _general(known) != _general(line):
                raise ValueError(
                    f"{first} and {file} have different rows of run {name} ({line['described']}): remove one of them"
                )
    return found


def _general(line: Mapping) -> dict:
    return {name: value for name, value in line.items() if name not in _PARTICULAR}


def find(runs_folder: Path, name: str, source: str) -> tuple[dict, str] | None:
    """The line that serves a run, and whether it is current, accepted or stale; None without any.

    source: the hash of the present code.
    """
    by_source = of_runs_once(runs_folder).get(name, {})
    if source in by_source:
        return by_source[source], CURRENT
    for each in accepted().get(source, []):
        if each in by_source:
            return by_source[each], ACCEPTED
    return (list(by_source.values())[-1], STALE) if by_source else None


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
    return {line["derived"]: line for file in files(runs_folder) for line in lines(file) if "derived" in line}


# --- accepted code ----------------------------------------------------------------------------------------------------


def accepted() -> dict[str, list[str]]:
    """{hash of a run's code: hashes of older code that was found to do the same}, see checking.py."""
    path = folder() / "accepted.json"
    return read_json(path, "take it from git, or `python -m dmlrepro records check`") if path.exists() else {}


def accept(found: Mapping[str, Sequence[str]]) -> None:
    """Add to what is accepted; of code that is no longer the present one nothing else needs to know."""
    merged = accepted() | {source: sorted({*accepted().get(source, []), *older}) for source, older in found.items()}
    with replacing(folder() / "accepted.json") as temporary:
        temporary.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n", encoding="utf8")


# --- what is measured on a finished run -------------------------------------------------------------------------------


def derived(models: Sequence, function: Callable, **options) -> Any:
    """function(*models, **options), made once: kept in the record of the first model, or in the cache if that has none.

    function: a function of a module, whose value is plain data as JSON has it. Its code is part of what the value is
        kept under, with that of all functions of this package that it names.
    """
    asked = [f"{function.__module__}.{function.__qualname__}", options, code_of(function)]
    file = models[0].record
    if file is None:
        return _cached([*asked, [model.key for model in models]], functools.partial(function, *models, **options))
    of = [[model.name, model.source] for model in models]
    key = digest([*asked, of])[:24]
    known = _of_measurements(file.parent, _states(file.parent)).get(key)
    if known is None:
        described = f"{asked[0]} of {models[0].described}"
        known = {"derived": key, "of": of, "described": described, "value": function(*models, **options)}
        append(file, known)
    return known["value"]


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
    """A hash of a function's source and of that of every function and class of this package that it names, but those of
    NOT_MEASURING: what gives images and trained networks has been the same since the run was trained."""
    seen: dict[str, str] = {}
    todo: list[Any] = [function]
    while todo:
        each = todo.pop()
        name = f"{each.__module__}.{each.__qualname__}"
        if name not in seen:
            seen[name] = inspect.getsource(each)
            todo += _named_by(each)
    return digest(seen)[:16]


def _named_by(what: Any) -> Iterator[Any]:
    """Functions and classes of this package that code names, by themselves or as `module.name`."""
    scope, named, own = dict(vars(sys.modules[what.__module__])), [], set()
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(what)))):
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            module = importlib.import_module(node.module or "")
            scope |= {alias.asname or alias.name: getattr(module, alias.name, None) for alias in node.names}
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.Name):
            named.append((node.id, ""))
            own |= {node.id} if isinstance(node.ctx, ast.Store) else set()
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            named.append((node.value.id, node.attr))
    for first, second in named:
        each = None if first in own else scope.get(first)
        if second:
            each = vars(each).get(second) if isinstance(each, types.ModuleType) else None
        plain = inspect.unwrap(each) if callable(each) else None
        if (inspect.isfunction(plain) or inspect.isclass(plain)) and _measures(plain.__module__):
            yield plain


def _measures(module: str) -> bool:
    return _is_ours(module) and module.split(".")[1] not in NOT_MEASURING


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def curve(losses: np.ndarray) -> list[list[float]]:
    """[step, mean loss] of up to STRETCHES equal stretches of a run: its curve in the digits that a figure shows."""
    steps = np.arange(1, len(losses) + 1)
    parts = np.array_split(np.arange(len(losses)), min(STRETCHES, len(losses)) or 1)
    return [[float(steps[part].mean()), float(f"{losses[part].mean():.6g}")] for part in parts if len(part)]
