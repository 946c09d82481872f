"""Notebook 30: the magnet against what is known of it, and mean fields of classes against their means."""

import math

import pytest
import torch

from experiments.meanfield import magnet
from experiments.meanfield.magnet import CRITICAL


def test_the_order_parameter_solves_eq_5_and_vanishes_at_the_critical_temperature():
    for temperature in (0.05, 0.2, 0.3, 0.333):
        order = magnet.order_parameter(temperature)
        assert order > 0
        assert 1 / math.tanh(order / temperature) - temperature / order == pytest.approx(order)
    near = CRITICAL - 1e-4  # there M = sqrt(5/3 (1 - T / T_c))
    assert magnet.order_parameter(near) == pytest.approx(math.sqrt(5 / 3 * (1 - near / CRITICAL)), rel=1e-2)
    assert magnet.order_parameter(CRITICAL) == magnet.order_parameter(1.0) == 0


def test_monte_carlo_is_exact_for_two_spins():
    """Their energy is -S_1 . S_2 / 2 but for a constant, and |S_1 + S_2| / 2 = sqrt((1 + c) / 2) at cosine c.

    A field of twice the variance is out by 0.02 and more from T = 0.3 on, and by nothing where all spins are aligned.
    """
    temperatures = torch.tensor([0.1, 0.3, 0.5, 1.0], dtype=torch.float64)
    cosine = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    weights = (cosine / (2 * temperatures[:, None])).exp()
    expected = (weights * ((1 + cosine) / 2).sqrt()).sum(1) / weights.sum(1)
    simulated = magnet.simulate(2, temperatures, 2000, 20).mean(1)
    torch.testing.assert_close(simulated, expected, rtol=0, atol=0.005)


def test_the_best_mean_fields_are_the_class_means_where_classes_are_apart():
    loss = {name: with_fields for name, (with_fields, _) in magnet.loss_pairs().items()}
    offsets = {}
    for centers in magnet.CENTERS:
        embeddings, labels = magnet.classes_of(centers, 0.4, 20, seed=0)
        for name, field_loss in loss.items():
            fields = magnet.best_fields(embeddings, labels, field_loss)
            offsets[centers, name] = magnet.field_offset(fields, embeddings, labels)
    assert offsets["apart", "MFCWMS;alpha=0.01"] < 1e-3 < 0.02 < offsets["apart", "MFCWMS;alpha=20"] < 0.2
    assert all(offsets["crowded", name] > offsets["apart", name] + 0.1 for name in loss)
    embeddings, labels = magnet.classes_of("apart", 0.4, 20, seed=0)
    samples = embeddings[torch.arange(8) * 20]
    found = magnet.best_fields(embeddings, labels, loss["MFCWMS;alpha=0.01"], start=samples)
    assert (
        magnet.field_offset(found, embeddings, labels) < 1e-3 < 0.5 < magnet.field_offset(samples, embeddings, labels)
    )


def test_offsets_are_in_units_of_the_spread():
    embeddings, labels = magnet.classes_of("apart", 0.2, 30, seed=1)
    means = magnet.class_means(embeddings, labels)
    assert magnet.field_offset(5 * means, embeddings, labels) == pytest.approx(0, abs=1e-7)
    some = embeddings[torch.arange(8) * 30]  # a sample of each class is about one spread away
    assert magnet.field_offset(some, embeddings, labels) == pytest.approx(1, abs=0.3)
