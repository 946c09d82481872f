"""Which notebook trains what, and which claims are tested: found by looking into the rooms.

A room is any sub-package of dmlrepro.papers, in whatever folder of that package's path it lies. Its modules state their
notebooks as NOTEBOOKS, a list of `Notebook`, and the tests of the paper's claims as TESTS, {claim id: ClaimTest}.
A new paper is a room with methods.py (its records with their colours, labels and printed names), claims.py and a module
per study.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from dmlrepro import papers
from dmlrepro.evidence.claims import ClaimTest
from dmlrepro.papers.notebook import Notebook


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
