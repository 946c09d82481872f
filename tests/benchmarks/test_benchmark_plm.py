"""The benchmark's two forms find the same pieces, its limits can be missed, and its measurement runs apart."""

from dmlrepro.losses import piecewise_linear


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
