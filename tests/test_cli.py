"""Commands on files that are damaged, edited or missing: each names the file and the remedy, and touches nothing."""

import json
import os
import shutil
import sys
from unittest.mock import Mock

import pytest

from experiments import cli
from experiments.analysis import saving, stored
from experiments.files import repository_root
from experiments.report import catalogue, pages, regression
from experiments.study import Execution

MAGNET = "30_meanfield_magnet"


def said(arguments, capsys) -> str:
    assert cli.main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of results/ that commands take for the committed one; no made text is remembered of it."""
    shutil.copytree(repository_root() / "results", tmp_path / "results")
    for module in (cli, stored):
        monkeypatch.setattr(module, "repository_root", lambda: tmp_path)
    pages.forget()
    yield tmp_path / "results" / "quick"
    pages.forget()


def test_pages_refuse_costs_that_somebody_edited(copy, capsys):
    costs = copy / "26_nivmf_cost_and_samples.cost.csv"
    lines = costs.read_text().splitlines()
    costs.write_text("\n".join([*lines[:-1], lines[-1].replace(".", "9.", 1)]) + "\n")
    error = said(["report"], capsys)
    assert f"{costs} is not what was saved" in error and "`make results`" in error


@pytest.fixture
def build(copy):
    """A build folder with one notebook and its table as committed."""
    folder = copy.parents[1] / "build" / "quick"
    folder.mkdir(parents=True)
    for path in copy.glob(f"{MAGNET}.*"):
        shutil.copy(path, folder)
    notebook = {"cells": [], "metadata": {"papermill": {"duration": 1.0}}}
    (folder / f"{MAGNET}.ipynb").write_text(json.dumps(notebook))
    return folder


def test_a_committed_table_of_older_code_is_named_and_the_command_fails(copy, build, capsys):
    arguments, table = ["summary", str(build)], copy / f"{MAGNET}.csv"
    assert cli.main(arguments) == 0
    rows, made = saving.read(table), saving.record(table)
    table.write_text(saving.to_csv(rows.assign(value=rows["value"] * (1 + 1e-5))))
    saving.seal(table, made)  # as if these rows had been saved
    assert cli.main(arguments) == 1
    printed = capsys.readouterr().out
    assert f"{MAGNET}      1.0   {len(rows)}\n" in printed
    assert f"results/quick/{MAGNET}.csv is not what the present code makes: " in printed
    asked = {"00_tour": {"notebook": "00_tour", "parameters": {}}}
    (build / "executions.json").write_text(json.dumps({"profile": "quick", "executions": asked}))
    assert "no tables in" in said(["publish", build], capsys)  # what an earlier build left stays where it is


def test_accept_checks_everything_before_it_replaces_anything(copy, build, capsys, monkeypatch):
    accepted: list[str] = []
    monkeypatch.setattr(regression, "accept", accepted.extend)
    (build / f"{MAGNET}.csv").write_text("")
    assert f"{MAGNET}.csv is not what was saved" in said(["update-golden", "30"], capsys)
    monkeypatch.setattr(regression, "publish", lambda *_, **__: pytest.fail("published"))
    assert "no notebook 'nosuch'" in said(["update-golden", "nosuch"], capsys)
    for part in (".csv", ".json", ".cost.csv"):
        (copy / f"00_tour{part}").unlink(missing_ok=True)
    assert "no tables of 00_tour; make results ONLY=00_tour" in said(["update-golden", "00", "10"], capsys)
    assert accepted == []
    shutil.rmtree(build)  # what is published is taken where nothing was built
    assert cli.main(["update-golden", "30"]) == 0 and accepted == [MAGNET]


GRID = {"half": "{", "empty": "[]", "grid": json.dumps({"profile": "quick", "executions": {MAGNET: {}}})}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --grid half", "half is no complete JSON file"),
        ("train --grid empty", "empty holds no profile and executions"),
        ("train --grid grid 99", f"grid has no 99; it has {MAGNET}"),
        ("train --grid grid --profile small", "--grid says the profile and the parameters"),
        ("config pfml", "no notebook 'pfml'; there are 10_pfml_retrieval, 11_"),
        ("tune PFMLL", "no method 'PFMLL'; did you mean 'PFML'?"),
        ("summary nosuch", "no executed notebooks in nosuch; make results"),
        ("summary .", "00_tour.ipynb is no complete JSON file"),
        ("publish somewhere", "somewhere is no folder of a profile"),
    ],
)
def test_what_is_refused_is_named(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(regression, "publish", lambda *_, **__: pytest.fail("published"))
    for name, content in (GRID | {"00_tour.ipynb": '{"cells": ['}).items():
        (tmp_path / name).write_text(content)
    error = said(arguments.split(), capsys)
    assert message in error and "Traceback" not in error and "50_plm" not in error


def test_a_broken_pipe_that_is_not_the_outputs_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(cli, "shared_parameters", Mock(side_effect=BrokenPipeError("the pipe of a worker broke")))
    assert cli.main(["params"]) == 2
    assert capsys.readouterr().err == "dmlrepro: the pipe of a worker broke\n"


def test_train_says_where_no_search_is_like_the_runs(monkeypatch, capsys):
    seeds: set[int] = set()
    monkeypatch.setattr(Execution, "run", lambda _, specs, *__, **___: seeds.update(spec.seed for spec in specs) or [])
    monkeypatch.delenv("DMLREPRO_RECORD", raising=False)
    assert cli.main(["train", "14", "--profile", "small", "--seed", "1"]) == 0 and seeds == {1}
    assert capsys.readouterr().out.startswith("0 distinct runs")
    assert "has no run of seed 99" in said(["train", "14", "--profile", "small", "--seed", "99"], capsys)
    assert cli.main(["train", "14", "--profile", "small", "-p", "epochs", "24"]) == 0
    told, counted = capsys.readouterr().out.splitlines()
    assert told.startswith("14_pfml_ablation_delta has no search METHOD--cub-subset,") and "epochs=24" in told
    assert counted.startswith("0 distinct runs")
    searches_itself = {"profile": "small", "protocol": "mlrc", "search_trials": 2}
    assert not catalogue.find("10").configured(searches_itself).takes_committed


def test_who_reads_no_further_than_the_first_lines_sees_no_error(monkeypatch, capsys):
    unread, end = os.pipe()
    os.close(unread)
    monkeypatch.setattr(cli, "shared_parameters", lambda options: print("a line\n" * 100_000))
    with open(end, "w") as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        assert cli.main(["params"]) == 1
    assert capsys.readouterr().err == ""
