"""Notebook 10 trains the fields once more as READINGS has them, and tells them apart from the comparison itself."""

import pandas as pd
import pytest

from experiments.analysis import results
from experiments.pfml import retrieval
from experiments.pfml.methods import READINGS
from experiments.training.protocols import Scored


@pytest.fixture(autouse=True)
def every_reading(monkeypatch):
    monkeypatch.setitem(retrieval.READINGS_AT, "quick", tuple(READINGS))


def specs(**values):
    """Parameters and runs, as if none kept its evaluations."""
    params = retrieval.Retrieval.configured({"seeds": 1, "mlrc_steps": 0, "small_dim": 0} | values)
    runs = retrieval.retrieval(params)
    return params, [spec.replace(keep_history=False, eval_every=None, eval_every_epochs=None) for spec in runs]


def test_every_reading_changes_one_method_and_nothing_else():
    _, planned = specs()
    usual = {spec.method: spec for spec in planned if not spec.setting}
    others = {spec.setting: spec for spec in planned if spec.setting}
    assert list(others) == list(READINGS)
    for setting, (method, change) in READINGS.items():
        before, after = usual[method].as_dict(), others[setting].as_dict()
        changed = {name for name in after if after[name] != before[name]}
        assert others[setting].method == method and changed == set(change), setting


def test_cpml_as_pfml_is_clipped_differs_from_pfml_in_the_loss_alone():
    _, planned = specs()
    pfml, cpml = (
        next(spec for spec in planned if (spec.method, spec.setting) == name)
        for name in (("PFML", ""), ("CPML", "clipping=of PFML"))
    )
    names = {name for name, value in cpml.as_dict().items() if value != pfml.as_dict()[name]}
    assert names == {"loss", "loss_options"}
    assert dict(cpml.loss_options).items() < dict(pfml.loss_options).items()


def test_readings_go_with_their_method_and_profile():
    _, planned = specs(methods=["ProxyAnchor"])
    assert [spec.method for spec in planned] == ["ProxyAnchor"]
    for profile, settings in retrieval.READINGS_AT.items():
        _, planned = specs(profile=profile, methods=["PFML"], dataset=None)
        of_pfml = [setting for setting in settings if READINGS[setting][0] == "PFML"]
        assert [spec.setting for spec in planned] == ["", *of_pfml]


def test_summary_has_a_row_per_reading():
    params, planned = specs()
    rows = [{"selection": "last", "step": 1, "metric": "R@1", "value": 0.1}]
    table = results.tidy([Scored(spec, "glyphs", rows) for spec in planned], params)
    summary = retrieval.readings_summary(table, ["R@1"])
    assert isinstance(summary, pd.DataFrame)
    assert list(summary.index) == [
        ("as everywhere", "PFML"),
        ("as everywhere", "CPML"),
        *((setting, method) for setting, (method, _) in READINGS.items()),
    ]


def test_rows_of_small_embeddings_say_how_many_steps_they_had():
    params, planned = specs(small_dim=16, methods=["PFML"])
    small, start = (spec for spec in planned if spec.setting == "dim=16")
    assert (start.method, start.embedding_size, start.steps) == ("random head", 16, None)
    common = {"paper": "pfml", "experiment": "x", "profile": "quick", "dataset": "d", "protocol": "conventional"}
    rows = [{"method": "PFML", "setting": setting, "metric": "P@1", "value": 50.0} for setting in ("", "dim=16")]
    shown = retrieval.further_summary(results.frame(common | row for row in rows), params, ["P@1"])
    assert shown.index.tolist() == [("conventional", f"dim=16, {small.steps} steps", "PFML")]


def test_tables_4_to_7_are_shown_for_the_methods_that_are_ours():
    printed = retrieval.printed_further()
    assert printed.loc[("64-dim", "PFML"), ("CUB-200-2011", "P@1")] == 63.9
    assert printed.loc[("MLRC separated", "PFML"), ("Cars-196", "MAP@R")] == 22.9
    assert "HIST" not in printed.index.get_level_values("method")
