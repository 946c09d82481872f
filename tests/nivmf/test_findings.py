"""What notebooks 22 and 23 say of what no claim is about: numbers, and nothing without its rows."""

import pytest

from experiments.analysis import results, stored
from experiments.report import catalogue

DENSITIES = ("heuristic D(K);kappa=20,20,20", "heuristic D(K);kappa=20,5,50")
SAMPLERS = {"A_M;dim=512;kappa=50": 0.1, "released sampler;dim=512;kappa=50": -0.4}
FORMS = {"EL-nivMF": (71.0, 75.0), "KL-vMF": (80.0, 80.5)}


def said(notebook, metric, values):
    """The findings of a notebook in a table of one metric and seed; values: {"METHOD;setting": value}."""
    common = {"paper": "nivmf", "experiment": "2x", "profile": "small", "dataset": "birds", "metric": metric}
    rows = [
        common | {"method": cell.partition(";")[0], "setting": cell.partition(";")[2], "value": value}
        for cell, value in values.items()
    ]
    return stored.say(results.frame(rows), catalogue.find(notebook).findings)


def test_the_released_form_stands_beside_the_corrected_one():
    cells = {
        f"{name};variant={form}": value
        for name, values in FORMS.items()
        for form, value in zip(("released", "corrected"), values)
    }
    (only,) = said("22", "R@1", cells)
    assert "EL-nivMF 71.0 against 75.0 R@1 (-4.0, n = 1)" in only and "KL-vMF 80.0 against 80.5" in only


def test_the_samplers_and_the_density_are_told_in_numbers():
    (sampler,) = said("23", "mean_cosine", SAMPLERS)
    assert "-0.40" in sampler and "0.10 is exact" in sampler
    (density,) = said("23", "integral", dict(zip(DENSITIES, (400.0, 36.0))))
    assert "400 and 36" in density


@pytest.mark.parametrize("notebook", ["20", "21", "22", "23", "24", "25", "26"])
def test_nothing_is_said_without_its_rows(notebook):
    assert said(notebook, "R@1", {"Cosine": 70.0, "EL-nivMF": 80.0}) == []
