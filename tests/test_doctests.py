"""The examples in docstrings of what is imported by others say what comes out."""

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dmlrepro"
MODULES = ["metrics", "retrieval", "samplers", "vmf"]
MODULES += [f"losses.{path.stem}" for path in sorted((PACKAGE / "losses").glob("*.py")) if path.stem != "__init__"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name):
    assert doctest.testmod(importlib.import_module(f"dmlrepro.{name}")).failed == 0


def test_there_are_examples():
    attempted = [doctest.testmod(importlib.import_module(f"dmlrepro.{name}")).attempted for name in MODULES]
    assert sum(attempted) >= 8
