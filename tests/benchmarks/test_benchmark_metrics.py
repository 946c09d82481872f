"""The benchmark of the metrics compares what is equal, and its limits can be missed."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "metrics.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("benchmark_metrics", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_forms_are_timed_once_they_agree(benchmark, monkeypatch):
    found = benchmark.seconds("tiny")
    assert list(found) == ["product", "matmul", "PML", "faiss"] and min(found.values()) > 0
    monkeypatch.setitem(benchmark.FORMS, "product", lambda *data: benchmark.product(*data) + 1e-3)
    with pytest.raises(AssertionError, match="MAP@R is"):
        benchmark.seconds("tiny")


def test_every_limit_is_judged(benchmark, capsys):
    shape = {"case": "sop", "size": 60_502, "dim": 512}
    rows = [
        shape | {"form": form, "metric": "seconds", "value": value}
        for form, value in (("product", 1.4), ("matmul", 1.0), ("PML", 2.0), ("faiss", 2.0))
    ]
    rows.append(shape | {"form": "product", "metric": "megabytes", "value": 900.0})
    assert benchmark.judge(rows)
    assert "sop: seconds over the matmul's 1.4 (limit: at most 1.5)" in capsys.readouterr().out
    for i, value in ((0, 1.6), (4, 1001.0)):
        assert not benchmark.judge([*rows[:i], rows[i] | {"value": value}, *rows[i + 1 :]])
