"""Which run is exported: the one that its name alone stands for, whatever variants of the method there are."""

from types import SimpleNamespace

import pytest

from experiments.report import catalogue, kept
from experiments.study import Execution


@pytest.fixture
def execution(monkeypatch):
    """Notebook 10 at quick, whose runs are given back as they are asked for."""
    monkeypatch.setattr(Execution, "run", lambda self, specs: [SimpleNamespace(spec=spec) for spec in specs])
    study = catalogue.find("10")
    return Execution(study, study.params.from_values({"profile": "quick"}))


def test_every_name_of_a_notebook_stands_for_one_run(execution):
    specs = [spec for spec in execution.study.specs(execution.params) if spec.loss and spec.seed == 1]
    for name in {kept._named(spec) for spec in specs}:
        assert kept._named(kept.chosen(execution, name, seed=1).spec) == name


def test_an_unknown_name_lists_those_that_there_are(execution):
    with pytest.raises(
        ValueError, match=r"has 0 runs for --method nothing --seed 0; give one of --method 'untrained', .*'PFML', "
    ):
        kept.chosen(execution, "nothing")
