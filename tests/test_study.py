"""What the cells of notebooks show of results/, and what a study says of itself."""

import json
from types import SimpleNamespace

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from experiments.across.tour import Tour
from experiments.analysis import saving, stored, summaries
from experiments.files import repository_root
from experiments.nivmf.normalizer import Normalizer
from experiments.report import catalogue

ENTRIES = (("small", "most seeds"), ("small", "fewer seeds"), ("quick", "the demo"))
PFML = "results/small/searches/PFML--cub-subset,squeezenet1_1,imagenet,fire6,dim=128,batch=100,steps=100.json"


def test_the_table_that_decides_stands_alone_and_the_appendix_has_the_others(monkeypatch):
    table = pd.DataFrame({"profile": ["small"]})
    there = [SimpleNamespace(profile=p, heading=h, table=table, device="CPU", picture=None) for p, h in ENTRIES]
    there[0].judged = lambda claims: "comparisons"
    monkeypatch.setattr(stored, "stored", lambda notebook, but: there)
    monkeypatch.setattr(summaries, "pivot", lambda table, metrics: metrics)
    InteractiveShell.instance()  # a kernel has one
    plt.close("all")
    with capture_output() as decides:
        Tour.evidence(["R@1"], lambda table: plt.figure())
    with capture_output() as appendix:
        Tour.further(["R@1"])
    with capture_output() as alone:
        Tour.evidence([], lambda table: plt.figure())
    heading, figure, shown = decides.outputs
    assert heading.data["text/markdown"] == "**most seeds**, trained on CPU" and "Figure" in figure.data["text/plain"]
    assert shown.data["text/plain"] == "['R@1']" and not plt.get_fignums()
    assert [[*output.data] for output in alone.outputs] == [[*output.data] for output in (heading, figure)]
    said = [output.data.get("text/markdown", output.data["text/plain"]) for output in appendix.outputs]
    assert said == ["'comparisons'", "**fewer seeds**, trained on CPU", "['R@1']"]


def test_the_set_up_has_what_the_search_chose_beside_what_the_paper_says(monkeypatch):
    monkeypatch.delenv("DMLREPRO_RECORD")
    rows = catalogue.find("15_pfml_ablation_alpha").setup()
    assert rows.loc["data"].tolist() == ["CUB subset", "CUB"] and rows.loc["alpha"].tolist() == ["varied", "3"]
    chosen = json.loads((repository_root() / PFML).read_text(encoding="utf8"))["found"]["options"]["delta"]
    assert rows.loc["delta"].tolist() == [f"{chosen:.3g}", "0.2"]


def test_a_study_shows_its_parameters_and_saves_its_table(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_RESULTS", str(tmp_path))
    study = Normalizer.from_cell({"profile": "quick", "In": [], "pytest": pytest})
    assert repr(study) == repr(study.params) and study._repr_html_() == study.params._repr_html_()
    assert study.run() == []
    table = study.table()
    assert saving.to_csv(table) == saving.table_path(study.params).read_text(encoding="utf8")
    assert list(study.verdicts(table).verdicts["claim_id"].unique()) == Normalizer.settled == ["nivmf-14"]
