"""The page of conventions: every line of its table of other libraries names a test that is there and runs."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "library.md"
LINE = re.compile(r"\|\[(.+)\]\(\.\./(tests/[\w/]+\.py) '(test_\w+)'\)\|(.+)\|")
WANTED = (
    *("Base class", "Reducers", "CrossBatchMemory", "SelfSupervisedLoss", "MultipleLosses", "MetricCollection"),
    *("torch.compile", "torch.export", "autocast", "Ranks", "Second derivatives", "Meta device"),
)


def rows():
    """The lines of the table: (what, file of its test, the test, what holds)."""
    section = PAGE.read_text(encoding="utf8").partition("## What other libraries expect")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [LINE.fullmatch(line).groups() for line in lines[2:]]


def test_the_table_has_what_other_libraries_have():
    assert [convention for convention in WANTED if not any(convention in what for what, *_ in rows())] == []


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_line_names_a_test_that_runs(row):
    _, file, name, _ = row
    tree = ast.parse((ROOT / file).read_text(encoding="utf8"))
    (test,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    marks = {ast.unparse(mark) for mark in test.decorator_list}
    assert not any(mark in ("pytest.mark.slow", "pytest.mark.skip") or "skipif" in mark for mark in marks)
    assert "importorskip" not in ast.unparse(test) and "pytest.skip" not in ast.unparse(test)
