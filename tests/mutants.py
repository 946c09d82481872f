"""Mutants: one small mistake each in a named function of what numbers rest on; its tests must fail.

    python tests/mutants.py                     # 40 mutants of seed 0
    python tests/mutants.py --seed 1 --count 5  # others

A function is drawn from each module in turn, then one place in it and what it becomes: another comparison, sign or
extreme, a term left out, a count off by one. The tests that mirror the module run on a copy of the code.
"""

import argparse
import ast
import itertools
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = ("dmlrepro/losses/*.py", "dmlrepro/metrics.py", "dmlrepro/retrieval.py", "dmlrepro/samplers.py")
MODULES += ("experiments/analysis/*.py", "experiments/training/*.py", "experiments/training/algorithms/*.py")
WITHOUT = ("__init__", "_names", "recommended", "device")  # names and settings, nothing to compute
# the tests of modules that have no file of their own name
TESTED_BY = {"test_loop": "inference supervised", "test_runs": "keys scheduling"}
TESTED_BY |= {"test_identity": "builders seeds"}
TESTED_BY |= {"test_judging": "comparing claims", "test_records": "checking keys", "test_saving": "provenance"}
TESTED_BY |= {"test_algorithms": "momentum_encoder pseudo_labels supervised"}
TESTED_BY |= {"test_all_losses": "checks close_pairs"}
TESTED_BY |= {"test_potential_field": "close_pairs", "test_regression": "goldens", "test_specs": "goldens seeds"}
TESTED_BY |= {"test_files": "sources"}

COMPARED: dict[type, type] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
COMPARED |= {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot}
SIGNS: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div}  # a division may be a path
EXTREMES = {"min": "max", "amin": "amax", "minimum": "maximum", "argmin": "argmax", "fmin": "fmax"}
EXTREMES |= {other: name for name, other in EXTREMES.items()}


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions and methods of a module by "name" or "Class.name", but for those that print."""
    owners = [("", tree), *((f"{node.name}.", node) for node in tree.body if isinstance(node, ast.ClassDef))]
    found = {f"{name}{node.name}": node for name, owner in owners for node in owner.body if hasattr(node, "args")}
    return {name: node for name, node in found.items() if not name.endswith("repr")}


def places(function: ast.FunctionDef) -> list[ast.AST]:
    """What can be mutated in its body; what errors say is left alone."""
    messages = (part for part in ast.walk(function) if isinstance(part, ast.Raise | ast.Assert | ast.JoinedStr))
    skipped = {id(node) for part in messages for node in ast.walk(part)}
    nodes = (node for statement in function.body for node in ast.walk(statement))
    return [node for node in nodes if id(node) not in skipped and [*mutated(node)]]


def mutated(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
        yield ast.Compare(node.left, [COMPARED[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS and "'" not in ast.unparse(node):  # no words
        yield ast.BinOp(node.left, SIGNS[type(node.op)](), node.right)
        yield node.left  # the other term or factor is left out
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield node.operand
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in EXTREMES:
        yield ast.Name(EXTREMES[node.id], node.ctx)
    if isinstance(node, ast.Attribute) and node.attr in EXTREMES:
        yield ast.Attribute(node.value, EXTREMES[node.attr], node.ctx)


def draw(seed: int) -> Iterator[tuple[Path, str, str, str]]:
    """(module, function, the mutation in words, the mutated source), of different functions."""
    generator, drawn = random.Random(seed), set()
    files = [file for pattern in MODULES for file in sorted(ROOT.glob(pattern)) if file.stem not in WITHOUT]
    generator.shuffle(files)
    for path in itertools.cycle(files):
        tree = ast.parse(path.read_text(encoding="utf8"))
        known = {name: places(node) for name, node in functions(tree).items() if (path, name) not in drawn}
        name = generator.choice([name for name, found in known.items() if found] or [""])
        if not name:
            continue
        old = generator.choice(known[name])
        new = generator.choice([*mutated(old)])
        drawn.add((path, name))
        words = f"line {getattr(old, 'lineno', 0)}: {ast.unparse(old)} -> {ast.unparse(new)}"
        old.__class__, old.__dict__ = type(new), new.__dict__ | {"lineno": 0, "col_offset": 0}
        yield path, name, words, ast.unparse(tree)


def caught(path: Path, source: str) -> str:
    """The first test that fails on a mutated module, "" if none does."""
    named = [
        f"test_{path.stem.lstrip('_')}",
        *(test for test, modules in TESTED_BY.items() if path.stem in modules.split()),
    ]
    tests = [str(file.relative_to(ROOT)) for file in sorted((ROOT / "tests").rglob("test_*.py")) if file.stem in named]
    with tempfile.TemporaryDirectory() as place:
        for entry in ROOT.iterdir():
            if entry.name in ("dmlrepro", "experiments", "tests"):
                shutil.copytree(entry, Path(place, entry.name), ignore=shutil.ignore_patterns("__pycache__"))
            elif entry.name not in (".git", "build"):
                Path(place, entry.name).symlink_to(entry)
        Path(place, path.relative_to(ROOT)).write_text(source, encoding="utf8")
        command = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", "-n", "0", "--tb=no", *tests]
        run = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=1800)
    failed = [line.split()[1] for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (failed or ["an error of collection"])[0] if run.returncode else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=40)
    options, found = parser.parse_args(), []
    for path, name, words, source in itertools.islice(draw(options.seed), options.count):
        found.append(caught(path, source))
        print(f"{path.relative_to(ROOT)} {name} {words} | {found[-1] or 'NOT CAUGHT'}", flush=True)
    print(f"{sum(map(bool, found))} of {len(found)} mutants caught")


if __name__ == "__main__":
    main()
