"""Imports point one way, as CONTRIBUTING.md says: read from the source of every file, lazy imports included."""

import ast
import graphlib
import json
from pathlib import Path

import pytest

from experiments import papers

ROOT = Path(__file__).parents[1]
PACKAGES = ("dmlrepro", "experiments")
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
PAPERS = tuple(papers.packages())
# From the top down. A file imports from its own folder and from lower floors; of what the papers share, of the single
# files of experiments and of those of the library, from other files there.
SHARED = tuple(
    f"experiments.{name}"
    for name in ("papers", "study", "studies", "methods", "params", "naming", "timing", "profiles")
)
SINGLE = tuple(name for name, path in FILES.items() if path.parent == ROOT / "experiments" and name not in SHARED)
LOWEST = tuple(name for name in FILES if name.startswith("dmlrepro.") and name.count(".") == 1)
TOP = ("experiments.__main__", "experiments.cli")
FLOORS = (
    *((name,) for name in TOP),
    ("experiments.report",),
    ("experiments.across",),
    PAPERS,
    SHARED,
    ("experiments.figures",),
    ("experiments.analysis",),
    ("experiments.training",),
    ("experiments.networks", "experiments.datasets"),
    tuple(name for name in SINGLE if name not in TOP),
    ("dmlrepro.pml",),
    ("dmlrepro.pml_wrappers",),
    ("dmlrepro.losses",),
    tuple(name for name in LOWEST if name not in ("dmlrepro.pml", "dmlrepro.pml_wrappers", "dmlrepro.losses")),
    ("dmlrepro",),
)
FLOOR = {place: number for number, places in enumerate(FLOORS) for place in places}


def place(name: str) -> str:
    """The folder, or the file where it lies in none."""
    return ".".join(name.split(".")[:2])


def paper(name: str) -> str:
    """The package of a paper in which a module lies; "" for others."""
    return place(name) if place(name) in PAPERS else ""


def imported(tree: ast.AST) -> set[str]:
    """The modules of ours that a tree imports; `from a import b` is a.b where that is a module, else a."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names = {f"{node.module}.{alias.name}": node.module for alias in node.names}
            modules |= {name if name in FILES else module for name, module in names.items()}
    return {name for name in modules if name.split(".")[0] in PACKAGES}


TEXTS = {name: path.read_text(encoding="utf8") for name, path in FILES.items()}
IMPORTS = {name: imported(ast.parse(text)) - {name} for name, text in TEXTS.items()}  # in functions too
LOOKED_INTO = {  # the modules of papers that two files import by name when they run
    "experiments.papers": {name for name in FILES if paper(name) and name.endswith(".methods")},
    "experiments.report.catalogue": {name for name in FILES if paper(name) or place(name) == "experiments.across"},
}


def upwards(name: str) -> set[str]:
    """What a file imports from higher floors, or from its own where it may not."""
    floor = FLOOR[place(name)]  # a new folder needs one
    many = len(FLOORS[floor]) > 1 and FLOORS[floor] != PAPERS and floor < FLOOR["experiments.networks"]
    lowest = many or floor > FLOOR["experiments.networks"]
    return {
        target
        for target in IMPORTS[name]
        if FLOOR[place(target)] < floor
        or (FLOOR[place(target)] == floor and place(target) != place(name) and not lowest)
    }


def test_a_file_imports_its_own_folder_and_lower_floors():
    assert {name: found for name in FILES if (found := upwards(name))} == {}


def test_the_library_is_small():
    assert sum(len(text.splitlines()) for name, text in TEXTS.items() if name.split(".")[0] == "dmlrepro") <= 5500


@pytest.mark.parametrize("name", [name for name in FILES if place(name) == "dmlrepro.losses"])
def test_a_loss_imports_the_vmf_what_all_losses_share_and_its_engine_only(name):
    """An engine is a file beside one loss that does for it what takes long to say, and imports nothing of ours."""
    shared = {f"dmlrepro.losses.{name}" for name in ("_state", "checks", "recommended")}
    others = IMPORTS[name] - {"dmlrepro.vmf", "dmlrepro.extras"} - shared
    assert len(others) <= 1 and all(place(other) == "dmlrepro.losses" and not IMPORTS[other] for other in others)
    for engine in others:
        assert [user for user, targets in IMPORTS.items() if engine in targets] == [name]


def test_no_circle_of_files_and_none_of_folders():
    files = {name: targets | LOOKED_INTO.get(name, set()) for name, targets in IMPORTS.items()}
    folders: dict[str, set[str]] = {}
    for name, targets in IMPORTS.items():
        folders.setdefault(place(name), set()).update({place(target) for target in targets} - {place(name)})
    for graph in (files, folders):
        graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_imports_the_folder_of_its_paper_only(path):
    cells = json.loads(path.read_text(encoding="utf8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    targets = {target for source in sources for target in imported(ast.parse(source))}
    assert targets <= set(FILES)
    assert len({paper(target) for target in targets} - {""}) <= 1


def test_a_package_imports_nothing():
    assert {name: IMPORTS[name] for name, path in FILES.items() if path.name == "__init__.py" and IMPORTS[name]} == {}
