"""The packages of the papers, and the methods of all of them.

It stands apart from catalogue.py so that only what compares all methods depends on all papers: training/sources.py
reads EVERY_PAPER, because an import that is found at run time cannot be seen in the source.
"""

import fnmatch
import importlib
import pkgutil
import types

import experiments
from experiments.figures.style import Names
from experiments.methods import BASELINES, Method

EVERY_PAPER = "experiments.*.methods"


def packages() -> list[str]:
    """The names of the papers' packages: the sub-packages of experiments that hold a methods.py, in whatever folder of
    that package's path they lie."""
    return [
        package.name
        for package in pkgutil.iter_modules(experiments.__path__, "experiments.")
        if package.ispkg and "methods" in _inside(package)
    ]


def _inside(package: pkgutil.ModuleInfo) -> set[str]:
    spec = package.module_finder.find_spec(package.name, None)  # without importing it
    return {module.name for module in pkgutil.iter_modules(spec.submodule_search_locations if spec else [])}


def modules() -> dict[str, types.ModuleType]:
    """The methods.py of each paper by the paper's id, in the order of the ids."""
    by_paper = {}
    for package in packages():
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            if fnmatch.fnmatch(module.name, EVERY_PAPER):
                by_paper[package.rpartition(".")[2]] = importlib.import_module(module.name)
    return by_paper


def methods() -> dict[str, Method]:
    """The shared baselines, then the METHODS of each paper, papers in the order of their names."""
    return dict(BASELINES) | {name: method for room in modules().values() for name, method in room.METHODS.items()}


def names() -> Names:
    """The colours of all methods, for figures in which those of several papers stand."""
    return Names({name: method.color for name, method in methods().items()})
