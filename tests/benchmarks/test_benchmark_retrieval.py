"""The benchmark compares equal measures, and its limit can be missed."""

import pytest
import torch

from dmlrepro import retrieval


def test_it_times_the_search_against_float64(benchmark, monkeypatch):
    small, searched = benchmark.Case(9000, 20, dim=8), []
    search = retrieval._Search.__call__
    monkeypatch.setattr(retrieval, "SMALLEST_SEARCH", 0)
    monkeypatch.setattr(retrieval, "LONGEST_LIST", 1 / 8)
    monkeypatch.setattr(retrieval._Search, "__call__", lambda self, rows: searched.append(rows) or search(self, rows))
    rows = benchmark.measure("small", small, torch.device("cpu"))
    assert [(row["form"], row["case"]) for row in rows] == [("product", "small"), ("float64", "small")]
    assert all(row["value"] > 0 for row in rows)
    calls = benchmark.REPEATS + 2  # the check, the round that warms up, and the repeats: of one form only
    assert sum(map(len, searched)) == calls * small.queries
    backwards = lambda self, rows: ((some, nearest.flip(1)) for some, nearest in search(self, rows))  # noqa: E731
    monkeypatch.setattr(retrieval._Search, "__call__", backwards)
    with pytest.raises(AssertionError, match="gives other measures"):
        benchmark.measure("small", small, torch.device("cpu"))


def test_the_ratio_is_judged(benchmark, capsys):
    rows = [{"case": "sop", "form": form, "value": value} for form, value in (("product", 0.9), ("float64", 1.0))]
    assert benchmark.judge(rows)
    assert "sop: seconds over the float64's 0.9 (limit: at most 1)" in capsys.readouterr().out
    rows[0]["value"] = 1.1
    assert not benchmark.judge(rows)
