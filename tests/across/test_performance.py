"""Notebook 93: fitted powers and ratios are those of the tables, and no table is overlooked."""

import harness
import numpy as np
import pandas as pd
import pytest

from experiments.across import performance


def grown(folder, power: float, sizes=(100, 200, 400, 800), k=9) -> None:
    values = [3.0 * size**power for size in sizes]
    columns = {"case": [f"N={size}" for size in sizes], "points": sizes, "k": k, "members": np.arange(len(sizes))}
    columns |= {"form": "product", "metric": "seconds", "value": values, "ratio": None}  # members may differ
    pd.DataFrame(columns).to_csv(folder / "plm.csv", index=False)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "results" / "benchmarks").mkdir(parents=True)
    monkeypatch.setattr(performance, "repository_root", lambda: tmp_path)
    monkeypatch.setattr(performance, "BENCHMARKS", {"plm": ("PLM's pieces", "points")})
    return tmp_path / "results" / "benchmarks"


def legend() -> list[str]:
    (axis,) = performance.growth_figure().axes
    return [text.get_text() for text in axis.get_legend().get_texts()]


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_the_fitted_power_is_that_of_the_table(folder, power):
    grown(folder, power)
    assert legend() == [f"product: slope {power:.2f}"]


@pytest.mark.filterwarnings("ignore:No artists with labels")
def test_two_sizes_and_rows_that_differ_in_more_than_size_are_not_fitted(folder):
    for sizes, k in (((100, 200), 9), ((100, 200, 400, 800), [9, 9, 12, 12])):
        grown(folder, 1.0, sizes, k)
        assert legend() == []


def test_a_benchmark_without_a_reader_is_found(monkeypatch, capsys):
    performance.check()
    assert capsys.readouterr().out.endswith(": yes\n")
    monkeypatch.delitem(performance.BENCHMARKS, "tail")
    performance.check()
    assert capsys.readouterr().out.endswith("no, not ['tail']\n")


def test_a_peer_is_over_ours_within_one_run_and_never_across():
    runs = [("one", "product", 2.0), ("one", "matmul", 1.0), ("two", "product", 4.0), ("two", "whole", 40.0)]
    rows = [{"turns": turns, "form": form, "value": value} for turns, form, value in [*runs, ("two", "slow", 80.0)]]
    assert [row["ratio"] for row in harness.with_ratios(rows, {"slow": "whole"})] == [None, 0.5, None, None, 2.0]
    assert "device" not in rows[0] and harness.with_ratios(rows[1:2]) == [rows[1] | {"ratio": None}]


def test_the_committed_ratios_are_those_of_their_values():
    shown = performance.ratios()
    assert shown.loc["PFML", "random", "", "literal"].tolist() == ["14.7", "21.8"]
    assert shown.loc["Training loop", "glyphs PFML", "", "bare network"].tolist() == ["0.497", ""]
