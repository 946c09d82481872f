"""The benchmark compares equal neighbours, and its limit can be missed."""

import pytest

from experiments.deploy import finding


def test_every_form_is_timed_and_must_find_the_same(benchmark, monkeypatch):
    small = benchmark.Case(20, 500, 8)
    rows = benchmark.measure("small", small)
    assert [row["form"] for row in rows] == ["product", "torch", "float64"] and all(row["value"] > 0 for row in rows)
    nearest = finding.nearest
    monkeypatch.setattr(finding, "nearest", lambda *arguments: (nearest(*arguments)[0] + 1, None))
    with pytest.raises(AssertionError, match="product finds other images"):
        benchmark.measure("small", small)


def test_the_ratio_is_judged(benchmark, capsys):
    rows = [{"case": "index", "form": form, "value": value} for form, value in (("product", 0.9), ("float64", 1.0))]
    assert benchmark.judge(rows)
    assert "index: seconds over the float64's 0.9 (limit: at most 1)" in capsys.readouterr().out
    rows[0]["value"] = 1.1
    assert not benchmark.judge(rows)
