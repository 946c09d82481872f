"""The packages of the papers, and the methods of all of them. Only what compares all methods imports this file."""

import importlib
from pathlib import Path

import experiments
from experiments.figures.style import Names
from experiments.methods import BASELINES, Method


def packages() -> list[str]:
    """The names of the papers' packages: the sub-packages of experiments that hold a methods.py."""
    files = (path for folder in experiments.__path__ for path in Path(folder).glob("*/methods.py"))
    return sorted(f"experiments.{path.parent.name}" for path in files)


def methods() -> dict[str, Method]:
    """The shared baselines, then the METHODS of each paper, papers in the order of their names."""
    found = dict(BASELINES)
    for package in packages():
        found |= importlib.import_module(f"{package}.methods").METHODS
    return found


def names() -> Names:
    """The colours of all methods, for figures in which those of several papers stand."""
    return Names({name: method.color for name, method in methods().items()})
