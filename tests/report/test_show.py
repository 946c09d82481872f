"""`config` prints the runs' settings, and says truly who decided each setting."""

import re

import pytest

from experiments import cli
from experiments.report import catalogue, show


def shown(capsys, *arguments) -> str:
    assert cli.main(["config", *arguments]) == 0
    return capsys.readouterr().out


def settings(name: str, method: str, **values):
    notebook = catalogue.find(name)
    params = notebook.configured(values)
    spec = next(spec for spec in notebook.specs_untrained(params) if spec.method == method)
    return {name: row for name, *row in show.settings(notebook, spec, params)}


def test_what_the_reader_gave_is_the_readers_even_where_it_equals_the_profile(capsys):
    text = shown(capsys, "10", "-p", "lr", "0.001", "-p", "seeds", "3", "-p", "alpha", "4.0")
    assert re.search(r"\n  lr  +0\.001  +0\.0001  +reader  +Table 8 ", text)
    assert re.search(r"\n  steps  +50  +profile quick *\n", text)
    assert "conventional: PFML delta_rep=0.3" in text and "glyphs, 3 seeds" in text
    assert text.count("\n  backbone ") == text.count("\n  algorithm ") == 1, "what all methods share is printed once"
    assert settings("10", "PFML", alpha=4.0)["loss.alpha"][:3] == [4.0, 3.0, "reader"]


def test_origins_are_those_of_the_layers_and_stand_beside_the_published_values():
    assert settings("10", "PFML")["loss_clip_value"][:4] == [0.01, "", "method", "the paper does not say"]
    assert settings("10", "PFML")["loss.alpha"][:3] == [3.0, 3.0, "default"]
    assert settings("10", "PFML")["loss.alpha"][3].startswith("Fig. 3(c)")
    assert settings("10", "PFML")["loss.reduction"][:4] == ["sum", "", "default", ""]
    assert settings("20", "EL-nivMF")["loss.embedding_scale"][:3:2] == [30.0, "backbone conv4"]
    mlrc = settings("10", "PFML", profile="paper", protocol="mlrc")
    assert mlrc["optimizer"][:3:2] == ["rmsprop", "protocol mlrc"] and mlrc["lr"][:3:2] == [1e-6, "protocol mlrc"]
    assert settings("20", "ProxyAnchor")["loss.margin"][1:4:2] == [0.1, "Kim et al., CVPR 2020"]
    recipe = settings("10", "ProxyAnchor", profile="paper")["weight_decay"]
    assert recipe[:4] == [5e-4, 5e-4, "paper: PFML, Table 8 (supp)", "Table 8 (supp), columns R50/512"]
    assert settings("13", "PFML")["loss.proxies_per_class"][2] == "notebook 13_pfml_ablation_proxies"


@pytest.mark.parametrize("name", catalogue.studies())
def test_every_notebook_is_shown_without_data(name, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path / "absent"))
    assert name in shown(capsys, name, "--profile", "paper")
