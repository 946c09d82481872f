"""Each benchmark compares forms that compute the same, sees a form that does not, and leaves out what has no data."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import harness
import pytest
import torch

from dmlrepro import retrieval
from dmlrepro.losses import piecewise_linear

FOLDER = Path(harness.__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "harness"))
def test_its_small_case_runs(name):
    done = subprocess.run([sys.executable, FOLDER / f"{name}.py", "--quick"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr


def test_a_set_that_is_missing_is_left_out(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path))
    benchmark = import_module("loop")
    assert benchmark.main({"absent": benchmark.CASES["cub-subset PFML"]}) == ([], False)
    assert "absent: left out" in capsys.readouterr().err


def test_metrics_are_timed_once_they_agree(monkeypatch):
    benchmark = import_module("metrics")
    seconds = benchmark.seconds("tiny")
    assert list(seconds) == ["product", "deep", "matmul", "PML", "PML deep"] and min(seconds.values()) > 0
    for form in ("product", "deep"):
        with monkeypatch.context() as patch:
            right = benchmark.FORMS[form]
            patch.setitem(benchmark.FORMS, form, lambda *data, right=right: (*right(*data)[:-1], 0.5))
            with pytest.raises(AssertionError, match=f"{form} has .*0.5.*, PML"):
                benchmark.seconds("tiny")


def test_forms_of_plm_find_the_same_pieces(monkeypatch):
    benchmark = import_module("plm")
    case = benchmark.CASES["tiny"]
    points = benchmark.problem(case)
    members = benchmark.solve("product", case, points)[1].sum(1)
    assert members.min() > 3 and members.unique().numel() > 1  # some neighbours are kept and some are not
    for quality in (benchmark.QUALITY, 0.5):  # a threshold that both forms know
        monkeypatch.setattr(benchmark, "QUALITY", quality)
        assert benchmark.disagreement(case, points) < 1e-7
    largest = piecewise_linear._root
    monkeypatch.setattr(piecewise_linear, "_root", lambda squared: 1.01 * largest(squared))
    assert benchmark.disagreement(case, points) > 1e-4


def test_searches_are_timed_against_float64(monkeypatch):
    benchmark = import_module("retrieval")
    small = benchmark.Case(2000, 20, dim=8)
    rows = benchmark.measure("small", small, torch.device("cpu"))
    assert [(row["form"], row["case"]) for row in rows] == [(form, "small") for form in ("product", "torch", "float64")]
    assert all(row["value"] > 0 for row in rows)
    search = retrieval._searched_by_faiss
    backwards = lambda *how: (search(*how)[0], search(*how)[1].flip(1))  # noqa: E731
    monkeypatch.setattr(retrieval, "_searched_by_faiss", backwards)
    with pytest.raises(AssertionError, match="gives other measures"):
        benchmark.measure("small", small, torch.device("cpu"))
