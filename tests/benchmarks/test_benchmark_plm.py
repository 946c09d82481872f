"""The benchmark's two forms find the same pieces, its limits can be missed, and its measurement runs apart."""

import pytest

from dmlrepro.losses import piecewise_linear


def rows_of(benchmark, seconds, form="product"):
    return [benchmark.row(name, form, value, 1, "cpu", 8.0) for name, value in seconds.items()]


def test_forms_agree(benchmark, monkeypatch):
    case = benchmark.CASES["tiny"]
    points = benchmark.problem(case)
    assert benchmark.disagreement(case, points) < 1e-7
    members = benchmark.solve("product", case, points)[1].sum(1)
    assert members.min() > 3 and members.unique().numel() > 1  # some neighbours are kept and some are not
    monkeypatch.setattr(benchmark, "QUALITY", 0.5)  # a threshold that both forms know
    assert benchmark.disagreement(case, points) < 1e-7
    largest = piecewise_linear._root
    monkeypatch.setattr(piecewise_linear, "_root", lambda squared: 1.01 * largest(squared))
    assert benchmark.disagreement(case, points) > 1e-4


def test_ratios_and_growth_are_judged(benchmark, capsys):
    product = dict.fromkeys(benchmark.COMPARED, 1.0)
    literal = rows_of(benchmark, dict.fromkeys(benchmark.COMPARED, 21.0), "literal")
    growing = {name: (benchmark.CASES[name].points / 200) ** 1.3 for name in benchmark.GROWING}
    rows = rows_of(benchmark, product | growing) + literal
    assert benchmark.judge(rows)
    assert "exponent of the seconds in N 1.3 (limit: at most 2)" in capsys.readouterr().out
    slow = [r | {"value": 19.0} if r["case"] == "k=16" and r["form"] == "literal" else r for r in rows]
    assert not benchmark.judge(slow)
    assert benchmark.exponent(rows) == pytest.approx(1.3)
    steep = {name: (benchmark.CASES[name].points / 200) ** 2.2 for name in benchmark.GROWING}
    assert not benchmark.judge(rows_of(benchmark, product | steep) + literal)
