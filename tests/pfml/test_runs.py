"""Notebooks 10, 11 and 13 to 16: what they train at each profile, what a search decides, what is measured."""

import numpy as np
import pytest
import torch
from planned import planned

from experiments.pfml import ablations, label_noise
from experiments.pfml.methods import METHODS
from experiments.training.spec import RunSpec


def test_radii_of_repulsion_are_compared_with_the_parameter_s_radius_whatever_a_search_found(monkeypatch):
    search = {
        "begun": {"spec": {"loss": METHODS["PFML"].loss}},
        "found": {"options": {"alpha": 1.0, "delta": 0.27}},
        "conditions": {"dataset": "cub-subset", "train_from": "fire6"},
        "trials": [],
    }
    monkeypatch.setattr(ablations.Repulsion.params, "searches", lambda params: {"PFML": search})
    params, specs = planned("16", "small")
    options = {spec.setting: spec.loss_options for spec in specs if spec.loss}
    assert {loss_options["alpha"] for loss_options in options.values()} == {params.alpha}
    assert {loss_options["delta"] for loss_options in options.values()} == {params.delta}
    radii = {setting: loss_options.get("delta_rep", loss_options["delta"]) for setting, loss_options in options.items()}
    assert radii == {f"delta_rep={radius:g}": radius for radius in params.radii}


def found_by_search(specs, records, params):
    """As `methods.search_each`, which found this margin for every loss."""
    return [(spec.replace(loss_options={**spec.loss_options, "margin": 0.7}), []) for spec in specs]


def test_what_a_search_finds_on_right_labels_is_trained_on_wrong_ones_in_one_network_per_seed(monkeypatch):
    monkeypatch.setattr(label_noise, "search_each", found_by_search)
    params = label_noise.LabelNoise.configured({"methods": ["Triplet"], "seeds": 1})
    specs = label_noise.label_noise(params)
    assert [(spec.label_noise, spec.loss_options["margin"]) for spec in specs] == [(0, 0.7), (0.2, 0.7), (0.4, 0.7)]
    with pytest.raises(ValueError, match="'mlrc' trains 4; choose one of conventional, roth"):
        label_noise.LabelNoise.configured({"protocol": "mlrc"})


def test_gradient_share_is_that_of_the_wrong_images(monkeypatch):
    labels = torch.arange(40) % 2
    manifest = type("Manifest", (), {"indices": lambda self, split: np.arange(40) + 7, "corrupted": np.array([7, 9])})()
    # d loss / d unit embedding: 3 along a fixed axis for class 0, where both wrong images are, and 1 for class 1
    weight = torch.tensor([3.0, 1.0])

    def loss(points, labels):
        return (points[:, 0] * weight[labels]).sum()

    monkeypatch.setattr(label_noise, "training_embeddings", lambda run: (manifest, torch.randn(40, 3), labels))
    monkeypatch.setattr(label_noise, "trained_loss", lambda run, manifest, dim: loss)
    spec = RunSpec(dataset="glyphs", steps=1, batch_size=40)  # a batch is everything: 2 of 20 in class 0
    run = type("Run", (), {"spec": spec})()
    share = label_noise.gradient_share(run)["gradient_share"]
    assert share == pytest.approx(100 * 2 * 3 / (20 * 3 + 20 * 1), rel=1e-5)
