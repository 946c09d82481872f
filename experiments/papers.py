"""The packages of the papers, and the methods of all of them. Only what compares all methods imports this file."""

import importlib
import types
from pathlib import Path

import experiments
from experiments.figures.style import Names
from experiments.methods import BASELINES, Method


def packages() -> list[str]:
    """The names of the papers' packages: the sub-packages of experiments that hold a methods.py."""
    files = (path for folder in experiments.__path__ for path in Path(folder).glob("*/methods.py"))
    return sorted(f"experiments.{path.parent.name}" for path in files)


def modules() -> dict[str, types.ModuleType]:
    """The methods.py of each paper by the paper's id, in the order of the ids."""
    return {package.rpartition(".")[2]: importlib.import_module(f"{package}.methods") for package in packages()}


def methods() -> dict[str, Method]:
    """The shared baselines, then the METHODS of each paper, papers in the order of their names."""
    return dict(BASELINES) | {name: method for module in modules().values() for name, method in module.METHODS.items()}


def names() -> Names:
    """The colours of all methods, for figures in which those of several papers stand."""
    return Names({name: method.color for name, method in methods().items()})
