"""The wheel holds the library alone, which needs torch and numpy and names what else a part of it would need."""

import shutil
import subprocess
import sys
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
# what an extra brings, and this repository beside the library
ABSENT = ["scipy", "sklearn", "pandas", "matplotlib", "seaborn", "PIL", "torchvision", "timm", "safetensors", "faiss"]
ABSENT += ["pytorch_metric_learning", "torchmetrics", "tqdm", "psutil", "optuna", "pydantic", "experiments"]
WITHOUT = f"""
import importlib, pkgutil, runpy, sys
sys.modules |= dict.fromkeys({ABSENT}, None)
from dmlrepro import losses, metrics, vmf
for info in pkgutil.iter_modules(losses.__path__, "dmlrepro.losses."):
    importlib.import_module(info.name)
losses.NormSoftmax(4, 8)
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
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


def test_training_and_evaluating_need_torch_and_numpy_only_and_leave_no_file(tmp_path):
    variables = {"HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}:{EXAMPLE.parent}", "OMP_NUM_THREADS": "1"}
    how = {"cwd": tmp_path, "env": variables, "capture_output": True, "text": True, "timeout": 600}
    finished = subprocess.run([sys.executable, "-B", "-c", WITHOUT], **how)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("R@1") == 4 and not [*tmp_path.rglob("*")]


def test_what_is_missing_is_named_with_the_extra_that_brings_it(monkeypatch):
    library, points, labels = "pytorch_metric_learning", torch.eye(4), torch.arange(4)
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    for name in [library, *(name for name in sys.modules if name.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "dmlrepro.retrieval_metric", raising=False)
    for package, call in (
        ("torchmetrics", lambda: metrics.RetrievalMetric),
        ("pytorch-metric-learning", lambda: losses.ProxyAnchor(4, 8)),
        ("pytorch-metric-learning", lambda: nivmf.proxy_anchor_with_nivmf(4, 8)),
        ("scikit-learn", lambda: metrics.nmi(points, labels)),
        ("scipy", lambda: metrics.proxy_wasserstein(points[:, None], points, labels)),
    ):
        with pytest.raises(ModuleNotFoundError, match=rf"{package} is not installed; pip .*dmlrepro\[notebooks\]"):
            call()


def test_the_wheel_lists_no_file_of_the_experiments(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {Path(name).parts[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dmlrepro"} and "dmlrepro/py.typed" in names


def test_the_version_is_that_of_the_installed_package_or_unknown(capsys, monkeypatch):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"dmlrepro {metadata.version('dmlrepro')}\n"
    monkeypatch.setattr(metadata, "version", lambda name: metadata.distribution("no such name"))  # never installed
    assert dmlrepro.__version__ == "0+unknown" and not hasattr(dmlrepro, "no_such_name")
