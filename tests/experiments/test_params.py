"""Parameters are strict: a misspelt name or a wrong type stops a notebook before any work."""

from dataclasses import fields
from pathlib import Path

import nbformat
import pytest

from dmlrepro.experiments import catalogue
from dmlrepro.experiments.params import RECIPES, Params

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def parameters_cell(name: str) -> dict:
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    namespace: dict = {}
    exec(cell.source, namespace)
    return {key: value for key, value in namespace.items() if not key.startswith("__")}


def test_every_notebook_is_in_the_catalogue_and_the_reverse():
    assert sorted(catalogue.notebooks()) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_parameters_cell_lists_exactly_the_parameters_with_their_defaults(name):
    params_class, _ = catalogue.find(name)
    defaults = {field.name: field.default for field in fields(params_class)}
    cell = {key: tuple(v) if isinstance(v, list) else v for key, v in parameters_cell(name).items()}
    assert cell == defaults


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_parameter_has_a_comment(name):
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    assert [line for line in cell.source.splitlines() if " = " in line and "#" not in line] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_changing_only_the_profile_changes_what_the_profile_decides(name):
    params_class, _ = catalogue.find(name)
    quick = params_class.from_values({"profile": "quick"})
    paper = params_class.from_values({"profile": "paper"})
    for field in ("dataset", "backbone", "image_size", "seeds"):
        assert getattr(quick, field) != getattr(paper, field), field


class Example(Params):
    notebook = "99_example"


def test_an_explicit_value_wins():
    assert Example.from_values({"steps": 7}).steps == 7
    assert Example.from_values({}).steps == RECIPES["quick"]["glyphs"]["steps"]


def test_explicit_epochs_replace_the_steps_of_the_profile():
    params = Example.from_values({"epochs": 2})
    assert (params.steps, params.epochs) == (0, 2)


def test_a_misspelt_name_is_an_error_with_the_closest_one():
    with pytest.raises(ValueError, match=r"no parameter 'step'.*did you mean 'steps'"):
        Example.from_cell({"step": 3, "__name__": "x", "In": [], "pytest": pytest})


@pytest.mark.parametrize("values", [{"steps": "300"}, {"steps": 3.5}, {"lr": "fast"}, {"steps": True}, {"profile": 3}])
def test_a_wrong_type_is_an_error_that_names_the_parameter(values):
    with pytest.raises(TypeError, match=f"parameter {next(iter(values))} must be"):
        Example.from_values(values)


def test_a_number_that_yaml_read_as_text_is_explained():
    with pytest.raises(TypeError, match=r"YAML reads 1e-5 as a string"):
        Example.from_values({"lr": "1e-5"})


def test_unknown_profile_and_dataset_list_what_exists():
    with pytest.raises(ValueError, match=r"unknown profile 'fast'.*quick, small, paper"):
        Example.from_values({"profile": "fast"})
    with pytest.raises(ValueError, match=r"unknown dataset 'birds'.*glyphs"):
        Example.from_values({"dataset": "birds"})


def test_only_changed_parameters_name_a_results_file_of_their_own():
    assert Example.from_values({}).stem == "99_example"
    assert Example.from_values({"profile": "small", "dataset": "cub-subset"}).stem == "99_example"
    assert Example.from_values({"profile": "small", "dataset": "omniglot"}).stem == "99_example--dataset=omniglot"
    assert Example.from_values({"steps": 5, "lr": 0.1}).stem == "99_example--lr=0.1,steps=5"
