"""The built wheel with torch and numpy alone: import, train, evaluate, and nothing written outside the user's cache."""

import zipfile
from importlib import metadata
from pathlib import Path

import clean_environment
import pytest

import dmlrepro
from dmlrepro import extras
from experiments import cli

EXAMPLE = Path(__file__).parents[1] / "examples" / "plain.py"
INSTALLED = """
import importlib.util
from pathlib import Path
from dmlrepro import losses, metrics, vmf
from dmlrepro.losses import chance_constrained, piecewise_linear, unlabelled

assert importlib.util.find_spec("scipy") is None and "site-packages" in metrics.__file__
assert (Path(metrics.__file__).parent / "py.typed").exists() and importlib.util.find_spec("experiments") is None
losses.NormSoftmax(4, 8)
"""

MISSING = """
import torch
from dmlrepro import losses, metrics
from dmlrepro.losses import nivmf, unlabelled

points, labels = torch.eye(4), torch.arange(4)
for call in (
    lambda: losses.ProxyAnchor(4, 8),
    lambda: unlabelled.nt_xent(4, 8),
    lambda: nivmf.proxy_anchor_with_nivmf(4, 8),
    lambda: metrics.nmi(points, labels),
    lambda: metrics.proxy_wasserstein(points[:, None], points, labels),
):
    try:
        call()
    except ModuleNotFoundError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environment")
    return clean_environment.make(folder), folder


def files_below(folder: Path) -> set[Path]:
    """Bytecode left out, which Python writes beside any module."""
    return {path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@pytest.mark.slow
def test_training_and_evaluating_need_torch_and_numpy_only_and_leave_no_file(environment):
    python, folder = environment
    before = files_below(folder)
    for arguments in (("-c", INSTALLED), ("-B", str(EXAMPLE))):
        finished = clean_environment.run(python, *arguments, folder=folder)
        assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("R@1") == 4 and files_below(folder) == before


@pytest.mark.slow
def test_what_an_extra_brings_is_named_where_it_is_missing(environment):
    python, folder = environment
    finished = clean_environment.run(python, "-c", MISSING, folder=folder)
    assert finished.returncode == 0, finished.stderr
    messages = [line.partition(" is not installed; pip install ") for line in finished.stdout.splitlines()]
    assert [package for package, _, _ in messages] == [
        *["pytorch-metric-learning"] * 3,
        "scikit-learn",
        "scipy",
    ]
    assert all("'dmlrepro[notebooks]'" in remedy for _, _, remedy in messages)


def test_what_is_missing_is_named_with_the_extra_that_brings_it():
    extras.require("scikit-learn", "sklearn")
    with pytest.raises(ModuleNotFoundError, match=r"no-such-package is not installed.*dmlrepro\[notebooks\]") as caught:
        extras.require("no-such-package")
    assert caught.value.name == "no_such_package"


def test_the_wheel_lists_no_file_of_the_experiments(tmp_path):
    with zipfile.ZipFile(clean_environment.wheel(tmp_path)) as wheel:
        names = {Path(name).parts[0] for name in wheel.namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"dmlrepro"}


def test_the_version_is_that_of_the_installed_package(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"dmlrepro {metadata.version('dmlrepro')}\n"


def test_a_checkout_that_was_never_installed_has_a_version_too(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert dmlrepro.__version__ == "0+unknown"


def test_a_missing_attribute_is_an_attribute_error():
    assert not hasattr(dmlrepro, "no_such_name")
