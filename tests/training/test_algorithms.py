"""Algorithms: a momentum encoder averages the network, which learns from it; clusters stand in for labels."""

import numpy as np
import pytest
import torch
from example_tables import EXAMPLE
from tiny import PLM as STEPS_OF_PLM
from tiny import TINY

from experiments.analysis import results
from experiments.datasets import manifests
from experiments.training import batches, inference, loop, runs
from experiments.training.algorithms import momentum_encoder, pseudo_labels

PLM = STEPS_OF_PLM.replace(steps=6, loss_lr={"*": 0.05})


def states_of(network) -> dict:
    return {name: value.clone() for name, value in network.state_dict().items()}


def test_the_teacher_is_the_moving_average_of_weights_and_statistics(monkeypatch):
    seen, after_step = [], momentum_encoder.Algorithm.after_step

    def spy(algorithm):
        before = states_of(algorithm.teacher)
        after_step(algorithm)
        seen.append((before, states_of(algorithm.network), states_of(algorithm.teacher)))

    monkeypatch.setattr(momentum_encoder.Algorithm, "after_step", spy)
    outcome = loop.train(STEPS_OF_PLM)
    start = inference.build_network(STEPS_OF_PLM, batches.load_dataset(STEPS_OF_PLM)).state_dict()
    assert len(seen) == 4 and torch.equal(seen[0][0]["head.weight"], start["head.weight"])
    for before, network, teacher in seen:
        for name, value in network.items():
            expected = 0.9 * before[name] + 0.1 * value if value.is_floating_point() else value
            assert torch.allclose(teacher[name], expected, rtol=1e-5, atol=1e-7), name
    assert any("running_mean" in name for name in start)
    assert torch.equal(outcome.states["teacher"]["head.weight"], seen[-1][2]["head.weight"])
    assert not torch.equal(seen[-1][1]["head.weight"], seen[-1][2]["head.weight"])


def test_two_networks_are_evaluated_saved_and_tabulated(tmp_path, monkeypatch, shared_cache):
    run = runs.run(STEPS_OF_PLM.replace(method="X", setting="a=1"))
    table = results.tidy([run], EXAMPLE.configured({}))
    assert set(table["setting"]) == {"a=1", "a=1;network=teacher"}
    ours, theirs = (table[table["setting"] == setting] for setting in ("a=1", "a=1;network=teacher"))
    assert list(ours["metric"]) == list(theirs["metric"])
    manifest = batches.load_dataset(STEPS_OF_PLM)
    embeddings = inference.embed_images(STEPS_OF_PLM, run.network("teacher"), manifest, manifest.indices("test"))
    assert torch.allclose(embeddings, run.arrays["embeddings teacher"], atol=1e-5)


def test_terms_and_networks():
    spec = PLM.replace(fold=0, folds=3)
    outcome = loop.train(spec)
    held_out = [row["value"] for row in outcome.rows if row["metric"] == "val MAP@R"]
    assert len(held_out) == 2 and 0 < min(held_out) <= max(held_out) < 1
    assert set(outcome.terms) == {"point", "proxy", "neighborhood"}
    assert torch.allclose(sum(outcome.terms.values()), outcome.losses)
    assert {row.get("network", "") for row in outcome.rows} == {"", "teacher"} == set(outcome.embeddings)


def test_the_loss_sees_all_views_and_the_encoders_embeddings_of_them(monkeypatch):
    seen, objective = [], momentum_encoder.Algorithm.objective

    def spy(algorithm, images, labels):
        embedded = []
        hook = algorithm.network.register_forward_hook(lambda *forward: embedded.append(forward[2]))
        terms = objective(algorithm, images, labels)
        hook.remove()
        seen.append((images, labels, *embedded, algorithm.teacher(images)))
        expected = algorithm.loss.terms(*seen[-1][2:])
        assert all(torch.equal(terms[name], value) for name, value in expected.items())
        assert not algorithm.teacher.training and algorithm.network.training
        return terms

    monkeypatch.setattr(momentum_encoder.Algorithm, "objective", spy)
    loop.train(PLM.replace(steps=3))
    for images, labels, embeddings, targets in seen:
        first, second = images.split(20)
        assert len(images) == 40 and torch.equal(labels[:20], labels[20:])  # labels say which image it is
        assert len(labels[:20].unique()) > 10 and labels.max() > 200  # of more images than there are classes
        assert (first != second).flatten(1).any(1).double().mean() > 0.9
        assert not torch.equal(embeddings, targets) and not targets.requires_grad


CLUSTERED = TINY.replace(
    loss="baselines.normalized_softmax",
    algorithm="pseudo_labels",
    algorithm_options={"labels": "kmeans", "clusters": 20},
    batch_size=150,
    steps=8,
)


@pytest.mark.parametrize(
    "spec",
    [
        CLUSTERED,
        CLUSTERED.replace(algorithm_options={"labels": "hierarchical", "clusters": 20}, steps=2),
        CLUSTERED.replace(algorithm_options={"labels": "random_walk", "clusters": 20}, steps=2),
        CLUSTERED.replace(
            loss="unlabelled.nt_xent", algorithm_options={}, steps=2, views=2, image_size=32, batch_size=20
        ),
        PLM.replace(steps=2),
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
    seen, before_epoch = [], pseudo_labels.Algorithm.before_epoch

    def spy(algorithm, epoch):
        before_epoch(algorithm, epoch)
        embeddings = inference.embed(algorithm.network, algorithm.task.test_batches(algorithm.task.train))
        unit = torch.nn.functional.normalize(embeddings, dim=1)
        means = torch.stack([unit[algorithm.pseudo == c].mean(0) for c in range(20)])
        assert torch.allclose(algorithm.loss.proxies, torch.nn.functional.normalize(means, dim=1), atol=1e-5)
        seen.append(algorithm.pseudo.clone())

    monkeypatch.setattr(pseudo_labels.Algorithm, "before_epoch", spy)
    loop.train(CLUSTERED)
    assert len(seen) == 2 and not torch.equal(*seen) and set(seen[0].tolist()) == set(range(20))


def test_bad_options_are_named():
    for options, message in (
        ({"labels": "spectral"}, "labels must be 'instances', 'kmeans', .*got 'spectral'"),
        ({"clusters": 1}, "clusters must be greater than or equal to 2, got 1"),
        ({"labels": "kmeans", "clusters": 100_000}, r"clusters must be at most \d+, the training images, got 100000"),
    ):
        with pytest.raises(ValueError, match=message):
            loop.train(CLUSTERED.replace(algorithm_options=options))
