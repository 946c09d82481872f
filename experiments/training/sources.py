"""The files of both packages on which numbers depend: a hash of their bytes, the part of a local cache's key that is
code, with the versions of the packages of others. The committed store goes by version, see records.py."""

import functools
import hashlib
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from experiments.files import repository_root

PACKAGE = Path(__file__).parents[1]
LIBRARY = PACKAGE.with_name("dmlrepro")
NUMERICAL_PACKAGES = ("torch", "torchvision", "timm", "numpy", "pytorch-metric-learning")
# what images, and what enters the trained part of a network, are made with
IMAGES = tuple(PACKAGE / name for name in ("datasets", "networks", "training/activations.py", "training/batches.py"))
FURTHER = ("training", "checks.py", "files.py", "progress.py", "variables.py")
TRAINING = (LIBRARY, *IMAGES, *(PACKAGE / name for name in FURTHER))  # what trains a run imports nothing else
EVERYTHING = (LIBRARY, PACKAGE)


@functools.cache
def bytes_hash(places: tuple[Path, ...]) -> str:
    """Hex sha256 of the bytes of files and folders: local caches never serve what an edit, be it a comment, changed."""
    digest = hashlib.sha256()
    for path in files(places):
        digest.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def files(places: Iterable[Path]) -> list[Path]:
    """The Python files of some files and folders, and the JSON files that they read, each once."""
    found = (path for place in places for path in (place.rglob("*") if place.is_dir() else [place]))
    return sorted({path for path in found if path.suffix in (".py", ".json")})


def of_notebook(notebook: Path) -> list[Path]:
    """The files of ours on which a notebook's results may depend: all but the folders of papers, and of what looks at
    all papers, that it does not import."""
    imported = set(re.findall(rf"from {PACKAGE.name}\.(\w+)", notebook.read_text(encoding="utf8")))
    papers = {path.parent for path in PACKAGE.glob("*/methods.py")}
    if imported & {"across", "report"}:
        return files(EVERYTHING)
    left_out = {folder for folder in (*papers, PACKAGE / "across", PACKAGE / "report") if folder.name not in imported}
    return [path for path in files(EVERYTHING) if not left_out & {*path.parents}]


@functools.cache
def versions() -> dict[str, str]:
    """Versions of the packages that numbers depend on, and of Python."""
    return {name: metadata.version(name) for name in NUMERICAL_PACKAGES} | {"python": platform.python_version()}


@functools.cache
def checkout() -> dict:
    """`git_commit` of the repository, and whether its code has changes beside it (`git_dirty`); "" without git."""

    def git(*arguments: str) -> str:
        if shutil.which("git") is None:
            return ""
        finished = subprocess.run(["git", *arguments], cwd=repository_root(), capture_output=True, text=True)
        return finished.stdout.strip() if finished.returncode == 0 else ""

    dirty = bool(git("status", "--porcelain", "--", LIBRARY.name, PACKAGE.name, "notebooks"))
    return {"git_commit": git("rev-parse", "HEAD"), "git_dirty": dirty}
