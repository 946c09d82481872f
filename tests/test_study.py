"""What the cells of notebooks show of results/, and what a study says of itself."""

from types import SimpleNamespace

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from experiments.across.tour import Tour
from experiments.analysis import saving, stored
from experiments.nivmf.normalizer import Normalizer
from experiments.study import Execution


def of_profile(profile: str) -> Execution:
    return Execution(Tour, Tour.configured({"profile": profile}))


@pytest.mark.parametrize(("profile", "led"), [("quick", ["paper", "small"]), ("small", ["paper"]), ("paper", [])])
def test_what_larger_profiles_found_leads(profile, led, monkeypatch):
    there = [SimpleNamespace(profile=name, heading=name, table=name) for name in saving.PROFILES]
    monkeypatch.setattr(stored, "stored", lambda notebook, but: there)
    drawn = []

    def figure(table):
        drawn.append(table)
        return plt.figure()

    InteractiveShell.instance()  # a kernel has one
    plt.close("all")
    with capture_output() as captured:
        of_profile(profile).lead(figure)
    assert drawn == led and not plt.get_fignums()
    assert len(captured.outputs) == 2 * len(led)  # a heading and its figure


def test_without_larger_tables_nothing_leads(monkeypatch):
    monkeypatch.setattr(stored, "stored", lambda notebook, but: [])
    InteractiveShell.instance()
    with capture_output() as captured:
        of_profile("quick").lead(lambda table: None)
    assert not captured.outputs


def test_a_study_shows_its_parameters_and_saves_its_table(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_RESULTS", str(tmp_path))
    study = Normalizer.from_cell({"profile": "quick", "dims": [128], "In": [], "pytest": pytest})
    assert repr(study) == repr(study.params) and study._repr_html_() == study.params._repr_html_()
    assert study.run() == []
    table = study.table()
    assert saving.as_saved(table).equals(saving.read(saving.table_path(study.params)))
    assert list(study.verdicts(table).verdicts["claim_id"].unique()) == Normalizer.settled == ["nivmf-14"]
