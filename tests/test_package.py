"""The built wheel in a virtual environment that has torch, numpy and what these need, and nothing else."""

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import torch

import dmlrepro
from dmlrepro import extras, losses, metrics
from dmlrepro.losses import nivmf
from experiments import cli

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "plain.py"
INSTALLED = """
import importlib.util
from pathlib import Path
from dmlrepro import losses, metrics, vmf
from dmlrepro.losses import chance_constrained, piecewise_linear, unlabelled

assert importlib.util.find_spec("scipy") is None and "site-packages" in metrics.__file__
assert (Path(metrics.__file__).parent / "py.typed").exists() and importlib.util.find_spec("experiments") is None
losses.NormSoftmax(4, 8)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("dmlrepro", "experiments"):  # of which the wheel must hold one
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    build = "from setuptools.build_meta import build_wheel; build_wheel('.')"
    subprocess.run([sys.executable, "-c", build], cwd=folder, check=True, capture_output=True)
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


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheel):
    """A folder with `venv`, into which the wheel is installed beside links to what torch and numpy have."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    packages = next(folder.glob("venv/lib/python*/site-packages"))
    for distribution in map(metadata.distribution, needed_by("torch", "numpy")):
        site = Path(distribution.locate_file(""))
        for top in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(site / top)
    install = ["install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run([sys.executable, "-m", "pip", "--python", folder / "venv" / "bin" / "python", *install], check=True)
    for name in ("home", "work"):
        (folder / name).mkdir()
    return folder


def printed(folder: Path, *arguments: str) -> str:
    """What that Python prints in `folder`/work, with `folder`/home as home and no variable of this process."""
    variables = {"HOME": str(folder / "home"), "PATH": sysconfig.get_path("scripts"), "OMP_NUM_THREADS": "1"}
    command = [folder / "venv" / "bin" / "python", *arguments]
    finished = subprocess.run(command, cwd=folder / "work", env=variables, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def files_below(folder: Path) -> set[Path]:
    """Bytecode left out, which Python writes beside any module."""
    return {path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@pytest.mark.slow
def test_training_and_evaluating_need_torch_and_numpy_only_and_leave_no_file(environment):
    before = files_below(environment)
    printed(environment, "-c", INSTALLED)
    assert printed(environment, "-B", str(EXAMPLE)).count("R@1") == 4 and files_below(environment) == before


def test_what_is_missing_is_named_with_the_extra_that_brings_it(monkeypatch):
    library, points, labels = "pytorch_metric_learning", torch.eye(4), torch.arange(4)
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    for name in [library, *(name for name in sys.modules if name.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    for package, call in (
        ("pytorch-metric-learning", lambda: losses.ProxyAnchor(4, 8)),
        ("pytorch-metric-learning", lambda: nivmf.proxy_anchor_with_nivmf(4, 8)),
        ("scikit-learn", lambda: metrics.nmi(points, labels)),
        ("scipy", lambda: metrics.proxy_wasserstein(points[:, None], points, labels)),
    ):
        with pytest.raises(ModuleNotFoundError, match=rf"{package} is not installed; pip .*dmlrepro\[notebooks\]"):
            call()


def test_the_wheel_lists_no_file_of_the_experiments(wheel):
    names = {Path(name).parts[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"dmlrepro"}


def test_the_version_is_that_of_the_installed_package_or_unknown(capsys, monkeypatch):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"dmlrepro {metadata.version('dmlrepro')}\n"
    monkeypatch.setattr(metadata, "version", lambda name: metadata.distribution("no such name"))  # never installed
    assert dmlrepro.__version__ == "0+unknown" and not hasattr(dmlrepro, "no_such_name")
