"""What is said of results is said by the judge: no comparison in other modules' words."""

import ast
import re

import pytest

from experiments import papers
from experiments.files import repository_root

ROOT = repository_root()
COMPARATIVES = re.compile(
    r"\b(higher|lower|better|worse|beats?|helps?|gains?|loses|leads|outperforms?|ahead of"
    r"|as the paper has it|against the paper)\b"
)
# what claims say, the words of the judge, and what a bootstrap of classes says of losses on the reader's images
JUDGE = {"claims.py"}
MODULES = [
    path
    for folder in ("analysis", "across", *(name.split(".")[1] for name in papers.packages()))
    for path in sorted((ROOT / "experiments" / folder).glob("*.py"))
    if path.name not in JUDGE
]
MODULES += [
    ROOT / "experiments" / f"{name}.py"
    for name in ("study", "studies", "methods", "params", "steps", "profiles", "papers")
]


def literals(tree: ast.Module) -> list[tuple[int, str]]:
    """The string literals of a module that are no docstrings, with their lines."""
    documented = (ast.Module, ast.FunctionDef, ast.ClassDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT / "experiments")))
def test_no_literal_outside_the_judge_compares(path):
    comparing = [
        (line, text)
        for line, text in literals(ast.parse(path.read_text(encoding="utf8")))
        if COMPARATIVES.search(text) and " " in text  # a word alone is a value, as of a direction
    ]
    assert comparing == [] or all(_is_about_no_result(text) for _, text in comparing), comparing


def _is_about_no_result(text: str) -> bool:
    """Messages and sources may compare what is not measured here."""
    return any(text.strip().startswith(known) or known in text for known in NOT_RESULTS)


NOT_RESULTS = (
    *("lower batch_size", "outside lower center"),  # a remedy, and a place
)


def test_the_test_finds_what_it_looks_for():
    tree = ast.parse('"""It helps."""\ndef f(x):\n    """Better."""\n    return f"{x} beats all", "higher"\n')
    assert {text for _, text in literals(tree) if COMPARATIVES.search(text)} == {" beats all", "higher"}
