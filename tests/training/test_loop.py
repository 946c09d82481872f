"""The loop: exact after an interruption, the best weights where asked for, frozen things frozen, epochs as steps."""

import os
import time
from unittest.mock import Mock

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from experiments.training import batches, inference, loop
from experiments.training.loop import State

TINY = tiny.TINY.replace(steps=10)
# two epochs of two views in groups of neighbours, which depend on the network
NEIGHBOURS = TINY.replace(image_size=32, views=2, neighbours=5, batch_size=150, steps=8)
# a baseline whose miner samples, with a fold, a learning-rate drop and best weights to keep; groups of neighbours and a
# network with its teacher, without labels
INTERRUPTED = {
    "Margin": TINY.replace(
        loss="baselines.margin",
        samples_per_class=4,
        optimizer="rmsprop",
        fold=1,
        eval_every=2,
        restore_best=True,
        lr_drop_epochs=(0.1,),
    ),
    "PLM": tiny.PLM.replace(batch_size=150, steps=8),
}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_a_run_interrupted_and_resumed_is_the_run_that_was_not(name, tmp_path):
    """tests/test_kills.py kills processes at random moments."""
    spec = INTERRUPTED[name]
    resumed, whole = tiny.resumed(spec, tmp_path / "run.pt", step=5), loop.train(spec)
    assert resumed.rows == whole.rows
    assert torch.equal(resumed.losses, whole.losses)
    pairs = [(resumed.states[name], state) for name, state in whole.states.items()]
    for actual, expected in [*pairs, (resumed.embeddings, whole.embeddings), (resumed.terms, whole.terms)]:
        assert actual.keys() == expected.keys()
        assert all(torch.equal(actual[key], value) for key, value in expected.items())


def test_the_weights_left_behind_are_those_of_the_best_evaluation():
    spec = TINY.replace(fold=0, eval_every=2, restore_best=True, monitor="MAP@R", lr=0.3)  # so high that the end is bad
    outcome = loop.train(spec)
    value = {(row["selection"], row["metric"]): (row["step"], row["value"]) for row in outcome.rows}
    assert len(value) == len(outcome.rows)  # nothing twice
    assert {selection for selection, _ in value} == {"last", "val_best"}  # the test set was not looked at on the way
    best, last = value["val_best", "val MAP@R"], value["last", "val MAP@R"]
    assert best[1] > last[1] and best[0] < last[0] == 10

    plain = loop.train(spec.replace(restore_best=False))
    assert {row["selection"] for row in plain.rows} == {"last", "test_best", "val_best"}
    history = [row for row in plain.rows if row["selection"] == "val_best" and not row["metric"].startswith("val ")]
    assert history and all(value["val_best", row["metric"]] == (row["step"], row["value"]) for row in history)
    until_best = loop.train(spec.replace(restore_best=False, eval_every=None, steps=best[0]))
    assert all(torch.equal(outcome.states["network"][k], v) for k, v in until_best.states["network"].items())
    assert torch.equal(outcome.embeddings[""], until_best.embeddings[""])


def test_training_stops_after_patience_evaluations_without_a_new_best(monkeypatch):
    scores = iter([0.1, 0.3, 0.3, 0.2, 0.9])

    def evaluate(task, network, step, **_):
        return [{"step": step, "metric": "P@1", "value": next(scores)}], {"": torch.zeros(1, 8)}

    monkeypatch.setattr(inference, "evaluate", evaluate)
    outcome = loop.train(TINY.replace(eval_every=2, patience=2))
    assert len(outcome.losses) == 8  # the fourth evaluation is the second in a row that is not better than 0.3
    assert {(row["selection"], row["step"], row["value"]) for row in outcome.rows} == {
        ("last", 8, 0.2),
        ("test_best", 4, 0.3),
    }


def test_frozen_batchnorm_and_in_the_warm_up_the_trunk_stay_as_they_were_and_noise_moves_both():
    start = inference.build_network(TINY, batches.load_dataset(TINY)).state_dict()
    after = loop.train(TINY.replace(freeze_batchnorm=True, warmup_epochs=0.1)).states["network"]
    norms = [key for key, module in after.items() if key.startswith("trunk") and module.ndim < 4]
    assert len(norms) == 20  # weight, bias and three statistics of four layers
    assert all(torch.equal(after[key], start[key]) for key in norms)
    assert not any(torch.equal(after[key], start[key]) for key in after if key not in norms)
    frozen = loop.train(TINY.replace(warmup_epochs=1)).states["network"]
    trunk = [name for name in start if name.startswith("trunk") and name.endswith("weight")]
    assert all(torch.equal(start[name], frozen[name]) for name in trunk)
    assert not torch.equal(start["head.weight"], frozen["head.weight"])
    assert not torch.equal(loop.train(TINY.replace(replica=1)).losses, loop.train(TINY).losses)


def test_durations_in_epochs_become_steps_and_learning_rates_drop_for_the_network_and_the_loss(monkeypatch):
    schedule = loop.Schedule(
        TINY.replace(
            steps=None, epochs=6, warmup_epochs=1, lr_drop_epochs=(2, 4.5), lr_drop=0.1, eval_every_epochs=0.5
        ),
        steps_per_epoch=50,
    )
    assert (schedule.total, schedule.warmup) == (300, 50)
    assert [schedule.rate(step) for step in (0, 99, 100, 224, 225, 299)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    assert [step for step in range(1, 301) if schedule.evaluates(step)] == list(range(25, 301, 25))
    odd = loop.Schedule(TINY.replace(eval_every=4), steps_per_epoch=50)
    assert [step for step in range(1, 11) if odd.evaluates(step)] == [4, 8, 10]
    seen, step = [], loop.train_step

    def spy(state, *batch):
        seen.append([group["lr"] for group in state.optimizer.param_groups])
        return step(state, *batch)

    monkeypatch.setattr(loop, "train_step", spy)
    spec = TINY.replace(steps=4, lr_drop_epochs=(0.04,), lr_drop=0.5, head_lr=4e-3, loss_lr={"*": 0.1})
    loop.train(spec)  # 50 steps an epoch: the drop is at step 2
    assert np.allclose(seen, [[1e-3, 4e-3, 0.1]] * 2 + [[5e-4, 2e-3, 0.05]] * 2)


def test_a_checkpoint_is_written_whenever_its_time_has_come(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(State, "save", lambda self, path: saved.append(self.step))
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1)
    clock = iter(np.arange(0, 100, 0.15))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    loop.train(TINY.replace(steps=16), checkpoint=tmp_path / "run.pt")
    assert len(saved) == 2


def test_class_means_start_the_proxies_that_can_be_started():
    spec = TINY.replace(loss="nivmf.ProbabilisticProxyLoss", proxies_from_class_means=True, steps=1, lr=1e-9)
    proxies = loop.train(spec).states["loss"]["proxies"]
    manifest = batches.load_dataset(spec)
    network = inference.build_network(spec, manifest)
    inference.calibrate_batchnorm(batches.Task(spec, manifest), network)
    train = manifest.indices("train")
    embeddings = inference.embed_images(spec, network, manifest, train)
    means = torch.stack([embeddings[manifest.labels[train] == c].mean(0) for c in range(manifest.num_train_classes)])
    assert torch.nn.functional.cosine_similarity(proxies, means).min() > 1 - 1e-5


def test_bfloat16_changes_little_and_weights_stay_in_float32():
    half, full = loop.train(TINY.replace(precision="bfloat16")), loop.train(TINY)
    assert torch.allclose(half.losses, full.losses, rtol=0.05) and not torch.equal(half.losses, full.losses)
    assert all(value.dtype == torch.float32 for value in half.states["network"].values() if value.is_floating_point())
    manifest = batches.load_dataset(TINY)
    network = inference.build_network(TINY, manifest)
    images = [batches.test_images(TINY, manifest, range(20))]
    full, half = (inference.embed(network, iter(images), half=half) for half in (False, True))
    assert half.dtype == torch.float32 and not torch.equal(full, half)
    assert (full - half).norm() < 0.02 * full.norm()


def test_only_looks_at_the_validation_classes_take_bfloat16(monkeypatch):
    """They decide when to stop; whatever is published of that run is evaluated in float32."""
    embed = Mock(wraps=inference.embed)
    monkeypatch.setattr(inference, "embed", embed)
    spec = TINY.replace(precision="bfloat16", fold=0, folds=4, eval_every=5, restore_best=True, monitor="MAP@R")
    loop.train(spec)
    precisions = [call.kwargs.get("half", False) for call in embed.mock_calls]
    assert precisions[:2] == [True, True]
    # then validation and test, of the last weights and, where these are not the best, of the best
    assert precisions[2:] in ([False] * 2, [False] * 4)
    for of_test in (spec.replace(fold=None, restore_best=False), spec.replace(precision="float32")):
        embed.reset_mock()
        loop.train(of_test)  # its best look at the test set is published, or nothing is in bfloat16
        assert not any(call.kwargs.get("half") for call in embed.mock_calls)


def test_groups_of_neighbours_follow_the_network_from_epoch_to_epoch(monkeypatch):
    seen, original = [], inference.neighbours

    def spy(task, network):
        seen.append((original(task, network), inference.embed(network, task.test_batches(task.train))))
        return seen[-1][0]

    monkeypatch.setattr(inference, "neighbours", spy)
    loop.train(NEIGHBOURS)
    assert len(seen) == 2 and not torch.equal(seen[0][0], seen[1][0])
    for neighbours, embeddings in seen:
        similarity = nn.functional.normalize(embeddings) @ nn.functional.normalize(embeddings).T
        similarity.fill_diagonal_(2)  # each image comes first
        assert torch.equal(neighbours[:, 0], torch.arange(len(neighbours)))
        expected = similarity.topk(5).values
        assert torch.allclose(similarity.gather(1, neighbours), expected, atol=1e-5)


def _flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4  # among the weights, where torch itself would not see it
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_flipped, lambda path: os.truncate(path, 999)])
def test_a_damaged_checkpoint_is_refused_by_name(damage, tmp_path):
    checkpoint = tmp_path / "run.pt"
    loop.begin(*loop.prepare(TINY, torch.device("cpu"))).save(checkpoint)
    damage(checkpoint)
    with pytest.raises(ValueError, match=r"run.pt is damaged; remove it, and its run starts from the first step"):
        loop.train(TINY, checkpoint=checkpoint)


def test_the_parameters_of_the_loss_decay_and_their_gradients_alone_are_clipped(monkeypatch):
    norms = {}
    for decay in (None, 0.0, 5.0):
        state = loop.train(TINY.replace(loss_weight_decay=decay, loss_lr={"*": 1e-2})).states["loss"]
        norms[decay] = state["proxies"].norm().item()
    assert norms[None] == norms[0.0]
    assert norms[5.0] < 0.8 * norms[None]  # by (1 - 0.05)^10 were there no gradient
    seen = []
    original = loop.build_optimizer

    def spied(spec, network, loss):
        optimizer = original(spec, network, loss)
        optimizer.register_step_pre_hook(
            lambda *_: seen.append([max(p.grad.abs().max().item() for p in m.parameters()) for m in (network, loss)])
        )
        return optimizer

    monkeypatch.setattr(loop, "build_optimizer", spied)
    loop.train(TINY.replace(steps=2))
    loop.train(TINY.replace(steps=2, loss_clip_value=1e-6))
    (free_network, free_proxies), _, (network, proxies), _ = seen
    assert proxies == pytest.approx(1e-6) and free_proxies > 2e-6
    assert network == free_network > 2e-6
