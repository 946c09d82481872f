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
from experiments.figures import charts
from experiments.files import repository_root
from experiments.nivmf.normalizer import Normalizer
from experiments.report import catalogue
from experiments.study import Study

ENTRIES = (("small", "most seeds"), ("small", "fewer seeds"), ("small", "whole network"), ("quick", "the demo"))
WHOLE = "results/small/searches/PFML--cub-subset,mobilenet_v2,imagenet,whole,dim=128,batch=100,epochs=16.json"
PFML = "results/small/searches/PFML--cub-subset,squeezenet1_1,imagenet,fire6,dim=128,batch=100,steps=100.json"


@pytest.mark.parametrize(
    ("deciding", "first", "others"),
    [
        (["whole network", "most seeds"], ["whole network", "most seeds"], ["fewer seeds"]),
        ([], ["most seeds"], ["fewer seeds", "whole network"]),
    ],
)
def test_the_tables_that_decide_come_first_and_the_appendix_has_the_others(deciding, first, others, monkeypatch):
    table = pd.DataFrame({"profile": ["small"]})
    there = [SimpleNamespace(profile=p, stem=h, heading=h, table=table, device="CPU", picture=None) for p, h in ENTRIES]
    for entry in there:
        entry.judged = lambda claims: "comparisons"
    monkeypatch.setattr(stored, "stored", lambda notebook, but: there)
    monkeypatch.setattr(stored, "deciding", lambda notebook: deciding)
    monkeypatch.setattr(summaries, "pivot", lambda table, metrics: metrics)
    InteractiveShell.instance()  # a kernel has one
    plt.close("all")
    with capture_output() as decides:
        Tour.evidence(["R@1"], lambda table: plt.figure())
    with capture_output() as appendix:
        Tour.further(["R@1"])
    with capture_output() as alone:
        Tour.evidence([], lambda table: plt.figure())
    said = [output.data.get("text/markdown", output.data["text/plain"]) for output in decides.outputs]
    assert said[::3] == [f"**{heading}**, trained on CPU" for heading in first] and not plt.get_fignums()
    pairs = [output for n, output in enumerate(decides.outputs) if n % 3 < 2]  # headings and figures
    assert [[*output.data] for output in alone.outputs] == [[*output.data] for output in pairs]
    assert all("Figure" in figure for figure in said[1::3]) and set(said[2::3]) == {"['R@1']"}
    said = [output.data.get("text/markdown", output.data["text/plain"]) for output in appendix.outputs]
    assert said[: len(first)] == ["'comparisons'"] * len(first)
    assert said[len(first) :: 2] == [f"**{heading}**, trained on CPU" for heading in others]


def test_validation_curves_are_those_of_the_trials_that_chose_the_settings(monkeypatch):
    monkeypatch.delenv("DMLREPRO_RECORD")
    drawn = {}
    table = pd.DataFrame({"dataset": ["cub-subset"], "backbone": ["mobilenet_v2"]})
    whole = {"profile": "small", "backbone": "mobilenet_v2"}
    entries = [SimpleNamespace(parameters=given, searches={"PFML": {}}, table=table) for given in ({}, whole)]
    monkeypatch.setattr(Study, "_beyond_demo", lambda self: (entries, []))
    monkeypatch.setattr(charts, "lines", lambda series, *labels, **how: drawn.update(series) or plt.figure())
    with capture_output() as shown:
        catalogue.find("10_pfml_retrieval").validation_curves()
    found = json.loads((repository_root() / WHOLE).read_text(encoding="utf8"))["found"]
    assert len(shown.outputs) == 1 and [*drawn] == ["PFML"]  # the profile quick has no searches
    epochs, recalls = drawn["PFML"]
    assert epochs.tolist() == [2, 4, 6, 8, 10, 12, 14, 16] and recalls.max() == 100 * found["score"]
    assert epochs[recalls.argmax()] == found["options"]["epochs"]


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
