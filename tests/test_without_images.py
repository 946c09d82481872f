"""A clone without any data set: notebooks at `small` are executed from the store alone and give committed tables."""

import os

import nbformat
import pytest
from nbclient import NotebookClient

from experiments.files import repository_root

FIRST, *OTHERS = ("10_pfml_retrieval", "22_nivmf_distances", "34_meanfield_ablation_beta_delta", "41_ccp_retrieval")
IN_PLACE_OF_IMAGES = {"10_pfml_retrieval": 1, "41_ccp_retrieval": 1}  # figures


@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_notebook_is_executed_without_images_and_without_training(name, tmp_path):
    notebook = nbformat.read(repository_root() / "notebooks" / f"{name}.ipynb", 4)
    place = next(n for n, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell('profile = "small"'))
    folders = {f"DMLREPRO_{what}": str(tmp_path / what.lower()) for what in ("DATA", "CACHE", "RESULTS")}
    environment = {key: value for key, value in os.environ.items() if key != "DMLREPRO_RECORD"}
    where = {"metadata": {"path": str(repository_root() / "notebooks")}}
    client = NotebookClient(notebook, timeout=300, resources=where, kernel_name="python3")
    client.execute(env=environment | folders | {"DMLREPRO_TRAIN": "0"})
    made = tmp_path / "results" / "small" / f"{name}.csv"
    assert made.read_bytes() == (repository_root() / "results" / "small" / made.name).read_bytes()
    printed = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("Not shown with DMLREPRO_TRAIN=0" in text for text in printed) == IN_PLACE_OF_IMAGES.get(name, 0)
    assert not (tmp_path / "cache" / "runs").exists()
