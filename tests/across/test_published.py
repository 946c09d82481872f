"""Notebook 90: what is joined with what, which of our tables stands beside a row, and that nothing is lost."""

import dataclasses

import pandas as pd
import pytest

from experiments.across import published
from experiments.analysis import claims, results, stored
from experiments.report import catalogue


def made(values: dict[str, float], stem="10_pfml_retrieval", dataset="glyphs", profile="quick", **where):
    """A table of results/ with R@1 of cells, one seed."""
    where = {"dataset": dataset, "profile": profile, "protocol": "conventional", "metric": "R@1", "dim": 64} | where
    where |= {"paper": "pfml", "experiment": stem[:17], "backbone": "conv4"}
    cells = {cell: cell.partition(";")[::2] for cell in values}
    rows = [where | dict(zip(("method", "setting"), cells[cell])) | {"value": values[cell]} for cell in values]
    return stored.Stored(stem, results.frame(rows), {"steps": 150, "batch_size": 100, "samples_per_class": 4})


@pytest.fixture
def joined_with(monkeypatch):
    """(our tables of notebook 10) -> the rows of PFML's Table 1 on ResNet-50, joined."""

    def join(*tables: stored.Stored) -> pd.DataFrame:
        by_notebook = {"10_pfml_retrieval": list(tables)}
        monkeypatch.setattr(stored, "stored", lambda name: by_notebook.get(name, []))
        rows = published.joined()
        rows = rows[(rows["paper"] == "pfml") & (rows["table"] == "Table 1") & (rows["backbone"] == "ResNet50")]
        return rows[rows["metric"] == "R@1"].set_index(["dataset", "method"])

    return join


def test_every_published_table_has_a_notebook_that_exists_and_one_without_is_found(monkeypatch, capsys):
    assert set(published.printed()["notebook"]) <= set(catalogue.studies())
    published.check()
    kept = [row for row in claims.rows_of("printed_tables.csv") if (row["paper"], row["table"]) != ("plm", "Table 2")]
    monkeypatch.setattr(claims, "rows_of", lambda name: kept)
    published.check()
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(": yes") and "no, not ['Table 2']" in said[1]


@pytest.mark.parametrize(
    ("row", "cell"),
    [
        (("pfml", "Table 9 (supp)", "Potential Field (Ours) M=5", "one A4000 GPU"), "PFML;M=5"),
        (("pfml", "Table 2", "PNCA", "20% label noise"), "ProxyNCA++;label_noise=0.2"),
        (("pfml", "Table 4 (supp)", "SoftTriple", "standard zero-shot split; 64-dim"), "SoftTriple;dim=64"),
        (("pfml", "Fig. 3(d)", "Ours", "delta_rep=0.25"), "PFML;delta_rep=0.25"),
        (("meanfield", "Table 8 (supp)", "MFCWMS", "traditional protocol; batch size 30"), "MFCWMS;batch=30"),
        (("meanfield", "Table 13 (supp)", "MFCont.", "traditional protocol; lambda_MF=0.1"), "MFCont;lambda=0.1"),
        (("nivmf", "Table 4 (supp)", "d_Cos", "euclidean retrieval"), "Cosine;retrieval=euclidean"),
        (("plm", "Fig. 3(c)", "Ours", "N_alpha=4;N_beta=1"), "PLM;N_alpha=4;N_beta=1"),
        (
            ("plm", "Table 3 (supp)", "(2) Ours - similarity (Sec 3.3, 3.5)", "unsupervised; similarity ablation"),
            "PLM;similarity=binary",
        ),
    ],
)
def test_a_published_row_as_a_cell_of_our_tables(row, cell):
    assert str(published.cell_of(*row)) == cell


def test_a_row_has_ours_on_its_own_data_where_there_are_any_else_on_what_there_is(joined_with):
    rows = joined_with(
        made({"PFML": 90.0, "ProxyAnchor": 80.0}),
        made({"PFML": 60.0}, "10_pfml_retrieval--seeds=1", "cub-subset", "small"),
    )
    ours = rows["ours"].loc
    assert ours["CUB-200-2011", "Potential Field (Ours)"].value == 60.0
    assert ours["Cars-196", "Potential Field (Ours)"].value == 60.0  # small carries more than quick
    assert ours["CUB-200-2011", "Proxy Anchor"].value == 80.0
    assert ours["CUB-200-2011", "HIST"] is None


def test_models_of_folds_stand_beside_what_is_scored_as_they_are(monkeypatch):
    folds = {"MLRC separated": 10.0, "MLRC concatenated": 20.0}
    tables = [made({"MFCont": value}, "31_meanfield_mlrc", protocol=name) for name, value in folds.items()]
    both = dataclasses.replace(tables[0], table=pd.concat([saved.table for saved in tables], ignore_index=True))
    monkeypatch.setattr(stored, "stored", lambda name: [both] if name.startswith("31") else [])
    rows = published.joined()
    rows = rows[rows["ours"].notna() & (rows["metric"] == "P@1")]
    assert len(rows) and all(folds[row.split_or_setting] == row.ours.value for row in rows.itertuples())


def test_beside_a_number_stands_what_differs_and_whose_settings_were_searched(joined_with):
    searched = dataclasses.replace(made({"PFML": 90.0}), searches={"PFML": {"trials": 16}})
    rows = joined_with(searched).reset_index()
    text = published.beside(rows, "pfml").to_string()
    said = ("ResNet50, 512 dimensions", "150 steps", "16 trials", "a direction only")
    assert all(part in text for part in said)


@pytest.mark.parametrize(("order", "tau"), [([3.0, 2.0, 1.0], 1.0), ([1.0, 2.0, 3.0], -1.0)])
def test_the_order_of_the_methods_is_compared(joined_with, order, tau):
    printed = joined_with(made({"PFML": 0.0, "CPML": 0.0, "ProxyAnchor": 0.0}))["value"].loc["CUB-200-2011"]
    known = {"Potential Field (Ours)": "PFML", "CPML (Sec. 3.4)": "CPML", "Proxy Anchor": "ProxyAnchor"}
    highest_first = [known[name] for name in printed.sort_values(ascending=False).index if name in known]
    ours = dict(zip(highest_first, order))
    assert published.deviations(joined_with(made(ours)).reset_index()).empty, "a demo carries no evidence"
    rows = joined_with(made(ours, profile="small")).reset_index()
    orders = published.agreement(rows)
    assert orders.loc[orders["dataset"] == "CUB-200-2011", "tau"].tolist() == [tau]
    assert not orders["same data"].any()
    deviations = published.deviations(rows)
    assert deviations.groupby("comparison")[["theirs", "ours"]].mean().abs().to_numpy().max() < 1e-9


def test_without_any_table_of_ours_nothing_is_joined(monkeypatch):
    monkeypatch.setattr(stored, "stored", lambda name: [])
    rows = published.joined()
    assert rows["ours"].isna().all() and len(rows) > 2000
    assert published.beside(rows, "ccp").empty
    table = published.counterparts(rows)
    assert len(table) == len(rows[["paper", "table"]].drop_duplicates())
    assert table["rows"].sum() == len(rows) and not table["joined"].any()
