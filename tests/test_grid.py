"""What the workflow's configs ask for, what is said of failures, and what `make notebooks` commits."""

import json
import os
from pathlib import Path

import execute
import failures
import grid
import install_notebooks
import jsonschema
import nbformat
import pytest
import yaml

from experiments.report import catalogue

ROOT = Path(__file__).parents[1]

NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
CONFIGS = sorted(path for path in (ROOT / "workflow" / "config").glob("*.yaml") if path.stem != "schema")


def read(path: Path):
    return yaml.safe_load(path.read_text(encoding="utf8"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_has_the_form_of_the_schema_and_parameters_that_the_notebooks_take(path):
    config = read(path)
    jsonschema.validate(config, read(path.with_name("schema.yaml")))
    assert config["profile"] == path.stem
    for execution in grid.executions(config, NOTEBOOKS).values():
        catalogue.find(execution["notebook"]).configured({"profile": config["profile"]} | execution["parameters"])


def test_the_small_config_makes_what_is_committed():
    executions = grid.executions(read(ROOT / "workflow" / "config" / "small.yaml"), NOTEBOOKS)
    committed = {path.stem for path in (ROOT / "results" / "small").glob("*.json")}
    made = {
        catalogue.find(execution["notebook"]).configured({"profile": "small"} | execution["parameters"]).stem
        for execution in executions.values()
    }
    assert made == committed


def test_a_grid_is_every_combination_under_a_name_of_its_own():
    swept = {"notebooks": [10], "over": {"dataset": ["cub", "cars"], "seeds": [1, 5]}, "parameters": {"steps": 7}}
    config = {"executions": [swept, {"notebooks": "all"}]}
    executions = grid.executions(config, ["00_tour", "10_pfml"])
    assert list(executions) == [
        *(f"10_pfml--dataset={data}+seeds={seeds}+steps=7" for data in ("cub", "cars") for seeds in (1, 5)),
        *("00_tour", "10_pfml"),
    ]
    parameters = {"steps": 7, "dataset": "cars", "seeds": 1}
    assert executions["10_pfml--dataset=cars+seeds=1+steps=7"] == {"notebook": "10_pfml", "parameters": parameters}
    for number in ("00", 0):  # as it is written, and as YAML reads it
        assert list(grid.executions(config | {"notebooks": number}, ["00_tour", "10_pfml"])) == ["00_tour"]
    with pytest.raises(ValueError, match="00_tour is asked for twice"):
        grid.executions({"executions": [{"notebooks": "all"}, {"notebooks": ["00"]}]}, ["00_tour"])
    with pytest.raises(ValueError, match="there is no 99; there are 00_tour"):
        grid.executions({"executions": [{"notebooks": [99]}]}, ["00_tour"])


def test_what_says_the_same_stays_as_old_as_it_is(tmp_path):
    grid.write(tmp_path / "a.json", {"a": 1})
    os.utime(tmp_path / "a.json", (1000, 1000))
    grid.write(tmp_path / "a.json", {"a": 1})
    assert (tmp_path / "a.json").stat().st_mtime == 1000
    grid.write(tmp_path / "a.json", {"a": 2})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 2}


def notebook(*sources: str) -> nbformat.NotebookNode:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=kernel)


def test_an_execution_has_its_parameters_and_a_failed_one_is_kept_with_its_traceback(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for folder in ("notebooks", "build"):
        Path(folder).mkdir()
    divides = notebook("profile = None\nvalue = 2.0", "print(profile, value, 1 / value)")
    nbformat.write(divides, "notebooks/98_divides.ipynb")
    values = (1e-05, 0)
    executions = {f"98_divides--value={x}": {"notebook": "98_divides", "parameters": {"value": x}} for x in values}
    asked, build = Path("build/executions.json"), Path("build")
    grid.write(asked, {"profile": "quick", "executions": executions})
    execute.main(asked, "98_divides--value=1e-05", Path("build/98_divides--value=1e-05.ipynb"))
    printed = capfd.readouterr().out.strip().splitlines()[-1]
    assert printed.startswith("quick 1e-05 ")  # a number, though YAML reads 1e-05 as text
    assert list(failures.failures(build)) == []
    with pytest.raises(Exception, match="ZeroDivisionError"):
        execute.main(asked, "98_divides--value=0", Path("build/98_divides--value=0.ipynb"))
    assert not Path("build/98_divides--value=0.ipynb").exists()
    (failure,) = failures.failures(build)
    assert "build/failed/98_divides--value=0.ipynb" in failure and "    print(profile, value, 1 / value)" in failure
    assert failure.endswith("ZeroDivisionError: division by zero") and "\x1b" not in failure
    grid.write(asked, {"profile": "quick", "executions": {}})
    assert list(failures.failures(build)) == [], "it is of an earlier build"


def test_what_left_no_traceback_is_told_by_the_end_of_its_log(tmp_path):
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "98_cut.ipynb").write_text('{"cells": [')
    (tmp_path / "98_cut.log").write_text("16 runs\n15 runs\n")
    for name in ("16_x.seed0", "16_x.seed1", "16_x.seed2"):
        (tmp_path / f"{name}.log").write_text(f"{name}\n")
        os.utime(tmp_path / f"{name}.log", (1000, 1000))
    (tmp_path / "16_x.seed0.trained").touch()
    (tmp_path / "16_x.seed1.trained").touch()  # an earlier one
    os.utime(tmp_path / "16_x.seed1.trained", (900, 900))
    told = [failure.splitlines()[-1] for failure in failures.failures(tmp_path)]
    assert told == ["15 runs", "16_x.seed1", "16_x.seed2"]


def executed(*tags: str) -> nbformat.NotebookNode:
    made = notebook("steps = 1", "print(steps)")
    made.metadata["papermill"] = made.cells[1].metadata["papermill"] = {"duration": 2.0}
    made.cells[0].metadata["tags"] = list(tags)
    made.cells[1].outputs = [nbformat.v4.new_output("stream", name=name, text=name) for name in ("stdout", "stderr")]
    return made


def test_outputs_stay_and_what_papermill_added_goes():
    cleaned = install_notebooks.clean(executed("injected-parameters"))
    (cell,) = cleaned.cells
    assert "papermill" not in cleaned.metadata and "papermill" not in cell.metadata
    assert [output.name for output in cell.outputs] == ["stdout"] and cell.execution_count == 1
    assert len(install_notebooks.clean(executed("parameters")).cells) == 2


def test_only_notebooks_that_are_there_with_the_same_code_are_replaced_and_edited_markdown_stays(tmp_path):
    built, target = tmp_path / "build", tmp_path / "notebooks"
    for folder, names in (
        (built, ("00_tour", "00_tour--steps=1", "10_changed", "98_gone")),
        (target, ("00_tour", "10_changed", "99_not_executed")),
    ):
        folder.mkdir()
        for name in names:
            notebook = executed("parameters")
            notebook.cells.append(nbformat.v4.new_markdown_cell(folder.name))
            if folder == target:
                notebook.cells[1].outputs = []
                notebook.cells[1].source += "\nprint(2)" * (name == "10_changed")
            nbformat.write(notebook, folder / f"{name}.ipynb")
    install_notebooks.main(built, target)
    cells = {path.stem: nbformat.read(path, as_version=4).cells for path in target.iterdir()}
    printed = {name: [output.text for output in each[1].outputs] for name, each in cells.items()}
    assert printed == {"00_tour": ["stdout"], "10_changed": [], "99_not_executed": []}
    assert all(each[2].source == "notebooks" for each in cells.values())
