"""What the cells of notebooks show of results/."""

from types import SimpleNamespace

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from dmlrepro.desk import execution
from dmlrepro.evidence import saving


@pytest.mark.parametrize(("profile", "led"), [("quick", ["paper", "small"]), ("small", ["paper"]), ("paper", [])])
def test_what_larger_profiles_found_leads(profile, led, monkeypatch):
    there = [SimpleNamespace(profile=each, heading=each, table=each) for each in saving.PROFILES]
    monkeypatch.setattr(execution.stored, "stored", lambda notebook, but: there)
    drawn = []

    def figure(table):
        drawn.append(table)
        return plt.figure()

    InteractiveShell.instance()  # a kernel has one
    params = SimpleNamespace(profile=profile, notebook="42_x", stem="42_x")
    with capture_output() as captured:
        execution.lead(params, figure)
    assert drawn == led and not plt.get_fignums()
    assert len(captured.outputs) == 2 * len(led)  # a heading and its figure


def test_without_larger_tables_nothing_leads(monkeypatch):
    monkeypatch.setattr(execution.stored, "stored", lambda notebook, but: [])
    InteractiveShell.instance()
    with capture_output() as captured:
        execution.lead(SimpleNamespace(profile="quick", notebook="42_x", stem="42_x"), lambda table: None)
    assert not captured.outputs
