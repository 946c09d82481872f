"""Environment variables, and the places that are found without them, from anywhere."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import files, variables
from experiments.analysis import saving
from experiments.training import records

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "DMLREPRO_DATA": (files.data_root, "data"),
    "DMLREPRO_CACHE": (files.cache_root, ".cache"),
    "DMLREPRO_RECORD": (records.folder, "results"),
    "DMLREPRO_RESULTS": (lambda: saving.output_folder("quick").parent, "results"),
}


@pytest.mark.parametrize("variable", FOLDERS)
def test_a_folder_is_expanded_counts_from_the_repository_and_is_unset_where_empty(variable, monkeypatch, tmp_path):
    place, default = FOLDERS[variable]
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    places = {"": ROOT / default, "~/dml": tmp_path / "home" / "dml", "kept": ROOT / "kept", "/kept": Path("/kept")}
    for value, expected in places.items():
        monkeypatch.setenv(variable, value)
        assert place() == expected


def test_a_switch_is_on_where_empty_and_a_wrong_one_is_named(monkeypatch):
    for value, trains in (("", True), ("1", True), ("0", False)):
        monkeypatch.setenv("DMLREPRO_TRAIN", value)
        assert variables.trains() == trains
    monkeypatch.setenv("DMLREPRO_TRAIN", "no")
    with pytest.raises(ValueError, match="DMLREPRO_TRAIN must be 0 or 1, got 'no'"):
        variables.trains()


def test_one_module_reads_them_and_says_what_they_mean():
    sources = [path for package in ("dmlrepro", "experiments") for path in (ROOT / package).rglob("*.py")]
    reading = [path.name for path in sources if re.search(r"environ\b.{0,8}[\"']DMLREPRO|getenv", path.read_text())]
    assert reading == ["variables.py"]
    named = {name for path in sources for name in re.findall(r"\bDMLREPRO_[A-Z_]+", path.read_text())}
    assert named == set(re.findall(r"^(DMLREPRO_[A-Z_]+): ", variables.__doc__, re.MULTILINE))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_place_that_cannot_be_written_names_the_variable_that_moves_it(number, tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise OSError(number, os.strerror(number), str(tmp_path))

    monkeypatch.setattr(files.tempfile, "mkdtemp", refuse)
    monkeypatch.setattr(files.os, "open", refuse)
    for path, variable in (
        (files.cache_root() / "x.npz", "CACHE"),
        (saving.output_folder("quick") / "x.csv", "RESULTS"),
    ):
        with pytest.raises(PermissionError, match=f"cannot write to {path.parent} .*set DMLREPRO_{variable}"):
            files.atomic_write(path).__enter__()
    with pytest.raises(PermissionError, match=r"cannot write to .*runs .*DMLREPRO_RECORD"):
        records.append(records.folder() / "small" / "runs" / "x.jsonl", {})


def test_commands_imports_and_the_repository_are_found_in_the_folder_above_a_clone(tmp_path):
    (tmp_path / "dmlrepro" / "dmlrepro").mkdir(parents=True)  # as `git clone` leaves it
    (tmp_path / "dmlrepro" / "experiments").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\ndependencies = ["dmlrepro"]\n')
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "DMLREPRO"))}

    def said(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    version = said("-m", "experiments", "--version")
    asked = "import dmlrepro, experiments.files as f; print(dmlrepro.__version__, f.repository_root(), f.cache_root())"
    assert said("-c", asked) == f"{version.split()[1]} {ROOT} {ROOT / '.cache'}\n"
