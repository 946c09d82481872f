"""What `make test` does with a notebook: one that stopped running, or whose numbers moved, fails it and is named."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NAME = "30_meanfield_magnet"  # trains nothing
BROKEN_METRIC = """
from experiments.meanfield import magnet
right = magnet.field_offset
magnet.field_offset = lambda *given: 1 + right(*given)
"""


def checked(folder: Path, first_cell: str = "") -> subprocess.CompletedProcess:
    """The notebook with a cell in front of its others, as `make nbval` treats it."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{NAME}.ipynb", as_version=4)
    if first_cell:
        notebook.cells.insert(0, nbformat.v4.new_code_cell(first_cell, execution_count=0))
    nbformat.write(notebook, folder / f"{NAME}.ipynb")
    return subprocess.run(
        [sys.executable, ROOT / "workflow" / "fresh.py", folder / f"{NAME}.ipynb"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_notebook_as_it_is_passes_and_a_broken_one_fails(tmp_path):
    passed = checked(tmp_path)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert NAME in passed.stdout and " 0 outside their tolerance" in passed.stdout

    raises = checked(tmp_path, "raise RuntimeError('broken on purpose')")
    assert raises.returncode != 0 and "broken on purpose" in raises.stdout

    wrong = checked(tmp_path, BROKEN_METRIC)
    assert wrong.returncode != 0 and "within tolerance of the golden run: no" in wrong.stdout
    assert " 0 outside their tolerance" not in wrong.stdout
