"""`config` prints the runs as they are, and says truly who decided each setting."""

import re
from unittest.mock import ANY

import pytest

from experiments import cli, papers
from experiments.files import repository_root
from experiments.report import catalogue, show

ROOT = repository_root()
NOTEBOOKS = catalogue.studies()


def shown(capsys, *arguments) -> str:
    assert cli.main(["config", *arguments]) == 0
    return capsys.readouterr().out


def settings(name: str, method: str, **values):
    notebook = catalogue.find(name)
    params = notebook.configured(values)
    spec = next(spec for spec in notebook.specs_untrained(params) if spec.method == method)
    return {row[0]: row[1:] for row in show.settings(notebook, spec, params, papers.methods()[method])}


def test_what_the_reader_gave_is_the_readers_even_where_it_equals_the_profile(capsys):
    text = shown(capsys, "10", "-p", "lr", "0.001", "-p", "seeds", "3", "-p", "alpha", "4.0")
    assert re.search(r"\n  lr  +0\.001  +0\.0001  +reader  +command line  +Table 8 ", text)
    assert re.search(r"\n  steps  +50  +profile quick  +experiments/profiles\.py:\d+\n", text)
    assert "PFML delta_rep=0.3 (conventional; 3 seeds)" in text
    assert settings("10", "PFML", alpha=4.0)["loss.alpha"][:3] == ("4.0", "3.0", "reader")


def test_origins_are_those_of_the_layers_and_stand_beside_the_published_values():
    def decided(name, method, setting, **values):
        value, published, who, _, source = settings(name, method, **values)[setting]
        return value, published, who, source

    assert decided("10", "PFML", "loss_clip_value") == ("0.01", "", "method", "the paper does not say")
    assert decided("10", "PFML", "loss.alpha")[:3] == ("3.0", "3.0", "default")
    assert decided("10", "PFML", "loss.alpha")[3].startswith("Fig. 3(c)")
    assert decided("10", "PFML", "loss.reduction") == ("sum", "", "default", "")
    assert decided("20", "EL-nivMF", "loss.embedding_scale")[::2] == ("30.0", "backbone conv4")
    mlrc = {"profile": "paper", "protocol": "mlrc"}
    assert decided("10", "PFML", "optimizer", **mlrc)[::2] == ("rmsprop", "protocol mlrc")
    assert decided("10", "PFML", "lr", **mlrc)[::2] == ("1e-06", "protocol mlrc")
    recipe = decided("10", "ProxyAnchor", "weight_decay", profile="paper")
    assert recipe == ("0.0005", "0.0005", "paper: PFML, Table 8 (supp)", "PFML, Table 8 (supp)")
    assert decided("13", "PFML", "loss.proxies_per_class")[2] == "notebook 13_pfml_ablation_proxies"


def test_a_value_is_found_in_the_line_that_decides_it():
    def line(setting, **values):
        file, _, number = settings("15", "PFML", **values)[setting][3].partition(":")
        return file, (ROOT / file).read_text(encoding="utf8").splitlines()[int(number) - 1]

    assert line("batch_size", profile="paper") == ("experiments/pfml/methods.py", ANY)
    file, text = line("loss.delta")
    assert file == "dmlrepro/losses/potential_field.py" and re.search(r"delta: float = 0\.2\b", text)
    file, text = line("epochs", profile="paper")
    assert file == "experiments/profiles.py" and re.search(r'"epochs": 200\b', text)


@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.parametrize("profile", ["quick", "small", "paper"])
def test_every_notebook_is_shown_without_data(name, profile, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path / "absent"))
    assert name in shown(capsys, name, "--profile", profile)


def test_what_all_methods_share_is_printed_once(capsys):
    text = shown(capsys, "20")
    assert text.count("\n  backbone ") == text.count("\n  dataset ") == 1
