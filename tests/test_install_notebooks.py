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


def test_only_notebooks_that_are_there_with_the_same_code_are_replaced_and_edited_markdown_stays(tmp_path):
    built, target = tmp_path / "build", tmp_path / "notebooks"
    for folder, names in (
        (built, ("00_tour", "00_tour--steps=1", "10_changed", "98_gone")),
        (target, ("00_tour", "10_changed", "99_not_executed")),
    ):
        folder.mkdir()
        for name in names:
            notebook = executed("parameters")
            notebook.cells.append(nbformat.v4.new_markdown_cell(folder.name))
            if folder == target:
                notebook.cells[1].outputs = []
                notebook.cells[1].source += "\nprint(2)" * (name == "10_changed")
            nbformat.write(notebook, folder / f"{name}.ipynb")
    install_notebooks.main(built, target)
    cells = {path.stem: nbformat.read(path, as_version=4).cells for path in target.iterdir()}
    assert {name: [output.text for output in each[1].outputs] for name, each in cells.items()} == {
        "00_tour": ["stdout"],
        "10_changed": [],
        "99_not_executed": [],
    }
    assert all(each[2].source == "notebooks" for each in cells.values())
