"""Which files of both packages a piece of code uses, and a hash of their bytes: the part of a local cache's key that is
code, with the versions of the packages of others. The committed store goes by version, see records.py.

Files are parsed, not imported, so that a workflow can ask in milliseconds. A run names its loss and its scheme in
strings, so those files are found by name: "nivmf.ProbabilisticProxyLoss" stands for dmlrepro/losses/nivmf.py,
"momentum" for training/schemes/momentum.py.
"""

import ast
import functools
import hashlib
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from experiments.files import find_repository

PACKAGE = Path(__file__).parents[1]  # relative names of files here are relative to it
LIBRARY = PACKAGE.with_name("dmlrepro")
NUMERICAL_PACKAGES = ("torch", "torchvision", "timm", "numpy", "pytorch-metric-learning")
# These files do not enter the key of a run, because it holds what they make: the values of the spec, and the images and
# labels by content.
IN_THE_KEY = ("training/spec.py", "datasets/manifests.py")


def used_by(roots: Iterable[Path], *, without: Iterable[str] = (), by_name: bool = False) -> list[Path]:
    """The root files and every file of ours that they import, directly or not, sorted.

    Args:
        without: files, relative to the package, that are left out with all that only they import.
        by_name: follow strings to the loss or the scheme that they name, as in code that makes specs.
    """
    left_out = {PACKAGE / path for path in without}
    todo, seen = list(roots), set()
    schemes = {path.stem: path for path in (PACKAGE / "training" / "schemes").glob("*.py")}
    losses = loss_files()
    while todo:
        path = todo.pop()
        if path in seen or path in left_out:
            continue
        seen.add(path)
        imported, strings = _mentioned(path.read_text(encoding="utf8"), path)
        todo += _files(imported)
        if by_name:
            todo += [*_named(strings, losses, schemes), *_found_at_run_time(strings)]
    return sorted(seen)


def loss_files() -> dict[str, Path]:
    """The file of a loss "<module>.<name>" by its module: those of the library, and "own" for the reader's losses."""
    files = {path.stem: path for path in (LIBRARY / "losses").glob("*.py")}
    return files | {"own": PACKAGE / "training" / "own_loss.py"}


def of_notebook(notebook: Path) -> list[Path]:
    """The files of ours on which a notebook's results depend.

    These are what its cells import, the training loop, and the losses and schemes that any of them name.
    """
    cells = json.loads(notebook.read_text(encoding="utf8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    imported, _ = _mentioned(code, notebook)
    return used_by([*_files(imported), PACKAGE / "training" / "loop.py"], by_name=True)


def bytes_hash(roots: Iterable[Path]) -> str:
    """Hex sha256 of the bytes of `roots` and of all files that they import: local caches never serve what an edit has
    changed, be it a comment."""
    digest = hashlib.sha256()
    for path in used_by(roots, without=IN_THE_KEY):
        digest.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@functools.cache
def versions() -> dict[str, str]:
    """Versions of the packages that numbers depend on, and of Python."""
    return {name: metadata.version(name) for name in NUMERICAL_PACKAGES} | {"python": platform.python_version()}


@functools.cache
def checkout() -> dict:
    """`git_commit` of the repository, and whether its code has changes beside it (`git_dirty`); "" without git."""

    root = find_repository()

    def git(*arguments: str) -> str:
        if root is None or shutil.which("git") is None:
            return ""
        finished = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        return finished.stdout.strip() if finished.returncode == 0 else ""

    dirty = bool(git("status", "--porcelain", "--", LIBRARY.name, PACKAGE.name, "notebooks"))
    return {"git_commit": git("rev-parse", "HEAD"), "git_dirty": dirty}


@functools.cache  # a workflow asks for the files of all notebooks, which have most in common
def _mentioned(text: str, path: Path) -> tuple[list[str], list[str]]:
    """What a module imports of ours, at the top or inside a function and in whatever form, and its strings."""
    imported, strings = [], []
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:  # from . import x: relative to the folder of the file
                folder = path.parents[node.level - 1].relative_to(PACKAGE.parent).parts
                module = ".".join([*folder, *filter(None, [module])])
            # an imported name is a module of its own or something that the module defines
            imported += [module, *(f"{module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.append(node.value)
    ours = [name for name in imported if name.partition(".")[0] in (LIBRARY.name, PACKAGE.name)]
    return list(dict.fromkeys(ours)), list(dict.fromkeys(strings))


def _files(names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        yield from _files_of(name)


def _files_of(name: str) -> Iterator[Path]:
    """The file of a module "experiments.a.b" and the __init__.py of each package above it; nothing for other names."""
    first, *parts = name.split(".")
    if first not in (LIBRARY.name, PACKAGE.name):
        return
    for length in range(len(parts) + 1):
        place = PACKAGE.with_name(first).joinpath(*parts[:length])
        yield from (path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file())


def _named(strings: Iterable[str], losses: Mapping[str, Path], schemes: Mapping[str, Path]) -> Iterator[Path]:
    """The files of losses ("file.Name") and of schemes ("file") for which strings of a module stand."""
    for text in strings:
        module, dot, name = text.partition(".")
        known = losses if dot else schemes
        if module in known and (name.isidentifier() or not dot):
            yield known[module]


def _found_at_run_time(strings: Iterable[str]) -> Iterator[Path]:
    """The files for which a string such as "experiments.*.methods" stands."""
    for text in strings:
        if re.fullmatch(rf"{PACKAGE.name}(\.\w+)*\.\*(\.\w+)*", text):
            yield from PACKAGE.parent.glob(text.replace(".", "/") + ".py")


def _parsed(text: str) -> ast.Module:
    """The syntax tree of a module, without what it imports for types alone."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return tree
