"""Notebook 11: which runs it shares, what it measures, and that its claims find their rows."""

import numpy as np
import pytest
import torch

from experiments.pfml import label_noise
from experiments.training.spec import RunSpec


def found_by_search(specs, records, params):
    """As `methods.search_each`, which found this margin for every loss."""
    return [(spec.replace(loss_options={**spec.loss_options, "margin": 0.7}), []) for spec in specs]


def test_what_a_search_finds_on_right_labels_is_trained_on_wrong_ones(monkeypatch):
    monkeypatch.setattr(label_noise, "search_each", found_by_search)
    params = label_noise.LabelNoise.configured({"methods": ["Triplet"], "seeds": 1})
    specs = label_noise.label_noise(params)
    assert [(spec.label_noise, spec.loss_options["margin"]) for spec in specs] == [(0, 0.7), (0.2, 0.7), (0.4, 0.7)]


def test_a_protocol_that_trains_several_networks_per_seed_is_refused():
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
