"""The benchmark's two forms compute the same thing, its limits can be missed, and its table is written."""

import pytest


def test_forms_agree(benchmark, monkeypatch):
    arguments = benchmark.problem(benchmark.CASES["tiny"])
    assert benchmark.disagreement(*arguments) < 1e-3
    assert 0.05 < benchmark.close_share(*arguments) < 0.5
    monkeypatch.setattr(benchmark, "DELTA", 0.19)
    assert benchmark.disagreement(*arguments) > 1e-2


def test_ratios_are_judged(benchmark, capsys):
    arguments = benchmark.problem(benchmark.CASES["tiny"])
    rows = [
        benchmark.row(name, form, metric, value, 1, *arguments)
        for name in benchmark.LARGE
        for metric, values in (("seconds", (1.0, 9.0)), ("megabytes", (100.0, 1100.0)))
        for form, value in zip(("product", "literal"), values)
    ]
    rows += [benchmark.row("cub", *r, 1, *arguments) for r in (("product", "seconds", 1.9), ("matmul", "seconds", 1.0))]
    assert benchmark.judge(rows)
    assert "cub: seconds over the matmul's 1.9 (limit: at most 2)" in capsys.readouterr().out
    for i, value in ((1, 7.0), (3, 900.0), (len(rows) - 2, 2.1)):
        worse = [r | {"value": value} if j == i else r for j, r in enumerate(rows)]
        assert not benchmark.judge(worse)
    assert not benchmark.judge([benchmark.row("sop", "product", "megabytes", 4100.0, 1, *arguments)])


def test_exponent(benchmark):
    arguments = benchmark.problem(benchmark.CASES["tiny"])
    proxies = [2 * benchmark.CASES[name].classes for name in benchmark.SLOPE]
    rows = [
        benchmark.row(name, "product", "seconds", 3 * n**1.7, 1, *arguments)
        for name, n in zip(benchmark.SLOPE, proxies)
    ]
    assert benchmark.slope(rows) == pytest.approx(1.7)
