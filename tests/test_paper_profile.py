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
COMMON = {
    "profile": "paper",
    "backbone": "squeezenet1_1",
    "weights": "none",
    "embedding_size": 16,
    "image_size": 64,
    "test_resize": 64,
    "epochs": 1,
    "batch_size": 8,
    "lr": 1e-4,
    "seeds": 1,
    "threads": 1,
    "methods": ["PFML", "MultiSimilarity"],
    "small_dim": 8,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    train = dict.fromkeys(range(1, 13), 4)
    official_layouts.write_sop(root, train, dict.fromkeys(range(13, 28), 3))
    test = {item: {"query": 1 + (item < 106), "gallery": 2} for item in range(100, 113)}
    official_layouts.write_inshop(root, {item: {"train": size} for item, size in train.items()} | test)
    return root


def run_papermill(folder: Path, data: Path, cache: Path, values: dict):
    """(table of results, executed notebook) of notebook 10."""
    folders = {"DMLREPRO_DATA": data, "DMLREPRO_CACHE": cache, "DMLREPRO_RESULTS": folder, "OMP_NUM_THREADS": 1}
    (folder / "values.yaml").write_text(json.dumps(values))  # JSON is YAML
    executed = folder / "executed.ipynb"
    command = [sys.executable, "-m", "papermill", ROOT / "notebooks" / "10_pfml_retrieval.ipynb", executed]
    command += ["--no-progress-bar", "-f", folder / "values.yaml"]
    environment = os.environ | {name: str(value) for name, value in folders.items()}
    finished = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-2000:]
    (path,) = [path for path in (folder / "paper").glob("*.csv") if not path.name.endswith(".cost.csv")]
    return saving.read(path), nbformat.read(executed, as_version=4)


@pytest.mark.parametrize(
    "protocol, changes",
    [
        ("conventional", {}),
        ("roth", {}),
        ("mlrc", {"search_trials": 1}),
        ("stml", {"batch_size": 20}),
        ("ccp_early_stopping", {"epochs": 0, "steps": 3}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("dataset", ["sop", "inshop"])
def test_the_notebook_runs_from_official_files_to_a_table(dataset, protocol, changes, data, shared_cache, tmp_path):
    values = COMMON | {"dataset": f"{dataset}-subset", "protocol": protocol} | changes
    table, notebook = run_papermill(tmp_path, data, shared_cache, values)

    assert set(table["dataset"]) == {f"{dataset}-subset"}  # a few images never pass for the benchmark
    folds = protocols.find(protocol).folds
    label = {"mlrc": "MLRC"}.get(protocol, protocol)
    assert set(table["protocol"]) == ({f"{label} separated", f"{label} concatenated"} if folds else {protocol})
    during = table["selection"] == "every"  # the evaluations that the curve of R@1 shows
    assert during.any() == (protocol == "conventional") and set(table.loc[during, "setting"]) <= {tables.CURVE}
    table = table[~during]
    assert set(table["selection"]) == {"last", "val_best" if folds else "test_best"}
    assert set(table["setting"]) == ({"", "dim=8"} if protocol == "conventional" else {""})
    starts = {"random head"} if protocol == "conventional" else set()  # of the further dimension
    assert set(table["method"]) == {"PFML", "MultiSimilarity"} | starts
    ranks = {name for name in table["metric"] if name.startswith("R@")}
    assert ranks == {f"R@{k}" for k in protocols.KS[dataset]}

    if dataset == "inshop":
        recall = table.loc[table["metric"] == "R@1", "value"]
        hits = recall / 100 * QUERIES * max(folds, 1)
        assert (hits - hits.round()).abs().max() < 1e-3
        assert recall.between(0, 100, inclusive="neither").any()

    shown = "".join(str(cell.get("outputs", "")) for cell in notebook.cells)
    assert ("chosen, all folds" in shown) == (protocol == "mlrc")


def test_the_name_of_a_benchmark_is_refused_to_a_part_of_it(data, shared_cache, tmp_path):
    with pytest.raises(AssertionError, match=r"this is 'sop-subset', ask for it by that name"):
        run_papermill(tmp_path, data, shared_cache, COMMON | {"dataset": "sop"})
