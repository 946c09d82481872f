"""Notebook 93: fitted powers and ratios are those of the tables, and no table is overlooked."""

import numpy as np
import pandas as pd
import pytest

from experiments.across import performance


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.setattr(performance, "folder", lambda: tmp_path)

    def write(name: str, **columns) -> None:
        pd.DataFrame(columns).to_csv(tmp_path / f"{name}.csv", index=False)

    return write


def grown(power: float, sizes=(100, 200, 400, 800), k=9) -> dict:
    values = [3.0 * size**power for size in sizes]
    columns = {"case": [f"N={size}" for size in sizes], "points": sizes, "k": k, "members": np.arange(len(sizes))}
    return columns | {"form": "product", "metric": "seconds", "value": values}  # members may differ


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_the_fitted_power_is_that_of_the_table(tables, power):
    tables("plm", **grown(power))
    figure = performance.growth_figure()
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [f"product: slope {power:.2f}"]
    assert performance.series("plm")["seconds"]["product"][0].tolist() == [100, 200, 400, 800]


def test_two_sizes_and_rows_that_differ_in_more_than_size_are_not_fitted(tables):
    tables("plm", **grown(1.0, (100, 200)))
    assert performance.series("plm") == {}
    tables("plm", **grown(1.0, k=[9, 9, 12, 12]))
    assert performance.series("plm") == {}


def test_a_peer_is_over_ours_within_one_run_and_never_across(tables):
    forms = {"turns": ["one", "one", "two", "two"], "form": ["product", "matmul", "product", "literal"]}
    tables("pfml", case=["sop"] * 4, **forms, metric="seconds", value=[2.0, 1.0, 4.0, 40.0])
    pairs = performance.ratios(performance.LOSSES)
    assert pairs["time"].to_dict() == {"PFML, sop: matmul": 0.5, "PFML, sop: literal": 10.0} and list(pairs) == ["time"]


def test_a_benchmark_without_a_table_or_without_a_reader_is_found(tables, monkeypatch, capsys):
    tables("plm", **grown(1.0))
    performance.check()
    assert "no, not ['k_center', 'loop', 'mean_field'" in (said := capsys.readouterr().out) and "'plm'" not in said
    monkeypatch.undo()
    monkeypatch.delitem(performance.BENCHMARKS, "tail")
    performance.check()
    assert capsys.readouterr().out.endswith("no, not ['tail']\n")


def test_the_committed_tables_are_all_read_have_the_peers_and_the_ratios_that_the_loops_own_says(capsys):
    performance.check()
    assert capsys.readouterr().out.endswith(": yes\n")
    pairs = performance.ratios(["loop"])
    table = pd.read_csv(performance.folder() / "loop.csv")
    assert np.allclose(pairs["time"], table["ratio"], rtol=0.01)
    for name, benchmark in performance.BENCHMARKS.items():
        assert set(benchmark.peers.values()) <= set(performance.table_of(name)["form"]), name
