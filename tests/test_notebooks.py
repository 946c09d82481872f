"""What every committed notebook must have: it reads on the web, runs headlessly and is thin."""

import ast
import csv
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from experiments.report import catalogue

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@functools.cache
def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def test_it_is_committed_with_outputs_and_without_errors():
    for path in NOTEBOOKS:
        notebook = read(path)
        # nbval compares nothing in a cell without an execution count
        assert [cell.source for cell in code(notebook) if cell.execution_count is None] == [], path.stem
        assert [o for cell in code(notebook) for o in cell.outputs if o.output_type == "error"] == [], path.stem
        assert any(o.get("data", {}).get("image/png") for cell in code(notebook) for o in cell.outputs), path.stem
        assert "papermill" not in notebook.metadata, path.stem


def test_it_is_small_and_names_no_folder_of_a_machine():
    for path in NOTEBOOKS:
        text = path.read_text(encoding="utf8")
        assert len(text) < 400_000, path.stem
        words = re.sub(r'"image/png": "[^"]*"', "", text)  # letters of a picture may spell any folder
        assert str(ROOT) not in words and f"{Path.home()}/" not in words, path.stem


def test_it_defines_nothing_but_the_loss_that_it_teaches_and_compares_that_with_the_library():
    for path in NOTEBOOKS:
        for cell in code(read(path)):
            defined = [n for n in ast.walk(ast.parse(cell.source)) if isinstance(n, ast.ClassDef | ast.FunctionDef)]
            if defined:
                (loss,) = defined
                assert isinstance(loss, ast.FunctionDef) and loss.end_lineno - loss.lineno < 15, path.stem
                compared = re.search(r"^assert |assert_close\(", cell.source, re.MULTILINE)
                assert compared and "from dmlrepro" in cell.source, path.stem


# "`small`: the tail of a SqueezeNet ..., 150 steps. `paper`: ..."
BUDGETS = re.compile(r"`(quick|small)`: (.*?)(?=`quick`|`small`|`paper`|\n\n|$)", re.DOTALL)
LENGTH = re.compile(r"([\d,]+) steps")


def test_the_steps_that_it_states_are_those_of_its_runs():
    for path in NOTEBOOKS:
        text = "\n\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
        study = catalogue.find(path.stem)
        for profile, stated in BUDGETS.findall(text):
            if lengths := {int(number.replace(",", "")) for number in LENGTH.findall(stated)}:
                params = study.configured({"profile": profile})
                assert lengths & {spec.steps for spec in study.specs_untrained(params) if spec.loss}, (profile, stated)


CHECKED = (  # the first of notebooks that save a table
    "within tolerance of the golden run",
    "the ledger made from results/ is results/claims.csv",
    "every table of data/published has its experiment",
    "every benchmark of results/benchmarks is read here",
)


def test_one_cell_is_the_regression_check_and_prints_no_number_that_can_move():
    for path in NOTEBOOKS:
        notebook = read(path)
        (check,) = (cell for cell in code(notebook) if cell.source.startswith("# NBVAL_CHECK_OUTPUT"))
        (output,) = check.outputs
        saves_a_table = "study.table(" in "".join(cell.source for cell in code(notebook))
        sentences = [sentence for sentence in CHECKED if f"{sentence}: yes" in output.text]
        assert len(sentences) == 1 and (tuple(sentences) == CHECKED[:1]) == saves_a_table, path.stem


def test_every_claim_has_its_verdict():
    for path in NOTEBOOKS:
        cells = [cell for cell in code(read(path)) if "study.verdicts(" in cell.source]
        shown = "".join(str(dict(output)) for cell in cells for output in cell.outputs)
        tested = [claim_id for claim_id, test in catalogue.claims().items() if test.notebook == path.stem]
        assert [claim_id for claim_id in tested if claim_id not in shown] == []
        without = ("00_", "01_", "03_", "30_", "90_", "91_", "92_", "93_")
        assert bool(tested) == (not path.stem.startswith(without)), path.stem


def test_it_saves_a_table_or_is_known_to_save_none():
    for path in NOTEBOOKS:
        saves = "study.table(" in path.read_text(encoding="utf8")  # by which the workflow tells them apart
        assert saves == (catalogue.find(path.stem).saves), path.stem


@pytest.mark.slow
@pytest.mark.parametrize("folder", [ROOT, ROOT / "notebooks"], ids=str)
def test_plain_papermill_runs_from_the_root_and_from_the_notebooks_folder(tmp_path, folder):
    folders = {"DMLREPRO_CACHE": tmp_path / "cache", "DMLREPRO_RESULTS": tmp_path / "results"}
    environment = os.environ | {name: str(path) for name, path in folders.items()}
    notebook = os.path.relpath(ROOT / "notebooks" / "00_tour.ipynb", folder)
    command = [sys.executable, "-m", "papermill", notebook, str(tmp_path / "out.ipynb"), "--no-progress-bar"]
    command += ["-p", "profile", "quick", "-p", "steps", "2"]
    finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-2000:]
    tables = [path.name for path in (tmp_path / "results" / "quick").glob("*.csv")]
    assert [name for name in tables if "cost" not in name] == ["00_tour--steps=2.csv"]


LIMITS = {"words": 900, "figures": 5, "visible code cells": 12, "first figure": 9}


def prose(cells) -> str:
    """Paragraphs and list items without headings, tables and formulas; code and links count as a word."""
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    text = re.sub(r"\$\$.*?\$\$", " ", text, flags=re.DOTALL)
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("|", "#")))
    return re.sub(r"\$[^$]*\$|`[^`]*`", "x", re.sub(r"\]\([^)]*\)", "]", text))


def counted(notebook) -> dict[str, int]:
    ids = [cell.get("id") for cell in notebook.cells]
    cells = notebook.cells[: ids.index("appendix")] if "appendix" in ids else notebook.cells
    drawn = [any("image/png" in o.get("data", {}) for o in cell.get("outputs", ())) for cell in cells]
    visible = [
        cell for cell in cells if cell.cell_type == "code" and "hide-output" not in cell.metadata.get("tags", [])
    ]
    return {
        "words": len(prose(cells).split()),
        "figures": sum(drawn),
        "visible code cells": len(visible),
        "first figure": drawn.index(True),
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_short(path):
    found = counted(read(path))
    assert {name: count for name, count in found.items() if count > LIMITS[name]} == {}


def rows(*path: str) -> list[dict[str, str]]:
    with ROOT.joinpath(*path).open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_has_a_short_answer_that_a_person_wrote_for_its_verdicts():
    answers = {row["notebook"]: row for row in rows("data", "answers.csv")}
    assert sorted(answers) == [path.stem for path in NOTEBOOKS]
    verdicts: dict[str, dict[str, str]] = {name: {} for name in answers}
    for line in rows("results", "claims.csv"):  # the line that decides comes first
        if line["decides"] == "yes" and line["scale"] == "here":
            said = f"{line['claim_id']} {line['verdict']} ({line['k']} of {line['n']})"
            verdicts[line["notebook"]].setdefault(line["claim_id"], said)
    written_for = {name: "; ".join(own.values()) for name, own in verdicts.items()}
    assert {name: row["verdicts"] for name, row in answers.items()} == written_for
    assert all(len(row["question"].split()) <= 14 and len(row["answer"].split()) <= 30 for row in answers.values())
