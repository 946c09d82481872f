"""Pseudo-labels: groups that are there are found, and the random walk is the series that defines it."""

import pytest
import torch
import torch.nn.functional as F

from experiments.training.algorithms import pseudo_labels as clusters


def blobs(seed=0, groups=5, per_group=12, size=16, noise=0.15):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(groups).repeat_interleave(per_group)
    centres = F.normalize(torch.randn(groups, size, generator=generator), dim=1)
    return centres[labels] + noise * torch.randn(len(labels), size, generator=generator) / size**0.5, labels


@pytest.mark.parametrize("found_by", [clusters.kmeans, clusters.hierarchical, clusters.random_walk])
def test_separate_groups_are_found(found_by):
    points, labels = blobs()
    groups = found_by(points, 5, 3)
    assert groups.dtype == torch.int64 and groups.shape == labels.shape and set(groups.tolist()) == set(range(5))
    assert torch.equal(groups[:, None] == groups, labels[:, None] == labels)
    assert torch.equal(groups, found_by(7 * points, 5, 3))  # directions count


def test_the_random_walk_is_the_sum_over_its_lengths():
    points, _ = blobs(groups=2, per_group=8, noise=1.0)
    unit = F.normalize(points.double(), dim=1)
    cosines = unit @ unit.T
    near = torch.zeros(16, 16).scatter_(1, cosines.argsort(descending=True)[:, 1:5], 1).bool()
    affinity = cosines.relu() ** 3 * (near & near.T)
    scale = affinity.sum(1).clamp_min(1e-12) ** -0.5
    graph = 0.9 * scale[:, None] * affinity * scale
    total = sum(torch.linalg.matrix_power(graph, length) for length in range(400))
    torch.testing.assert_close(clusters.random_walk_similarity(points, k=4, alpha=0.9), total, atol=1e-9, rtol=0)
