"""Which notebook trains what, and which claims are tested: found by looking into the rooms.

A room is any sub-package of dmlrepro.papers, in whatever folder of that package's path it lies. Its modules state their
notebooks as NOTEBOOKS, a list of `Notebook`, and the tests of the paper's claims as TESTS, {claim id: ClaimTest}.
A new paper is a room with methods.py (its records with their colours, labels and printed names), claims.py and a module
per study.
"""

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from dmlrepro import papers
from dmlrepro.evidence import results
from dmlrepro.evidence.claims import ClaimTest
from dmlrepro.papers.params import Params


def nothing_to_train(params: Params) -> list:
    return []


def nothing_to_measure(run, params: Params) -> list:
    return []


@dataclass(frozen=True)
class Notebook:
    """What a notebook computes, so that it can be computed without the notebook.

    params: the class of its parameters, which names it.
    specs: its parameters -> the RunSpecs it trains, in the order of its tables.
    table: (its finished runs in that order, its parameters) -> the tidy table it saves; None: it saves none and reads
        what others left in results/, so the workflow executes it after these are published.
    measures: (a finished run, its parameters) -> what is measured on its weights alone, rows that the table holds too.
    planned: its parameters -> the same runs without training any; None: `specs` without a search does not train.
    ratios: (the costs it saves, its parameters) -> a tidy table of their ratios, where claims are about costs.
    findings: sentences about what no claim says, the main one first, beside those that the judge makes of its claims;
        `stored.say` leaves out those for which a table has no rows. Those of a notebook without a table take no
        argument.
    """

    params: type[Params]
    specs: Callable = nothing_to_train
    table: Callable | None = results.tidy
    measures: Callable = nothing_to_measure
    planned: Callable | None = None
    ratios: Callable | None = None
    findings: tuple[Callable[..., str], ...] = ()

    def specs_untrained(self, params: Params) -> list:
        """The runs as `plan` and `show` list them: a search, which would train, is left out."""
        if getattr(params, "search_trials", 0):
            none: dict[str, Any] = {"search_trials": 0}
            params = dataclasses.replace(params, **none)
            object.__setattr__(params, "searches", dict)  # it begins where no committed search has been taken
        return (self.planned or self.specs)(params)


def notebooks() -> dict[str, Notebook]:
    """Every notebook by its name, sorted."""
    found = {entry.params.notebook: entry for module in _modules() for entry in getattr(module, "NOTEBOOKS", ())}
    return dict(sorted(found.items()))


def find(name: str) -> Notebook:
    """The entry of a notebook by its name, its number or its path; ValueError lists what exists."""
    stem = Path(name).stem
    known = notebooks()
    matches = [key for key in known if key == stem or key.split("_")[0] == stem]
    if len(matches) != 1:
        raise ValueError(f"no notebook {name!r}; there are {', '.join(known)}")
    return known[matches[0]]


def claims() -> dict[str, ClaimTest]:
    """The tests of all papers by claim id."""
    return {claim_id: test for module in _modules() for claim_id, test in getattr(module, "TESTS", {}).items()}


def claims_of(notebook: str) -> dict[str, ClaimTest]:
    """All tests of the paper of which a notebook settles some, by claim id; empty where it settles none."""
    for module in _modules():
        tests = getattr(module, "TESTS", {})
        if any(test.notebook == notebook for test in tests.values()):
            return tests
    return {}


def _modules() -> Iterator[ModuleType]:
    for room in pkgutil.iter_modules(papers.__path__, "dmlrepro.papers."):
        if room.ispkg:
            for module in pkgutil.iter_modules(importlib.import_module(room.name).__path__, f"{room.name}."):
                yield importlib.import_module(module.name)
