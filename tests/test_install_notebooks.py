"""What `make notebooks` commits: notebooks with their outputs, and nothing of the machine that executed them."""

import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "workflow"))
import install_notebooks  # noqa: E402


def executed(*tags: str) -> nbformat.NotebookNode:
    """A notebook as papermill leaves it: a cell with parameters, one that prints and warns."""
    parameters = nbformat.v4.new_code_cell("steps = 1", metadata={"tags": list(tags)}, execution_count=7)
    printed = [nbformat.v4.new_output("stream", name=name, text=name) for name in ("stdout", "stderr")]
    cell = nbformat.v4.new_code_cell("print(steps)", outputs=printed, execution_count=9)
    cell.metadata["papermill"] = {"duration": 1.0}
    return nbformat.v4.new_notebook(cells=[parameters, cell], metadata={"papermill": {"duration": 2.0}})


def test_outputs_stay_and_what_papermill_added_goes():
    cleaned = install_notebooks.clean(executed("injected-parameters"))
    (cell,) = cleaned.cells
    assert "papermill" not in cleaned.metadata and "papermill" not in cell.metadata
    assert [output.name for output in cell.outputs] == ["stdout"] and cell.execution_count == 1
    assert len(install_notebooks.clean(executed("parameters")).cells) == 2


def test_only_notebooks_that_are_there_with_the_same_code_are_replaced(tmp_path):
    built, target = tmp_path / "build", tmp_path / "notebooks"
    for folder in (built, target):
        folder.mkdir()
    for name in ("00_tour", "00_tour--steps=1", "10_changed", "98_gone"):
        nbformat.write(executed("parameters"), built / f"{name}.ipynb")
    for name in ("00_tour", "10_changed", "99_not_executed"):
        committed = executed("parameters")
        committed.cells[1].outputs = []
        committed.cells[1].source += "\nprint(2)" * (name == "10_changed")
        nbformat.write(committed, target / f"{name}.ipynb")
    install_notebooks.main(built, target)
    outputs = {path.stem: nbformat.read(path, as_version=4).cells[1].outputs for path in sorted(target.iterdir())}
    assert [output.text for output in outputs.pop("00_tour")] == ["stdout"]
    assert outputs == {"10_changed": [], "99_not_executed": []}


def test_markdown_that_was_edited_after_the_execution_stays(tmp_path):
    built, target = tmp_path / "build", tmp_path / "notebooks"
    for folder, text in ((built, "100 steps"), (target, "150 steps")):
        folder.mkdir()
        notebook = executed("parameters")
        notebook.cells.insert(0, nbformat.v4.new_markdown_cell(text))
        notebook.cells[2].outputs = notebook.cells[2].outputs if folder == built else []
        nbformat.write(notebook, folder / "00_tour.ipynb")
    install_notebooks.main(built, target)
    text, _, cell = nbformat.read(target / "00_tour.ipynb", as_version=4).cells
    assert text.source == "150 steps" and [output.text for output in cell.outputs] == ["stdout"]
