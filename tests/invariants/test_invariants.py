"""I1 to I5 hold, without images and without training; and damage to results/ is seen."""

import json
import shutil

import invariants
import pytest

from experiments.analysis import saving
from experiments.files import repository_root
from experiments.training import records


@pytest.fixture(autouse=True)
def committed(monkeypatch, tmp_path):
    """What is committed, an empty cache, and no data set."""
    for name in ("DMLREPRO_RECORD", "DMLREPRO_RESULTS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path / "no data"))
    monkeypatch.setenv("DMLREPRO_CACHE", str(tmp_path / "empty"))


def test_tables_are_rebuilt_from_the_store():
    assert invariants.differences("tables") == invariants.rebuilt()[0] == []
    made = [row["how"] for row in invariants.expected("tables")]
    assert made.count("rebuilt") > 5 * made.count("kept")


def test_verdicts_stay():
    assert invariants.differences("verdicts") == []
    assert invariants.ledger_now() == [row["verdict"] for row in invariants.expected("verdicts")]


@pytest.mark.parametrize("name", ["store", "goldens", "specs"])
def test_the_store_golden_values_and_specs_stay(name):
    assert invariants.differences(name) == []


TABLE = "13_pfml_ablation_proxies"


@pytest.fixture
def copied(tmp_path, monkeypatch):
    for name in ("pyproject.toml", "dmlrepro", "notebooks", "data", "tests"):
        (tmp_path / name).symlink_to(repository_root() / name)
    shutil.copytree(repository_root() / "results", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results" / "small"


def rebuilt(small, stem=TABLE):
    return invariants.rebuilt_differences(small / f"{stem}.csv", invariants.Asked(set(), set()))


def test_a_digit_of_a_table_is_missed(copied):
    assert invariants.differences("tables") == rebuilt(copied) == []
    path = copied / f"{TABLE}.csv"
    made, text = saving.record(path), path.read_text()
    path.write_text(text[:-2] + str((int(text[-2]) + 1) % 10) + "\n")
    saving.seal(path, made)  # as somebody would who hides it
    assert len(invariants.differences("tables")) == 2 and len(rebuilt(copied)) == 1


def test_a_digit_of_a_line_is_missed(copied):
    file, edited = copied / "runs" / f"{TABLE}.jsonl", []
    for line in map(json.loads, file.read_text(encoding="utf8").splitlines()):
        if line.get("labels", {}).get("method") == "PFML" and line["spec"]["seed"] == 3:
            line["rows"] = [row | {"value": row["value"] + 1e-5} for row in line["rows"]]
        edited.append(json.dumps(records.summed(line), separators=(",", ":")))  # with a new sha256
    file.write_text("\n".join(edited) + "\n", encoding="utf8")
    assert len(rebuilt(copied)) == 1
