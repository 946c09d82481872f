"""`config` prints the runs as they are, and says truly who decided each setting."""

import re

import pytest

from experiments import cli, papers
from experiments.report import catalogue, show

NOTEBOOKS = catalogue.studies()


def shown(capsys, *arguments) -> str:
    assert cli.main(["config", *arguments]) == 0
    return capsys.readouterr().out


def settings(name: str, method: str, **values):
    notebook = catalogue.find(name)
    params = notebook.configured(values)
    spec = next(spec for spec in notebook.specs_untrained(params) if spec.method == method)
    return show.settings(spec, params, papers.methods()[method])


def test_what_the_reader_gave_is_the_readers_even_where_it_equals_the_profile(capsys):
    text = shown(capsys, "10", "-p", "lr", "0.001", "-p", "seeds", "3", "-p", "alpha", "4.0")
    assert re.search(r"\n  lr  +0\.001  +command line +reader\n", text)
    assert re.search(r"\n  steps  +50  +experiments/profiles\.py:\d+ +profile quick\n", text)
    assert "PFML delta_rep=0.3 (conventional; 3 seeds)" in text
    assert settings("10", "PFML", alpha=4.0)["loss.alpha"][:2] == (4.0, "reader")


def test_origins_are_those_of_the_layers():
    quick = settings("10", "PFML")
    assert quick["lr"][:2] == (1e-3, "profile quick")
    assert quick["loss.alpha"][1].startswith("paper: Fig. 3(c)")
    assert quick["loss_clip_value"] == (0.01, "method", "the paper does not say")
    assert quick["loss.reduction"][:2] == ("sum", "default")
    assert settings("20", "EL-nivMF")["loss.embedding_scale"][:2] == (30.0, "backbone conv4")
    mlrc = settings("10", "PFML", profile="paper", protocol="mlrc")
    assert mlrc["optimizer"][:2] == ("rmsprop", "protocol mlrc") and mlrc["lr"][:2] == (1e-6, "protocol mlrc")
    paper = settings("10", "ProxyAnchor", profile="paper")
    assert paper["weight_decay"] == (5e-4, "paper: PFML, Table 8 (supp)", "")
    assert settings("13", "PFML")["loss.proxies_per_class"][1] == "notebook 13_pfml_ablation_proxies"


@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.parametrize("profile", ["quick", "small", "paper"])
def test_every_notebook_is_shown_without_data(name, profile, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path / "absent"))
    assert name in shown(capsys, name, "--profile", profile)


def test_what_all_methods_share_is_printed_once(capsys):
    text = shown(capsys, "20")
    assert text.count("\n  backbone ") == text.count("\n  dataset ") == 1
