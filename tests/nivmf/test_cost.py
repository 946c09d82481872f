"""Notebook 26: what is timed, and what more samples do to the loss."""

import pytest

from experiments.analysis import judging
from experiments.methods import spec_of
from experiments.nivmf import cost
from experiments.nivmf.claims import TESTS
from experiments.nivmf.methods import METHODS
from experiments.training import runs


def test_ratios_are_timed_for_every_method_and_find_their_claim(monkeypatch):
    for name, value in {"BACKBONE": "conv4", "EMBEDDING_SIZE": 16, "CLASSES": 5}.items():
        monkeypatch.setattr(cost, name, value)
    small = {"cost_image_size": 16, "network_images": 2, "sample_counts": [1, 5], "repetitions": 2, "batch_size": 8}
    small |= {"backbone": "squeezenet1_1", "weights": "imagenet"}  # as at small; the timed networks are untrained
    params = cost.Cost.configured(small)
    timings = cost.timed_ratios(params)
    assert (timings["value"] > 0).all()
    steps = timings[timings["metric"] == "seconds_ratio"]
    assert set(zip(steps["method"], steps["setting"])) == {
        ("EL-vMF", ""), ("B-vMF", ""), ("KL-vMF", ""), ("EL-nivMF", "samples=1"), ("EL-nivMF", "samples=5")
    }  # fmt: skip
    line = judging.judge(timings, TESTS, ["nivmf-09"]).verdicts.iloc[0]
    assert (line["verdict"], line["dataset"], line["backbone"]) == ("not run", "synthetic", "conv4")
    assert line["reason"] == "another network"


def test_more_samples_give_a_steadier_loss():
    params = cost.Cost.configured({"steps": 3})
    spec = spec_of(METHODS["EL-nivMF"], params, loss_options={"concentration": 5.0}, images_per_class=4)
    few, many = cost.estimate_spread(runs.run(spec), (1, 20))
    assert few["loss_sd"] > 1e-3, "each call draws anew"
    assert many["loss_sd"] < few["loss_sd"] / 2
    assert many["loss_mean"] == pytest.approx(few["loss_mean"], abs=0.1)
