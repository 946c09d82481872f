"""The benchmark's two forms compute the same thing, its limits can be missed, and its table is written."""


def test_forms_agree(benchmark, monkeypatch):
    arguments = benchmark.problem(benchmark.CASES["tiny"])
    assert benchmark.disagreement(*arguments) < 1e-3
    assert 0.05 < benchmark.close_share(*arguments) < 0.5
    monkeypatch.setattr(benchmark, "DELTA", 0.19)
    assert benchmark.disagreement(*arguments) > 1e-2
