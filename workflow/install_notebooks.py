"""Put the outputs of executed notebooks into the committed ones, whose text stays; what papermill added goes."""

import base64
import io
import sys
from pathlib import Path

import nbformat
from PIL import Image

from experiments.files import write_text

LIMIT = 400_000  # bytes: a committed notebook must load on the web


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    notebook.metadata.pop("papermill", None)
    notebook.cells = [c for c in notebook.cells if "injected-parameters" not in c.metadata.get("tags", [])]
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    for number, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), 1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = with_a_palette(output.data["image/png"])
    return notebook


def code(notebook: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def with_outputs(committed: nbformat.NotebookNode, executed: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The committed notebook as it was executed: its Markdown may have been edited since then."""
    own, run = ([cell for cell in notebook.cells if cell.cell_type == "code"] for notebook in (committed, executed))
    for cell, done in zip(own, run, strict=True):
        cell.outputs, cell.execution_count = done.outputs, done.execution_count
    committed.metadata = executed.metadata
    return committed


def with_a_palette(png: str) -> str:
    """A PNG in base64 with at most 256 colours where that is smaller: a figure keeps its looks and loses two thirds."""
    image, smaller = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"), io.BytesIO()
    image.quantize(256, dither=Image.Dither.NONE).save(smaller, "PNG", optimize=True)
    return min(base64.b64encode(smaller.getvalue()).decode("ascii"), png, key=len)


def main(built: Path, target: Path) -> None:
    """Executions with changed parameters, of notebooks that are gone, and of other code than the committed one's, which
    an earlier build left, stay where they are."""
    for path in [built / known.name for known in sorted(target.glob("*.ipynb")) if (built / known.name).exists()]:
        executed = clean(nbformat.read(path, as_version=4))
        committed = nbformat.read(target / path.name, as_version=4)
        if code(executed) != code(committed):
            print(f"{target / path.name} stays: the execution in {built} is of other code")
            continue
        text = nbformat.writes(with_outputs(committed, executed)) + "\n"
        if len(text) > LIMIT:
            raise SystemExit(f"{path.name} has {len(text)} bytes with outputs, the limit is {LIMIT}: smaller figures")
        write_text(target / path.name, text)
        print(f"{target / path.name}: {len(text) // 1000} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
