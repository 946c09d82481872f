"""Notebooks that fail in a build or in `make test`: each is named, nothing half is published, the rest is done."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
# what happens in a notebook before it saves its table, and what the build says of it
FAULTS = {
    "17_pfml_cost": ("raise RuntimeError('deliberate')", "RuntimeError: deliberate"),
    "23_nivmf_normalizer": ("os.kill(os.getpid(), signal.SIGKILL)", "DeadKernelError: Kernel died"),
    # as a full disk does, it lets a part of a file be written
    "30_meanfield_magnet": (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99))",
        "build/quick ([Errno 27] File too large): free space there",
    ),
    "46_ccp_cost": ("pass", ""),
}
CODE = """
import os, resource, signal
from pathlib import Path
from experiments.analysis import results, saving
from experiments.params import Params
from experiments.study import Study

TOY = Study("{name}", Params, paper="pfml")

with Path("executed").open("a") as file:
    file.write("{name}\\n")
row = {{"paper": "pfml", "experiment": "{name}", "profile": profile, "dataset": "glyphs", "method": "PFML"}}
table = results.frame([row | {{"metric": "R@1", "value": 50.0}}])
if Path("broken").exists():
    {fault}
saving.save(table, TOY.configured({{"profile": profile}}))  # as study.table() does, by which workflows know it
"""


@pytest.fixture
def repository(tmp_path):
    """The repository with four short notebooks in place of those that train nothing, and no results."""
    for part in ("dmlrepro", "experiments", "workflow", "data/published"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*(ROOT / "data").glob("*.csv"), ROOT / "data" / "frozen.json", ROOT / "pyproject.toml"):
        shutil.copy(file, tmp_path / file.relative_to(ROOT))
    for name in ("notebooks", "build/quick"):
        (tmp_path / name).mkdir(parents=True)
    for name, (fault, _) in FAULTS.items():
        sources = "profile = None", CODE.format(name=name, fault=fault)
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        cells[0].metadata["tags"] = ["parameters"]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "notebooks" / f"{name}.ipynb")
        (tmp_path / "build" / "quick" / f"{name}.trained").touch()
    return tmp_path


def ran(folder: Path, *command: object) -> subprocess.CompletedProcess:
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, *map(str, command)], cwd=folder, env=environment, **how)


@pytest.mark.slow
def test_what_fails_is_named_and_publishes_nothing_and_is_all_that_the_next_build_executes(repository):
    (repository / "broken").touch()
    broken = ran(repository, "workflow/build.py", "quick")
    assert broken.returncode != 0
    for name, (_, message) in FAULTS.items():
        assert message in broken.stdout, (name, broken.stdout)
    assert "3 failed; what is finished stays" in broken.stdout
    assert not (repository / "results").exists()
    assert [path.stem for path in (repository / "build" / "quick").glob("*.csv")] == ["46_ccp_cost"]
    (repository / "broken").unlink()
    before = len((repository / "executed").read_text().split())
    mended = ran(repository, "workflow/build.py", "quick")
    assert mended.returncode == 0, mended.stdout
    executed = (repository / "executed").read_text().split()[before:]
    assert sorted(executed) == sorted(set(FAULTS) - {"46_ccp_cost"})
    assert "failed;" not in mended.stdout
    assert sorted(path.stem for path in (repository / "results" / "quick").glob("*.csv")) == sorted(FAULTS)


NAME = "30_meanfield_magnet"  # trains nothing
BROKEN_METRIC = """
from experiments.meanfield import magnet
right = magnet.field_offset
magnet.field_offset = lambda *given: 1 + right(*given)
"""


@pytest.mark.slow
def test_a_notebook_whose_numbers_moved_fails_in_make_nbval(tmp_path):
    notebook = nbformat.read(ROOT / "notebooks" / f"{NAME}.ipynb", as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(BROKEN_METRIC, execution_count=0))
    nbformat.write(notebook, tmp_path / f"{NAME}.ipynb")
    failed = ran(ROOT, "workflow/fresh.py", tmp_path / f"{NAME}.ipynb")
    assert failed.returncode != 0 and "within tolerance of the golden run: no" in failed.stdout
