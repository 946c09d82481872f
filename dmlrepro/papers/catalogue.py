"""Which notebook trains what: the one place that knows every experiments file."""

import importlib
from collections.abc import Callable
from pathlib import Path

from dmlrepro.papers.params import Params


def notebooks() -> dict[str, tuple[type[Params], Callable]]:
    """{notebook name: (its Params class, its function Params -> list of RunSpec)}, sorted by name."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*/*.py")):
        module = importlib.import_module(f"dmlrepro.papers.{path.parent.name}.{path.stem}")
        found |= getattr(module, "NOTEBOOKS", {})
    return dict(sorted(found.items()))


def find(name: str) -> tuple[type[Params], Callable]:
    """The entry of a notebook by its name, its number or its path; ValueError lists what exists."""
    stem = Path(name).stem
    known = notebooks()
    matches = [key for key in known if key == stem or key.split("_")[0] == stem]
    if len(matches) != 1:
        raise ValueError(f"no notebook {name!r}; there are {', '.join(known)}")
    return known[matches[0]]
