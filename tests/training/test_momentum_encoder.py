"""Training without labels: none leaks, the encoder follows, the pieces decide, the views differ."""

import pytest
import torch
from tiny import TINY

from experiments.training import batches, inference, loop
from experiments.training.schemes import momentum_encoder

PLM = TINY.replace(
    image_size=32,
    views=2,
    neighbours=5,
    batch_size=20,
    steps=6,
    loss="piecewise_linear.PiecewiseLinearManifoldLoss",
    loss_options={"num_proxies": 6},
    loss_lr={"*": 0.05},
    scheme="momentum_encoder",
    scheme_options={"momentum": 0.9},
)


@pytest.fixture(scope="module")
def outcome():
    return loop.train(PLM)


def test_terms_networks_and_repetition(outcome):
    assert set(outcome.terms) == {"point", "proxy", "neighborhood"}
    assert torch.allclose(sum(outcome.terms.values()), outcome.losses)
    assert {row.get("network", "") for row in outcome.rows} == {"", "teacher"} == set(outcome.embeddings)
    again = loop.train(PLM)
    assert torch.equal(outcome.losses, again.losses) and outcome.rows == again.rows
    assert all(torch.equal(again.states["teacher"][name], value) for name, value in outcome.states["teacher"].items())


def test_the_loss_sees_all_views_and_the_encoders_embeddings_of_them(monkeypatch):
    seen, objective = [], momentum_encoder.Scheme.objective

    def spy(scheme, images, labels):
        embedded = []
        hook = scheme.network.register_forward_hook(lambda *forward: embedded.append(forward[2]))
        terms = objective(scheme, images, labels)
        hook.remove()
        seen.append((images, labels, *embedded, scheme.teacher(images)))
        expected = scheme.loss.terms(*seen[-1][2:])
        assert all(torch.equal(terms[name], value) for name, value in expected.items())
        assert not scheme.teacher.training and scheme.network.training
        return terms

    monkeypatch.setattr(momentum_encoder.Scheme, "objective", spy)
    loop.train(PLM.replace(steps=3))
    for images, labels, embeddings, targets in seen:
        first, second = images.split(20)
        assert len(images) == 40 and torch.equal(labels[:20], labels[20:])  # labels say which image it is
        assert len(labels[:20].unique()) > 10 and labels.max() > 200  # of more images than there are classes
        assert (first != second).flatten(1).any(1).double().mean() > 0.9
        assert not torch.equal(embeddings, targets) and not targets.requires_grad


def test_the_encoder_moves_but_slowly(outcome):
    start = inference.build_network(PLM, batches.load_dataset(PLM)).state_dict()
    for name in ("head.weight", next(key for key in start if "running_mean" in key)):
        ours, theirs = outcome.states["network"][name], outcome.states["teacher"][name]
        assert 0 < (theirs - start[name]).norm() < (ours - start[name]).norm()


def test_the_threshold_and_the_neighbours_decide(outcome):
    for changes in (
        {"loss_options": PLM.loss_options | {"quality": 0.0}},
        {"neighbours": None},
        {"scheme_options": {"momentum": 0.0}},
    ):
        assert not torch.equal(outcome.losses, loop.train(PLM.replace(**changes)).losses)


def test_a_task_without_labels_knows_which_image_is_which():
    task = batches.Task(PLM, batches.load_dataset(PLM))
    momentum_encoder.without_labels(task)
    for images, labels in task.train_batches(
        0, 1, torch.device("cpu"), torch.arange(len(task.train)).view(-1, 1).expand(-1, 5)
    ):
        assert torch.equal(labels.view(2, 4, 5)[..., :1].expand(2, 4, 5), labels.view(2, 4, 5)) and len(images) == 40
