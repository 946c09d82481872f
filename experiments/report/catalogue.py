"""Which studies there are, and which claims are tested: found by looking into the packages of the papers.

Their modules, and those of experiments.across, state a `Study` per notebook. A new paper is a package with methods.py
(its records with their colours), claims.py (TESTS, the tests of its claims by claim id) and a module per study.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

from experiments import papers
from experiments.analysis.claims import ClaimTest
from experiments.study import Study


def studies() -> dict[str, Study]:
    """Every study by the name of its notebook, sorted."""
    return dict(sorted({study.name: study for study in _stated()}.items()))


def find(name: str) -> Study:
    """The study of a notebook by its name, its number or its path; ValueError lists those that it may be."""
    stem = Path(name).stem
    known = studies()
    matches = [key for key in known if key == stem or key.split("_")[0] == stem.zfill(2)]
    if len(matches) != 1:
        alike = [key for key in known if stem.lower() in key] or difflib.get_close_matches(stem, known)
        raise ValueError(f"no notebook {name!r}; there are {', '.join(alike or known)}")
    return known[matches[0]]


def claims() -> dict[str, ClaimTest]:
    """The tests of all papers by claim id."""
    return {claim_id: test for study in _stated() for claim_id, test in study.claims.items()}


def _stated() -> Iterator[Study]:
    for package in (*papers.packages(), "experiments.across"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            stated = vars(importlib.import_module(module.name)).values()
            yield from (study for study in stated if isinstance(study, Study))
