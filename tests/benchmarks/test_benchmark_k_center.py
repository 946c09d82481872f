"""The benchmark compares equal picks and times every part of CCP, and its limits can be missed."""

import pytest
import torch


def test_every_part_is_timed(benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "REPEATS", 1)
    rows = benchmark.main(benchmark.Search(20), benchmark.QUICK[1])
    assert [(row["case"], row["form"]) for row in rows] == [
        *[("search", form) for form in ("product", "per class")],
        *[("step", form) for form in ("network", "penalty", "C2", "C2 on proxies")],
        *[("problem", form) for form in ("pool", "validation")],
    ]
    assert all(row["value"] > 0 for row in rows)


def test_other_picks_are_refused(benchmark, monkeypatch):
    search = benchmark.greedy_k_center
    monkeypatch.setattr(
        benchmark, "greedy_k_center", lambda p, c, k: search(p, c, k) if p.ndim == 3 else search(c, p, k)
    )
    with pytest.raises(AssertionError, match="other picks"):
        benchmark.search(benchmark.Search(20, pool=4), torch.device("cpu"))
