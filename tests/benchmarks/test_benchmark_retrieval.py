"""The benchmark compares equal measures, and its limit can be missed."""

import pytest
import torch

from dmlrepro import retrieval


def test_it_times_the_search_against_float64(benchmark, monkeypatch):
    small, searched = benchmark.Case(2000, 20, dim=8), []
    least = retrieval._Search.least
    monkeypatch.setattr(
        retrieval._Search, "least", lambda self, rows, n: searched.append(self.by_faiss) or least(self, rows, n)
    )
    rows = benchmark.measure("small", small, torch.device("cpu"))
    assert [(row["form"], row["case"]) for row in rows] == [(form, "small") for form in ("product", "torch", "float64")]
    assert all(row["value"] > 0 for row in rows)
    calls = benchmark.REPEATS + 2  # the check, the round that warms up, and the repeats: of two forms only
    assert sorted(searched) == [False] * calls + [True] * calls
    search = retrieval._searched_by_faiss
    backwards = lambda *how: (search(*how)[0], search(*how)[1].flip(1))  # noqa: E731
    monkeypatch.setattr(retrieval, "_searched_by_faiss", backwards)
    with pytest.raises(AssertionError, match="gives other measures"):
        benchmark.measure("small", small, torch.device("cpu"))
