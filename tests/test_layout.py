"""Imports point one way, as CONTRIBUTING.md says: read from the source of every file, lazy imports included."""

import ast
import fnmatch
import graphlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dmlrepro"
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
# From the top down. A file imports from its own folder and from lower floors; on the lowest, from other files there.
FLOORS = (
    ("__main__",),
    ("cli",),
    ("commands",),
    ("desk",),
    ("papers",),
    ("figures",),
    ("deploy",),
    ("evidence",),
    ("training", "pml"),
    ("networks", "losses", "datasets"),
)
ROOMS = {path.parent.name for path in (PACKAGE / "papers").glob("*/__init__.py")}


def imported(tree: ast.AST) -> set[str]:
    """The modules of this package that a tree imports; `from a import b` is a.b where that is a module, else a."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            names = {f"{node.module}.{alias.name}": node.module for alias in node.names}
            modules |= {name if name in FILES else module for name, module in names.items()}
    return {name for name in modules if name.split(".")[0] == "dmlrepro"}


def looked_into(text: str) -> set[str]:
    """The modules of rooms that a file imports when it runs: those whose name it states, as in rooms.py, or all."""
    if "pkgutil.iter_modules(papers.__path__" not in text:
        return set()
    names = re.findall(r'"(dmlrepro\.papers\.\*\.\w+)"', text) or ["dmlrepro.papers.*"]
    return {name for name in FILES if room(name) and any(fnmatch.fnmatch(name, pattern) for pattern in names)}


TEXTS = {name: path.read_text(encoding="utf8") for name, path in FILES.items()}
IMPORTS = {name: imported(ast.parse(text)) - {name} for name, text in TEXTS.items()}  # in functions too


def place(name: str) -> str:
    """The folder, or the file where it lies in none."""
    return (name.split(".") + [""])[1]


def floor(name: str) -> int:
    """0 at the top."""
    return next((i for i, places in enumerate(FLOORS) if place(name) in places), len(FLOORS))


def room(name: str) -> str:
    parts = name.split(".")
    return parts[2] if parts[1:2] == ["papers"] and len(parts) > 2 and parts[2] in ROOMS else ""


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The nodes from which a circle is reached: those that stay when nodes without arrows are taken away in turn."""
    left = {name: set(targets) for name, targets in graph.items()}
    while free := {name for name, targets in left.items() if not targets & set(left)}:
        left = {name: targets for name, targets in left.items() if name not in free}
    return sorted(left)


def test_every_import_exists():
    assert {target for targets in IMPORTS.values() for target in targets} <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_file_imports_its_own_folder_and_lower_floors(name):
    lowest = floor(name) == len(FLOORS)
    upwards = {
        target
        for target in IMPORTS[name]
        if floor(target) < floor(name) or (floor(target) == floor(name) and place(target) != place(name) and not lowest)
    }
    assert upwards == set()


@pytest.mark.parametrize("name", [name for name in FILES if place(name) == "losses"])
def test_a_loss_imports_the_vmf_what_all_losses_share_and_its_engine_only(name):
    """An engine is a file beside one loss that does for it what takes long to say, and imports nothing of ours."""
    shared = {"dmlrepro.losses.checks", "dmlrepro.losses.recommended"}
    others = IMPORTS[name] - {"dmlrepro.vmf", "dmlrepro.extras"} - shared
    assert len(others) <= 1 and all(place(other) == "losses" and not IMPORTS[other] for other in others)
    for engine in others:
        assert [user for user, targets in IMPORTS.items() if engine in targets] == [name]


@pytest.mark.parametrize("name", [name for name in FILES if place(name) == "papers"])
def test_no_paper_imports_another(name):
    rooms = {room(target) for target in IMPORTS[name]} - {""}
    assert room(name) == "together" or rooms <= {room(name)}


def test_no_circle_of_files_and_none_of_folders():
    assert cycle({name: IMPORTS[name] | looked_into(text) for name, text in TEXTS.items()}) == []
    folders: dict[str, set[str]] = {}
    for name, targets in IMPORTS.items():
        folders.setdefault(place(name), set()).update(place(target) for target in targets)
    assert cycle({name: targets - {name} for name, targets in folders.items()}) == []


def test_what_looks_into_rooms_imports_what_lies_there():
    above, among = (looked_into(TEXTS[f"dmlrepro.{name}"]) for name in ("desk.catalogue", "papers.rooms"))
    assert above == {name for name in FILES if room(name)}
    assert among == {name for name in above if name.endswith(".methods")}


def test_a_circle_is_seen():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_imports_the_room_of_its_paper_only(path):
    cells = json.loads(path.read_text(encoding="utf8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    targets = {target for source in sources for target in imported(ast.parse(source))}
    assert targets <= set(FILES)
    assert len({room(target) for target in targets} - {""}) <= 1


@pytest.mark.parametrize("name", [name for name, path in FILES.items() if path.name == "__init__.py"])
def test_a_package_imports_nothing(name):
    assert IMPORTS[name] == set()


def changes(modules: list[str], folder: Path) -> list[str]:
    """What modules that lie in a folder change in others when they are imported, see one_by_one.py."""
    script = [sys.executable, str(ROOT / "tests" / "one_by_one.py"), *modules]
    where = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(script, env=where, capture_output=True, text=True, check=True).stdout.splitlines()


def test_no_import_changes_another_module():
    lower_first = graphlib.TopologicalSorter(IMPORTS).static_order()
    assert changes([name for name in lower_first if name != "dmlrepro.__main__"], ROOT) == []


def test_a_changed_module_is_seen(tmp_path):
    (tmp_path / "toy").mkdir()
    texts = {
        "__init__": "",
        "low": "COLORS = {}\nNAMES = [{}]\n",
        "high": "from toy import low\nlow.NAMES[0]['a'] = 1\n",
    }
    for name, text in (texts | {"top": "from toy.low import COLORS\nCOLORS |= {'b': 2}\n"}).items():
        (tmp_path / "toy" / f"{name}.py").write_text(text)
    changed = changes(["toy.low", "toy.high", "toy.top"], tmp_path)
    assert changed == ["toy.high changes toy.low.NAMES", "toy.top changes toy.low.COLORS"]


def untyped(text: str) -> list[str]:
    """ "function: parameter" for every parameter without a type; self, cls and those of lambdas need none."""
    parameters = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
            names = [
                argument.arg
                for argument in every
                if argument.annotation is None and argument.arg not in ("self", "cls")
            ]
            parameters += [f"{node.name}: {name}" for name in names]
    return parameters


def test_every_parameter_has_a_type():
    assert [
        f"{FILES[name].relative_to(ROOT)}: {parameter}" for name in FILES for parameter in untyped(TEXTS[name])
    ] == []


def test_a_parameter_without_a_type_is_seen():
    assert untyped("def f(self, a, /, b: int, *c, d=lambda e: e, **g): ...") == ["f: a", "f: d", "f: c", "f: g"]
