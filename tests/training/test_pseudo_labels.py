"""Pseudo-labels come from the network, not from the labels, and survive an interruption."""

import numpy as np
import pytest
import torch
from tiny import TINY, resumed

from experiments.datasets import manifests
from experiments.training import inference, loop
from experiments.training.schemes import pseudo_labels

CLUSTERED = TINY.replace(
    loss="baselines.normalized_softmax",
    scheme="pseudo_labels",
    scheme_options={"labels": "kmeans", "clusters": 20},
    batch_size=150,
    steps=8,
)


VIEWS = {"steps": 2, "views": 2, "image_size": 32, "batch_size": 20}


@pytest.mark.parametrize(
    "spec",
    [
        CLUSTERED,
        CLUSTERED.replace(scheme_options={"labels": "hierarchical", "clusters": 20}, steps=2),
        CLUSTERED.replace(scheme_options={"labels": "random_walk", "clusters": 20}, steps=2),
        CLUSTERED.replace(loss="unlabelled.nt_xent", scheme_options={}, **VIEWS),
        CLUSTERED.replace(
            loss="piecewise_linear.PiecewiseLinearManifoldLoss",
            loss_options={"num_proxies": 6},
            scheme="momentum_encoder",
            scheme_options={"momentum": 0.9},
            neighbours=5,
            **VIEWS,
        ),
    ],
    ids=["kmeans", "hierarchical", "random_walk", "instances", "momentum encoder"],
)
def test_no_label_leaks(spec, monkeypatch):
    one, load = loop.train(spec), manifests.load

    def shuffled(*args, **options):
        manifest = load(*args, **options)
        train, labels = manifest.indices("train"), manifest.labels.copy()
        labels[train] = np.random.default_rng(0).permutation(labels[train])
        assert (labels != manifest.labels).sum() > len(train) / 2
        return manifests.replace(manifest, labels=labels)  # the one that is loaded serves the whole process

    monkeypatch.setattr(manifests, "load", shuffled)
    other = loop.train(spec)
    assert torch.equal(one.losses, other.losses) and one.rows == other.rows
    assert torch.equal(one.embeddings[""], other.embeddings[""])


def test_clusters_are_those_of_the_embeddings_and_proxies_lie_at_their_means(monkeypatch):
    seen, before_epoch = [], pseudo_labels.Scheme.before_epoch

    def spy(scheme, epoch):
        before_epoch(scheme, epoch)
        embeddings = inference.embed(scheme.network, scheme.task.test_batches(scheme.task.train))
        unit = torch.nn.functional.normalize(embeddings, dim=1)
        means = torch.stack([unit[scheme.pseudo == c].mean(0) for c in range(20)])
        assert torch.allclose(scheme.loss.proxies, torch.nn.functional.normalize(means, dim=1), atol=1e-5)
        seen.append(scheme.pseudo.clone())

    monkeypatch.setattr(pseudo_labels.Scheme, "before_epoch", spy)
    loop.train(CLUSTERED)
    assert len(seen) == 2 and not torch.equal(*seen) and set(seen[0].tolist()) == set(range(20))


def test_an_interrupted_run_goes_on_with_its_clusters(tmp_path):
    whole, again = loop.train(CLUSTERED), resumed(CLUSTERED, tmp_path / "run.pt", step=3)  # within the first epoch
    assert torch.equal(again.losses, whole.losses) and again.rows == whole.rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": "spectral"}, "labels must be one of instances, kmeans, hierarchical, random_walk, got 'spectral'"),
        ({"clusters": 1}, "clusters must be a whole number from 2 up, got 1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        CLUSTERED.replace(scheme_options=options)


def test_more_clusters_than_images_are_refused():
    with pytest.raises(ValueError, match=r"clusters must be at most \d+, the training images, got 100000"):
        loop.train(CLUSTERED.replace(scheme_options={"labels": "kmeans", "clusters": 100_000}))
