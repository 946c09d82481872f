"""The benchmark of the loop measures, compares with its limit, and leaves out what has no data."""

import pytest


def test_a_case_is_measured(benchmark):
    ((row,), passed) = benchmark.main(benchmark.QUICK)
    assert passed and row["limit"] is None
    assert row["ratio"] == pytest.approx(row["loop_images_per_second"] / row["bare_images_per_second"], rel=0.5)
    assert 0.02 < row["ratio"] < 1.5


def test_a_slow_loop_fails_and_a_missing_set_is_left_out(benchmark, monkeypatch, tmp_path, capsys):
    spec, steps, _ = benchmark.QUICK["quick"]
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path))
    monkeypatch.setattr(benchmark, "LIMIT", {"cpu": 100, "cuda": 100})
    rows, passed = benchmark.main({"slow": (spec, steps, True), "absent": benchmark.CASES["cub-subset PFML"]})
    assert [row["case"] for row in rows] == ["slow"] and not passed
    assert "absent: left out" in capsys.readouterr().err
