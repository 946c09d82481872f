"""Counts by class agree with the recall of the table."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from example_tables import EXAMPLE, table

from dmlrepro import retrieval
from experiments.analysis import results, tables
from experiments.training import batches, inference
from experiments.training.spec import RunSpec

LABELS = np.array([0] * 6 + [1] * 6 + [2] * 5 + [3])  # the class of one image has no query
SPEC = RunSpec("glyphs", steps=1, method="PFML", embedding_size=4)


@pytest.fixture(params=["each other", "apart"])
def dataset(request, monkeypatch, tmp_path):
    """Test images that search each other, or queries that search a gallery apart; and an empty cache."""
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path))
    index = np.arange(len(LABELS))
    query, gallery = (index >= 0, index >= 0) if request.param == "each other" else (index % 2 == 0, index % 2 == 1)
    manifest = SimpleNamespace(labels=LABELS, is_query=query, is_gallery=gallery, indices=lambda split: index)
    monkeypatch.setattr(batches, "load_dataset", lambda spec: manifest)
    return manifest


def finished(dataset, seed, **changes):
    """A run with random embeddings, scored as training scores them."""
    spec = SPEC.replace(seed=seed, **changes)
    embeddings = torch.randn(len(LABELS), 4, generator=torch.Generator().manual_seed(10 * seed + (spec.fold or 0)))
    points, labels, searched = inference.searching(embeddings, dataset, dataset.indices("test"))
    scores = retrieval.retrieval(points, labels, (1,), measures=retrieval.MEASURES, **searched)
    selections = ("last", "val_best") if spec.restore_best else ("last",)
    rows = [{"selection": s, "step": 1, "metric": name, "value": v} for s in selections for name, v in scores.items()]
    key = f"run-{seed}-{changes}"
    of_store = {"record": None, "correct_per_class": None}
    return SimpleNamespace(spec=spec, dataset="glyphs", rows=rows, embeddings=embeddings, key=key, **of_store)


def test_counts_by_class_add_up_to_the_recall_of_the_table_and_folds_with_their_last_weights_have_none(dataset):
    folds = {"protocol": "mlrc", "folds": 2, "restore_best": True, "eval_every": 1}
    runs = [finished(dataset, seed) for seed in range(2)] + [finished(dataset, 0, setting="alpha=1")]
    runs += [finished(dataset, seed, fold=fold, **folds) for seed in range(2) for fold in range(2)]
    runs += [finished(dataset, 0, loss=None, steps=None, protocol="mlrc", method="untrained")]
    params = EXAMPLE.configured({})
    hits = results.hits(runs, params)
    assert list(hits) == tables.HITS and 3 not in set(hits["class_id"])
    cell = [*tables.CONTEXT, "method", "setting", "seed"]
    totals = hits.groupby(cell)[["hits", "queries"]].sum()
    rows = tables.chosen(results.tidy(runs, params))
    expected = rows[rows["metric"] == "R@1"].set_index(cell)["value"]
    assert len(totals) == len(expected) == 3 + 2 * 2 + 2
    pd.testing.assert_series_equal(
        100 * totals["hits"] / totals["queries"], expected, check_like=True, check_names=False
    )
    runs = [finished(dataset, 0, fold=fold, folds=2, protocol="mlrc") for fold in range(2)]
    assert results.hits(runs, EXAMPLE.configured({})).empty


def test_counts_of_a_class_are_those_of_its_queries(dataset):
    run = finished(dataset, 0)
    hits = results.hits([run], EXAMPLE.configured({})).set_index("class_id")
    query, gallery = torch.from_numpy(dataset.is_query), torch.from_numpy(dataset.is_gallery)
    labels = torch.from_numpy(LABELS)
    others = {} if query.all() else {"gallery": run.embeddings[gallery], "gallery_labels": labels[gallery]}
    per_query = retrieval.retrieval_per_query(run.embeddings[query], labels[query], (1,), **others)
    for class_id in range(3):
        mine = labels[query] == class_id
        assert hits.loc[class_id, "hits"] == per_query["R@1"][mine].sum()
        assert hits.loc[class_id, "queries"] == (per_query["relevant"][mine] > 0).sum()


def test_counts_of_a_run_are_kept_under_its_key(dataset, monkeypatch):
    folds = {"protocol": "mlrc", "folds": 2, "restore_best": True, "eval_every": 1}
    runs = [finished(dataset, 0), finished(dataset, 1), *(finished(dataset, 0, fold=fold, **folds) for fold in (0, 1))]
    params = EXAMPLE.configured({})
    first, scored = results.hits(runs, params), results.tidy(runs, params)
    for name in ("nearest", "retrieval_per_query"):
        monkeypatch.setattr(retrieval, name, lambda *a, **k: pytest.fail("searched again"))
    pd.testing.assert_frame_equal(results.hits(runs, params), first)
    pd.testing.assert_frame_equal(results.tidy(runs, params), scored)
    with pytest.raises(pytest.fail.Exception, match="searched again"):
        results.hits([finished(dataset, 2)], params)


def test_percentages_end_at_a_hundred_and_other_measures_do_not():
    results.validate(table(100.0))
    results.validate(table(50.0).assign(metric="seconds_ratio", value=100.5))
    bad = [({"value": 100.5}, "percentages"), ({"value": -0.5}, "percentages"), ({"value": float("nan")}, "finite")]
    for change, message in (*bad, ({"selection": "best"}, "selection"), ({"method": ""}, "method is empty")):
        with pytest.raises(ValueError, match=message):
            results.validate(table(50.0).assign(**change))


def test_a_measurement_at_two_steps_is_one_twice_unless_every_evaluation_is_kept():
    for selection, steps in (("every", (1, 2)), ("last", (1, 2)), ("every", (1, 1))):
        rows = pd.concat([table(50.0).assign(selection=selection, step=step) for step in steps])
        if (selection, steps) == ("every", (1, 2)):
            results.validate(rows)
            continue
        with pytest.raises(ValueError, match="the same measurement twice"):
            results.validate(rows)
