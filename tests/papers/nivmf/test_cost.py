"""Notebook 26: what is timed, and what more samples do to the loss."""

import pytest

from dmlrepro.evidence import claims
from dmlrepro.papers.methods import spec_of
from dmlrepro.papers.nivmf import cost
from dmlrepro.papers.nivmf.claims import TESTS
from dmlrepro.papers.nivmf.methods import METHODS
from dmlrepro.training import runs


def test_ratios_are_timed_for_every_method_and_find_their_claim():
    small = {"cost_backbones": ["conv4"], "sample_counts": [1, 5], "repetitions": 2, "batch_size": 8}
    small |= {"backbone": "squeezenet1_1", "weights": "imagenet"}  # as at small; the timed networks are untrained
    params = cost.NivmfCostParams.from_values(small)
    timings = cost.timed_ratios(params)
    assert (timings["value"] > 0).all()
    steps = timings[timings["metric"] == "seconds_ratio"]
    assert set(zip(steps["method"], steps["setting"])) == {
        ("EL-vMF", ""), ("B-vMF", ""), ("KL-vMF", ""), ("EL-nivMF", "samples=1"), ("EL-nivMF", "samples=5")
    }  # fmt: skip
    assert claims.verdicts(timings, TESTS, ["nivmf-09"])["verdict"].item() != "not run"


def test_more_samples_give_a_steadier_loss():
    params = cost.NivmfCostParams.from_values({"steps": 3})
    spec = spec_of(METHODS["EL-nivMF"], params, loss_options={"concentration": 5.0}, images_per_class=4)
    few, many = cost.estimate_spread(runs.run(spec), (1, 20))
    assert many["loss_sd"] < few["loss_sd"] / 2
    assert many["loss_mean"] == pytest.approx(few["loss_mean"], abs=0.1)
