"""The code part of a cache key counts every byte; a notebook depends on its own paper and not on the others."""

import ast
import json
import os
from pathlib import Path

import pytest

from experiments.training import sources

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "images", "training"),
    [
        ("dmlrepro/losses/nivmf.py", False, True),
        ("experiments/training/algorithms/momentum.py", False, True),
        ("experiments/training/activations.py", True, True),
        ("experiments/networks/backbones.py", True, True),
        ("experiments/figures/charts.py", False, False),
    ],
)
@pytest.mark.parametrize("text", ["value = -1.0\n", '"""Another doc."""\nvalue = 1.0\n'])
def test_every_byte_of_the_code_that_makes_something_counts(name, images, training, text, tmp_path, monkeypatch):
    def hashes():
        monkeypatch.undo()
        folders = [[tmp_path / path.relative_to(ROOT) for path in places] for places in every]
        return [sources.bytes_hash.__wrapped__(places) for places in folders]

    every = sources.IMAGES, sources.TRAINING, sources.EVERYTHING
    for path in sources.files(sources.EVERYTHING):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("value = 1.0\n")
    before = hashes()
    (tmp_path / name).write_text(text)
    assert [one != other for one, other in zip(before, hashes())] == [images, training, True]


def test_training_imports_nothing_that_its_hash_leaves_out():
    counted = {os.path.relpath(path, ROOT) for path in sources.files(sources.TRAINING)}
    for path in sources.files(sources.TRAINING):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "experiments":
                assert {f"experiments/{alias.name}.py" for alias in node.names} <= counted, path
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("experiments."):
                place = "/".join(node.module.split(".")[:2])
                assert {f"{place}.py", f"{place}/__init__.py"} & counted, (path, node.module)


def test_a_notebook_depends_on_its_paper_and_not_on_the_others(tmp_path):
    def used(statement: str) -> set[str]:
        (tmp_path / "99.ipynb").write_text(json.dumps({"cells": [{"cell_type": "code", "source": [statement]}]}))
        return {os.path.relpath(path, ROOT) for path in sources.of_notebook(tmp_path / "99.ipynb")}

    papers = {f"experiments/{name}/methods.py" for name in ("ccp", "meanfield", "nivmf", "pfml", "plm")}
    shared = {"dmlrepro/losses/nivmf.py", "experiments/params.py", "experiments/training/loop.py"}
    own = used("from experiments.nivmf import methods\n")
    assert own & papers == {"experiments/nivmf/methods.py"} and shared <= own
    assert not any(path.startswith(("experiments/across", "experiments/report")) for path in own)
    assert papers | {"experiments/across/tour.py"} < used("from experiments.across import tour\n")
