"""Tables are validated whole and written whole."""

import pandas as pd
import pytest

from dmlrepro.evidence import results, tables
from dmlrepro.papers.params import Params


class Example(Params):
    notebook = "99_example"
    paper = "pfml"


ROW = {"paper": "pfml", "experiment": "99_example", "profile": "quick", "dataset": "glyphs", "method": "PFML"}


def table(*values):
    return results.frame([ROW | {"seed": i, "metric": "R@1", "value": value} for i, value in enumerate(values)])


def test_what_is_written_is_read_back():
    path = results.save(table(50.0, 60.0), Example.from_values({}))
    pd.testing.assert_frame_equal(results.read(path), table(50.0, 60.0), check_dtype=False)
    assert path.name == "99_example.csv"
    assert path.with_suffix(".json").exists()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"value": float("nan")}, "finite"),
        ({"value": 101.0}, r"\[0, 100\]"),
        ({"selection": "best"}, "selection"),
        ({"method": ""}, "method is empty"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(change, message):
    params = Example.from_values({})
    good = results.save(table(50.0), params).read_bytes()
    bad = pd.concat([table(50.0), table(50.0).assign(seed=1, **change)], ignore_index=True)
    with pytest.raises(ValueError, match=message):
        results.save(bad, params)
    assert (results.output_folder("quick") / "99_example.csv").read_bytes() == good


def test_the_same_measurement_twice_is_an_error():
    with pytest.raises(ValueError, match="twice"):
        results.frame([ROW | {"metric": "R@1", "value": 1.0}] * 2)


def test_unchanged_numbers_keep_their_provenance(monkeypatch):
    params = Example.from_values({})
    path = results.save(table(50.0), params)
    before = path.with_suffix(".json").read_text()
    monkeypatch.setattr(results, "provenance", lambda params: {"git_commit": "another"})
    results.save(table(50.0), params)
    assert path.with_suffix(".json").read_text() == before
    results.save(table(51.0), params)
    assert "another" in path.with_suffix(".json").read_text()


def test_the_order_of_rows_does_not_change_the_bytes():
    rows = table(1.0, 2.0, 3.0)
    assert results.to_csv(rows) == results.to_csv(rows.iloc[::-1])


def test_published_numbers_are_found_and_a_miss_lists_what_exists():
    rows = results.published("pfml", "Table 1", dataset="CUB-200-2011", backbone="ResNet50", metric="R@1")
    assert rows.set_index("method")["value"]["Potential Field (Ours)"] == 73.4
    with pytest.raises(ValueError, match=r"no published row with table in \['Table 11'\]"):
        results.published("pfml", "Table 11")


def test_golden_comparison_sees_a_moved_and_a_missing_number():
    golden = results.golden_means(table(50.0, 60.0)).assign(tolerance=0.5)
    assert results.compare_golden(table(50.4, 60.4), golden).empty
    assert list(results.compare_golden(table(51.2, 60.0), golden)["new"]) == [pytest.approx(55.6)]
    assert len(results.compare_golden(table(50.0, 60.0).assign(method="CPML"), golden)) == 1


def test_a_pivot_shows_students_interval_of_what_the_validation_classes_chose():
    rows = [
        ROW | {"protocol": "MLRC separated", "metric": "MAP@R", "seed": seed, "selection": selection, "value": value}
        for seed, value in enumerate((41.0, 42.0, 44.0))
        for selection, value in (("val_best", value), ("last", 10.0))
    ]
    rows += [ROW | {"protocol": "conventional", "metric": "MAP@R", "value": 7.0}]
    shown = results.pivot(results.frame(rows), ["MAP@R", "P@1"]).reset_index()
    # t(0.975, 2) = 4.302653 times the standard deviation sqrt(7 / 3) over sqrt(3)
    assert dict(zip(shown["protocol"], shown["MAP@R"])) == {"MLRC separated": "42.3 ± 3.8", "conventional": "7.0"}
    assert shown["P@1"].isna().all()


def test_what_validation_chose_stands_beside_the_published_numbers():
    selections = {"last": 50.0, "val_best": 60.0, "test_best": 70.0}
    rows = [{"selection": s, "metric": "R@1", "value": v} for s, v in selections.items()]
    rows += [{"method": "untrained", "metric": name, "value": 20.0} for name in ("R@1", "R@10", "R@100")]
    found = results.frame([ROW | row for row in rows])
    assert results.recalls(found) == ["R@1", "R@10", "R@100"]
    assert list(tables.chosen(found)["selection"]) == ["val_best", "last", "last", "last"]
    beside = results.beside_published(found, results.published("pfml", "Table 1", metric="R@1"), ["R@1", "R@2"])
    ours = beside["ours glyphs R@1"]
    assert dict(ours[ours != ""]) == {"PFML": 60.0, "untrained": 20.0}
    assert not [name for name in beside if "R@2" in name]  # SOP and In-Shop have other ranks
    with pytest.raises(ValueError, match=r"the table has none of R@2; it has \['R@1', 'R@10', 'R@100'\]"):
        results.beside_published(found, results.published("pfml", "Table 1", metric="R@1"), ["R@2"])
