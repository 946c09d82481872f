"""The methods of all papers, found by looking into the rooms.

It stands apart from catalogue.py so that only what compares all methods depends on all rooms: training/sources.py reads
EVERY_ROOM, because an import that is found at run time cannot be seen in the source.
"""

import fnmatch
import importlib
import pkgutil
import types

from dmlrepro import papers
from dmlrepro.figures.style import Names
from dmlrepro.papers.methods import BASELINES, Method

EVERY_ROOM = "dmlrepro.papers.*.methods"


def modules() -> dict[str, types.ModuleType]:
    """The methods.py of each paper by the paper's id, in the order of the ids."""
    by_paper = {}
    for room in pkgutil.iter_modules(papers.__path__, "dmlrepro.papers."):
        if room.ispkg:
            for module in pkgutil.iter_modules(importlib.import_module(room.name).__path__, f"{room.name}."):
                if fnmatch.fnmatch(module.name, EVERY_ROOM):
                    by_paper[room.name.rpartition(".")[2]] = importlib.import_module(module.name)
    return by_paper


def methods() -> dict[str, Method]:
    """The shared baselines, then the METHODS of each room, rooms in the order of their names."""
    return dict(BASELINES) | {name: method for room in modules().values() for name, method in room.METHODS.items()}


def names() -> Names:
    """The colours of all methods, for figures in which those of several papers stand."""
    return Names({name: method.color for name, method in methods().items()})
