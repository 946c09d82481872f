"""The examples in docstrings of what is imported by others say what comes out."""

import doctest
import importlib
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "dmlrepro"
MODULES = ["metrics", "retrieval", "samplers", "vmf"]
MODULES += [f"losses.{path.stem}" for path in sorted((PACKAGE / "losses").glob("*.py")) if path.stem != "__init__"]


def test_examples_give_what_they_say():
    found = [doctest.testmod(importlib.import_module(f"dmlrepro.{name}")) for name in MODULES]
    assert sum(each.failed for each in found) == 0 and sum(each.attempted for each in found) >= 8
