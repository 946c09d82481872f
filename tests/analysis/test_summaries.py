"""What a reader sees of tables: means, intervals, published numbers."""

import numpy as np
import pandas as pd
import pytest
from example_tables import ROW

from experiments.analysis import results, summaries, tables


def test_a_pivot_shows_students_interval_of_what_the_validation_classes_chose():
    rows = [
        ROW | {"protocol": "MLRC separated", "metric": "MAP@R", "seed": seed, "selection": selection, "value": value}
        for seed, value in enumerate((41.0, 42.0, 44.0, 43.0, 40.0))
        for selection, value in (("val_best", value), ("last", 10.0))
    ]
    rows += [ROW | {"protocol": "conventional", "metric": "MAP@R", "value": 7.0}]
    rows += [row | {"metric": "W2", "value": row["value"] / 100} for row in rows if row.get("selection") == "val_best"]
    shown = summaries.pivot(results.frame(rows), ["MAP@R", "P@1", "W2"]).reset_index()
    # t(0.975, 4) = 2.776445 times the standard deviation sqrt(5 / 2) over sqrt(5)
    assert dict(zip(shown["protocol"], shown["MAP@R"])) == {"MLRC separated": "42.0 ± 2.0", "conventional": "7.0"}
    assert sorted(shown["W2"]) == ["", "0.420 ± 0.020"]
    few = summaries.pivot(results.frame(row for row in rows if row.get("seed", 0) < 4), ["MAP@R"]).reset_index()
    assert dict(zip(few["protocol"], few["MAP@R"])) == {"MLRC separated": "42.5", "conventional": "7.0"}
    assert (shown["P@1"] == "").all()


def test_what_exceeds_two_is_a_percentage_and_has_one_decimal():
    assert [summaries.decimals([value, 0.1]) for value in (2.0, -2.0, 2.01, -2.01)] == [3, 3, 1, 1]


def test_a_readable_table_is_rounded_and_empty_where_nothing_is_known():
    table = pd.DataFrame({"ours": [1.26, np.nan], "count": [3, 4]})
    shown = summaries.readable(table, 1)
    assert shown.to_numpy().tolist() == [[1.3, 3], ["", 4]]
    assert "NaN" not in shown.to_html()


def test_published_numbers_are_found_and_what_validation_chose_stands_beside_them():
    selections = {"last": 50.0, "val_best": 60.0, "test_best": 70.0}
    rows = [{"selection": s, "metric": "R@1", "value": v} for s, v in selections.items()]
    rows += [{"method": "untrained", "metric": name, "value": 20.0} for name in ("R@1", "R@10", "R@100")]
    table = results.frame([ROW | row for row in rows])
    assert summaries.recalls(table) == ["R@1", "R@10", "R@100"]
    assert list(tables.chosen(table)["selection"]) == ["val_best", "last", "last", "last"]
    measured = results.frame([ROW | {"selection": "last", "metric": "spread", "value": 0.5}])
    assert list(tables.chosen(pd.concat([table, measured]))["metric"])[-1] == "spread"  # it has no other selection
    beside = summaries.beside_published(table, summaries.published("pfml", "Table 1", metric="R@1"), ["R@1", "R@2"])
    ours = beside["ours glyphs R@1"]
    assert dict(ours[ours != ""]) == {"PFML": 60.0, "features before training": 20.0}
    assert not [name for name in beside if "R@2" in name]  # SOP and In-Shop have other ranks
    with pytest.raises(ValueError, match=r"the table has none of R@2; it has \['R@1', 'R@10', 'R@100'\]"):
        summaries.beside_published(table, summaries.published("pfml", "Table 1", metric="R@1"), ["R@2"])
    rows = summaries.published("pfml", "Table 1", dataset="CUB-200-2011", backbone="ResNet50", metric="R@1")
    assert rows.set_index("method")["value"]["Potential Field (Ours)"] == 73.4
    with pytest.raises(ValueError, match=r"no published row with table in \['Table 11'\]"):
        summaries.published("pfml", "Table 11")
