"""The benchmark's two forms compute the same thing, its limits can be missed, and its table is written."""

import csv

import harness
import pytest


def test_forms_agree(benchmark, monkeypatch):
    arguments = benchmark.problem(benchmark.CASES["tiny"])
    assert benchmark.disagreement(*arguments) < 1e-3
    assert 0.05 < benchmark.close_share(*arguments) < 0.5
    monkeypatch.setattr(benchmark, "DELTA", 0.19)
    assert benchmark.disagreement(*arguments) > 1e-2


def test_ratios_are_judged(benchmark, capsys, tmp_path):
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
    harness.write_table(rows, tmp_path / "pfml.csv", close=".2g")
    with (tmp_path / "pfml.csv").open() as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(rows)
    assert [float(r["value"]) for r in read] == [r["value"] for r in rows]


def test_exponent(benchmark):
    arguments = benchmark.problem(benchmark.CASES["tiny"])
    proxies = [2 * benchmark.CASES[name].classes for name in benchmark.SLOPE]
    rows = [
        benchmark.row(name, "product", "seconds", 3 * n**1.7, 1, *arguments)
        for name, n in zip(benchmark.SLOPE, proxies)
    ]
    assert benchmark.slope(rows) == pytest.approx(1.7)


def test_measured_in_a_process_of_its_own(benchmark):
    rows = harness.apart(benchmark.__file__, "seconds", "tiny", ["product", "matmul"], 2, 1)
    assert [r["form"] for r in rows] == ["product", "matmul"] and all(r["value"] > 0 for r in rows)
    assert harness.apart(benchmark.__file__, "megabytes", "tiny", "product", 1)["value"] >= 0
