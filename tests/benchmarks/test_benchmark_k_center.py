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


def test_seconds_and_ratio_are_judged(benchmark, capsys):
    values = {"search": {"product": 1.9, "per class": 2.0}, "step": {"network": 1.0, "penalty": 0.1}}
    values["step"] |= {"C2": 1.0, "C2 on proxies": 1.02}
    values["problem"] = {"pool": 20.0, "validation": 10.0}

    def judged(**search):
        cases = values | {"search": values["search"] | search}
        return benchmark.judge(
            [{"case": c, "form": f, "value": value} for c, forms in cases.items() for f, value in forms.items()]
        )

    assert judged()
    printed = capsys.readouterr().out
    assert "search: seconds 1.9 (limit: at most 2)" in printed
    assert "step: the penalty, % of a step with C2, 5" in printed and "the pool, in steps with C2, 10" in printed
    assert not judged(product=2.1, **{"per class": 3.0})  # too slow
    assert not judged(product=1.5, **{"per class": 1.4})  # slower than class by class
