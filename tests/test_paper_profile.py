"""Notebook 10 as papermill runs it at profile paper, on SOP and In-Shop in the files that their authors publish."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import official_layouts
import pytest

from experiments.analysis import saving, tables
from experiments.training import protocols

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
QUERIES = 19  # of In-Shop; its 26 gallery images or all 45 as queries would give other multiples
SHORT = {"profile": "paper", "epochs": 1, "batch_size": 8, "lr": 1e-4, "seeds": 1, "threads": 1, "small_dim": 8}
SHORT |= {"backbone": "squeezenet1_1", "weights": "none", "embedding_size": 16, "image_size": 64, "test_resize": 64}
SHORT |= {"methods": ["PFML", "MultiSimilarity"]}


@pytest.mark.parametrize(
    ("dataset", "values"), [("inshop", {"protocol": "conventional"}), ("sop", {"protocol": "mlrc", "search_trials": 1})]
)
def test_the_notebook_runs_from_official_files_to_a_table(dataset, values, shared_cache, tmp_path):
    train = dict.fromkeys(range(1, 13), 4)
    official_layouts.write_sop(tmp_path, train, dict.fromkeys(range(13, 28), 3))
    test = {item: {"query": 1 + (item < 106), "gallery": 2} for item in range(100, 113)}
    official_layouts.write_inshop(tmp_path, {item: {"train": size} for item, size in train.items()} | test)
    given, executed = tmp_path / "values.yaml", tmp_path / "executed.ipynb"
    given.write_text(json.dumps(SHORT | {"dataset": f"{dataset}-subset"} | values))  # JSON is YAML
    folders = {"DMLREPRO_DATA": tmp_path, "DMLREPRO_CACHE": shared_cache, "DMLREPRO_RESULTS": tmp_path}
    environment = os.environ | {name: str(folder) for name, folder in folders.items()} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "papermill", "notebooks/10_pfml_retrieval.ipynb", executed, "-f", given]
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-2000:]
    (path,) = [path for path in (tmp_path / "paper").glob("*.csv") if not path.name.endswith(".cost.csv")]
    table = saving.read(path)

    folds = protocols.find(values["protocol"]).folds
    assert set(table["dataset"]) == {f"{dataset}-subset"}  # a few images never pass for the benchmark
    assert set(table["protocol"]) == ({"MLRC separated", "MLRC concatenated"} if folds else {"conventional"})
    during = table["selection"] == "every"  # the evaluations that the curve of R@1 shows
    assert during.any() != bool(folds) and set(table.loc[during, "setting"]) <= {tables.CURVE}
    table = table[~during]
    assert set(table["selection"]) == {"last", "val_best" if folds else "test_best"}
    assert set(table["setting"]) == ({""} if folds else {"", "dim=8"})
    starts = set() if folds else {"random head"}  # of the further dimension
    assert set(table["method"]) == {"PFML", "MultiSimilarity"} | starts
    ranks = {name for name in table["metric"] if name.startswith("R@")}
    assert ranks == {f"R@{k}" for k in protocols.KS[dataset]}
    if dataset == "inshop":
        recall = table.loc[table["metric"] == "R@1", "value"]
        hits = recall / 100 * QUERIES
        assert (hits - hits.round()).abs().max() < 1e-3
        assert recall.between(0, 100, inclusive="neither").any()
    shown = "".join(str(cell.get("outputs", "")) for cell in nbformat.read(executed, as_version=4).cells)
    assert ("chosen, all folds" in shown) == bool(folds)
