"""The built wheel in a virtual environment that has torch, numpy and what these need, and nothing else."""

import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]


def make(folder: Path) -> Path:
    """Build the wheel, install it below an empty `folder`; returns the Python of that environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    paths = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.run([python, "-c", paths], check=True, capture_output=True, text=True).stdout.strip())
    for name in needed_by("torch", "numpy"):
        link(metadata.distribution(name), packages)
    install = ["-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel(folder)]
    subprocess.run([sys.executable, *install], check=True)
    return python


def wheel(folder: Path) -> Path:
    """The wheel of a copy of the sources, so that nothing is written beside them."""
    sources = folder / "sources"
    for name in ("dmlrepro", "experiments"):  # of which the wheel must hold one
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=sources, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def needed_by(*names: str) -> set[str]:
    """Names of distributions with all that they require here, extras left out."""
    todo, seen = list(names), set()
    while todo:
        name = todo.pop()
        try:
            required = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for another platform
            continue
        if name not in seen:
            seen.add(name)
            todo += [re.match(r"[\w.-]+", line)[0] for line in required if "extra ==" not in line]
    return seen


def link(distribution: metadata.Distribution, packages: Path) -> None:
    """A link to each file and folder that a distribution has at the top of site-packages."""
    site = Path(distribution.locate_file(""))
    for top in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
        if not (packages / top).exists():
            (packages / top).symlink_to(site / top)


def run(python: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess:
    """Start that Python in `folder`/work with `folder`/home as the user's home and no variable of this process."""
    for name in ("home", "work"):
        (folder / name).mkdir(exist_ok=True)
    environment = {"HOME": str(folder / "home"), "PATH": sysconfig.get_path("scripts"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [python, *arguments], cwd=folder / "work", env=environment, capture_output=True, text=True, timeout=600
    )
