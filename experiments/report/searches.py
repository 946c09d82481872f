"""The committed searches of methods: which there are to run, run side by side, and which tables rest on them.

A search belongs to a method and to the conditions of a notebook's runs (`Params.conditions`); every notebook on that
data set, network and budget takes it. A complete one is frozen: tables name its sha256, and only `--again` replaces it.
"""

import functools
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from experiments import papers, progress
from experiments.analysis import saving
from experiments.datasets.manifests import is_own
from experiments.files import repository_root
from experiments.methods import Method, searched_ranges, spec_of
from experiments.params import Params
from experiments.study import Study
from experiments.training import protocols, scheduling, search
from experiments.training.spec import RunSpec

PROFILE = "small"  # at quick nothing is tuned, and at paper the papers' own settings hold


def wanted(
    studies: Iterable[Study], params_of: Callable[[Study], Params], methods: Collection[str] = ()
) -> list[dict[str, Any]]:
    """The searches whose results the notebooks' runs would take, each once, as arguments of `search.search`; a variant
    has that of another method. methods: only these; none: all that the notebooks train and that can be searched.

    ValueError: another profile than PROFILE; the reader's own images; a method that no notebook trains, or that cannot
    be searched in any, by name.
    """
    records = papers.methods()
    by_path: dict[Path, dict[str, Any]] = {}
    found: set[str] = set()
    without: dict[str, ValueError] = {}  # why a notebook has none, as one that varies a condition of searches
    for study in (study for study in studies if study.takes_searches and not study.own_search):
        params = params_of(study).untuned()
        if params.profile != PROFILE:
            raise ValueError(f"searches are for profile {PROFILE!r}, whose notebooks take them, got {params.profile!r}")
        if is_own(params.dataset):
            raise ValueError(f"searches are committed, and {params.dataset!r} are images of your own; name a data set")
        trained = [spec for spec in study.specs_untrained(params) if spec.loss]
        searchable = [name for name, method in records.items() if method.search_space is not None]
        for name in dict.fromkeys(spec.method for spec in trained if spec.method in (methods or searchable)):
            try:
                tuning = _wanted(records, records[name].searched_as or name, trained, params)
                by_path.setdefault(tuning["path"], tuning)
                found.add(name)
            except ValueError as error:
                without.setdefault(name, error)
    if errors := [error for name, error in without.items() if name not in found]:
        raise errors[0]
    if missing := set(methods) - found:
        raise ValueError(f"the notebooks train no {', '.join(sorted(missing))} with these parameters")
    return [*by_path.values()]


def _wanted(records: Mapping[str, Method], name: str, trained: Sequence[RunSpec], params: Params) -> dict[str, Any]:
    method = records[name]
    how: dict[str, Any] = {"ranges": searched_ranges(method)}
    plain = spec_of(method, params)
    own = (plain.loss_options, plain.algorithm_options)
    levels = [spec for spec in trained if spec.method == name]
    levels = [spec for spec in levels if not spec.setting or (spec.loss_options, spec.algorithm_options) == own]
    if not levels:
        raise ValueError(f"{params.notebook} trains only variants of {name}; search it in one that trains {name}")
    # of those that differ least one without a setting, else the first
    default = min(levels, key=lambda spec: (len(_differences(spec, plain)), spec.setting != ""))
    conditions = params.conditions()
    budget: dict[str, Any] = {name: value or None for name, value in params.search_budget().items()}
    default = default.replace(seed=0, fold=None, folds=plain.folds, **budget)
    if wrong := [field for field in _differences(default, plain.replace(**budget)) if field in conditions]:
        raise ValueError(f"{params.notebook} has no run of {name} with the {' and '.join(wrong)} of its parameters")
    alike = [record.name for record in records.values() if record.searched_as == name]
    if rates := params.rates:
        how = {"ranges": {"lr": search.Range(min(rates), max(rates), log=True)}, "trials": len(rates), "finalists": 0}
        how |= {"grid": [{"lr": rate} for rate in rates[1:]], "metric": "R@1"}
        how["models"] = functools.partial(protocols.on_thirds, curves=True)
    return how | {
        "spec": default,
        "path": search.folder(params.profile) / params.search_name(name),
        "fixed": tuple(method.param_lrs),
        "about": {"method": name, "methods": [name, *alike], "conditions": conditions},
    }


def _differences(spec: RunSpec, plain: RunSpec) -> list[str]:
    one, other = spec.as_dict(), plain.as_dict()
    return [name for name in one if one[name] != other[name] and name not in ("seed", "fold", "folds")]


def run(every: Sequence[dict[str, Any]], jobs: int | None = None, again: bool = False) -> list[search.Search]:
    """The searches in their order, those that are not complete run side by side with one thread each.

    every: of `wanted`. jobs: how many at a time; None: one per core. again: anew also where they are complete.
    ValueError: jobs below 1; a search of other conditions lies in the place of one; one failed, once all have ended.
    """
    todo = {}
    for tuning in every:
        path, here = tuning["path"], tuning["about"]["conditions"]
        known = search.read(path) if path.exists() and not again else {"conditions": here, "trials": []}
        if differs := sorted(name for name, value in here.items() if known["conditions"][name] != value):
            raise ValueError(
                f"{path} was made with another {' and '.join(differs)}; ask for that, or `--again` replaces it"
            )
        if not known["trials"] or len(known["trials"]) < tuning.get("trials", 0):  # of a grid, which may have grown
            todo[str(path)] = functools.partial(search.search, **tuning, again=again)
    workers = scheduling.workers_for(jobs, len(todo))
    parallel, alone = (todo, {}) if workers > 1 else ({}, todo)
    report = progress.reporter("searches done", len(todo))
    if failures := scheduling.do_all(parallel, alone, workers, lambda path: None, report):
        lines = [f"  {Path(path).stem}: {error or type(error).__name__}" for path, error in failures.items()]
        said = f"{len(failures)} of {len(todo)} searches failed, the others are complete"
        raise ValueError("\n".join([f"{said}:", *lines]))
    return [search.read(tuning["path"]) for tuning in every]


def at_an_end(record: search.Search) -> list[str]:
    """The hyperparameters whose chosen value lies within 5 % of an end of its range: the best may lie beyond it."""
    ends = []
    for name, value in record["found"]["options"].items():
        if bounds := record["ranges"].get(name):
            three = (bounds["low"], bounds["high"], value)
            low, high, chosen = map(math.log, three) if bounds["log"] else three
            if not 0.05 < (chosen - low) / (high - low) < 0.95:
                ends.append(name)
    return ends


def outdated(folder: Path | None = None) -> dict[str, list[str]]:
    """The tables that rest on searches which are no longer those of the files: {path: names of the files}. A table's
    record names each search with its sha256: a file that is gone, edited or made again is another."""
    root = folder or repository_root() / "results"
    by_table = {}
    for path in (path for profile in saving.PROFILES for path in saving.table_paths(root / profile)):
        others = []
        named = json.loads(path.with_suffix(".json").read_text(encoding="utf8")).get("searches", {})
        for file, digest in {entry["file"]: entry["sha256"] for entry in named.values()}.items():
            with suppress(OSError, ValueError):  # it is gone, or no search
                if search.read(path.parent / "searches" / file)["sha256"] == digest:
                    continue
            others.append(file)
        if others:
            by_table[str(path.relative_to(root))] = others
    return by_table
