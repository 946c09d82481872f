"""The code part of a cache key follows every way of importing, and counts every byte of the files that are used."""

import json
import os
from pathlib import Path

import pytest

from experiments.training import sources

ROOT = Path(__file__).parents[2]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a loop, a module, and a package with a module of its own; beside it a library with a loss."""
    root = tmp_path / "experiments"
    files = {
        "__init__.py": "",
        "training/__init__.py": "",
        "training/loop.py": "from experiments import helper\n",
        "training/spec.py": "SPEC = 1\n",
        "datasets/manifests.py": "from experiments.datasets import layouts\n",
        "datasets/layouts.py": "VALUE = 1\n",
        "../dmlrepro/losses/x.py": '"""Doc."""\nvalue = +1.0\n',
        "helper.py": "VALUE = 1\n",
        "samplers/__init__.py": "def draw():\n    return 1\n",
        "samplers/pairs.py": "VALUE = 1\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(sources, "PACKAGE", root)
    monkeypatch.setattr(sources, "LIBRARY", tmp_path / "dmlrepro")
    return root


def key(package) -> str:
    return sources.bytes_hash([package / "training" / "loop.py", sources.LIBRARY / "losses" / "x.py"])


def names(package, **options) -> set[str]:
    used = sources.used_by([package / "training" / "loop.py"], **options)
    return {os.path.relpath(path, package) for path in used}


@pytest.mark.parametrize(
    "statement, expected",
    [
        ("from experiments import helper", "helper.py"),
        ("from experiments.helper import VALUE", "helper.py"),
        ("from experiments import helper as other", "helper.py"),
        ("import experiments.helper", "helper.py"),
        ("import experiments.helper as other", "helper.py"),
        ("def f():\n    from experiments import helper", "helper.py"),
        ("from experiments.helper import *", "helper.py"),
        ("from experiments import samplers", "samplers/__init__.py"),
        ("from experiments.samplers import draw", "samplers/__init__.py"),
        ("import experiments.samplers", "samplers/__init__.py"),
        ("from experiments.samplers import pairs", "samplers/pairs.py"),
        ("from experiments.samplers.pairs import VALUE", "samplers/__init__.py"),  # importing a module runs its package
        ("import experiments.samplers.pairs", "samplers/pairs.py"),
        ("from .. import helper", "helper.py"),
        ("from ..samplers import pairs", "samplers/pairs.py"),
        ("from ..samplers.pairs import VALUE", "samplers/pairs.py"),
        ("import experiments, dmlrepro.losses.x", "../dmlrepro/losses/x.py"),
        ("from . import spec", "training/spec.py"),
        ("from .spec import SPEC", "training/spec.py"),
    ],
)
def test_every_way_of_importing_is_followed(package, statement, expected):
    (package / "training" / "loop.py").write_text(f"{statement}\n")
    assert expected in names(package)
    assert names(package) >= {"__init__.py"}


def test_a_module_that_becomes_a_package_stays_in_the_key(package):
    (package / "helper.py").unlink()
    (package / "helper").mkdir()
    (package / "helper" / "__init__.py").write_text("VALUE = 1\n")
    before = key(package)
    (package / "helper" / "__init__.py").write_text("VALUE = 2\n")
    assert key(package) != before


def test_what_others_import_does_not_count(package):
    assert names(package) == {"__init__.py", "training/loop.py", "helper.py"}
    (package / "training" / "loop.py").write_text("import json, numpy\nfrom os import path\n")
    assert names(package) == {"training/loop.py"}


def test_values_and_images_are_in_the_key_themselves(package):
    (package / "training" / "loop.py").write_text(
        "from experiments.datasets import manifests\nfrom .spec import SPEC\n"
    )
    before = key(package)
    (package / "datasets" / "layouts.py").write_text("VALUE = 2\n")
    (package / "training" / "spec.py").write_text("SPEC = 2\n")
    assert key(package) == before


@pytest.mark.parametrize("text", ['"""Doc."""\nvalue = -1.0\n', '"""Another doc."""\nvalue = +1.0\n'])
def test_every_byte_of_a_file_counts(package, text):
    before = key(package)
    (sources.LIBRARY / "losses" / "x.py").write_text(text)
    assert key(package) != before


def test_what_is_imported_for_types_alone_does_not_count(package):
    root, helper = package / "root.py", package / "helper.py"
    root.write_text("if TYPE_CHECKING:\n    from experiments import helper\n")
    helper.write_text("value = 1\n")
    assert sources.used_by([root]) == [root]
    root.write_text("if True:\n    from experiments import helper\n")
    assert helper in sources.used_by([root])


def test_training_does_not_depend_on_metrics_that_it_does_not_use():
    used = {path.name for path in sources.used_by([sources.PACKAGE / "training" / "loop.py"])}
    assert "retrieval.py" in used and "metrics.py" not in used


def test_a_notebook_uses_the_losses_that_its_paper_names(tmp_path):
    cell = {"cell_type": "code", "source": ["from experiments.nivmf import methods\n"]}
    notebook = tmp_path / "99.ipynb"
    notebook.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["x ="]}, cell]}))
    used = {os.path.relpath(path, sources.PACKAGE) for path in sources.of_notebook(notebook)}
    assert {
        *(f"../dmlrepro/losses/{name}.py" for name in ("nivmf", "baselines")),
        "training/loop.py",
        "params.py",
    } <= used
    assert "../dmlrepro/losses/potential_field.py" not in used


def test_a_notebook_uses_the_scheme_of_every_run_and_those_that_its_paper_names(package):
    (package / "training" / "loop.py").write_text("from experiments.training import spec\n")
    (package / "training" / "spec.py").write_text('class RunSpec:\n    scheme: str = "supervised"\n')
    (package / "training" / "schemes").mkdir()
    for scheme in ("supervised", "momentum", "other"):
        (package / "training" / "schemes" / f"{scheme}.py").touch()
    assert "training/schemes/supervised.py" in names(package, by_name=True)
    assert "training/schemes/momentum.py" not in names(package, by_name=True)
    (package / "training" / "loop.py").write_text('from .spec import RunSpec\nRunSpec(scheme="momentum")\n')
    assert "training/schemes/momentum.py" in names(package, by_name=True)
    assert "training/schemes/other.py" not in names(package, by_name=True)


def test_the_cache_is_no_part_of_the_source_its_keys_depend_on():
    used = {path.name for path in sources.used_by([sources.PACKAGE / "training" / "loop.py"])}
    around = {"keys.py", "cache.py", "scheduling.py", "runs.py", "protocols.py"}
    assert "batches.py" in used and not used & around
