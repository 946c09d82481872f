"""Notebook 10 trains the fields once more as READINGS has them, and tells them apart from the comparison itself."""

import pytest

from experiments.pfml import retrieval
from experiments.pfml.methods import READINGS


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
