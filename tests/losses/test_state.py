"""What a loss holds beside its weights: when streams and memories change, and what copies and averages do."""

import copy
import functools
import math
import pickle

import pytest
import torch
from each_loss import HOLDING, LABELS, NAMES, B, C, D, batch, built, call
from timm.utils import ModelEmaV2, ModelEmaV3
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from dmlrepro.losses.baselines import cross_batch_memory
from dmlrepro.losses.nivmf import DEFAULTS, ProbabilisticProxyLoss


def trained(name, steps=1, seed=0):
    loss = built(name, seed)
    for step in range(steps):
        call(loss, batch(step))
    return loss


def snapshot(module):
    return {key: value.clone() for key, value in module.state_dict().items()}


def same(state, other):
    return state.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in state.items())


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_drawn_from_torch(name):
    first, again, other = (dict(built(name, seed).named_parameters()) for seed in (0, 0, 1))
    assert same(first, again)
    drawn = [key for key in first if key not in ("loss.beta",) and not key.split(".")[-1].startswith("log_")]
    assert not any(torch.equal(first[key], other[key]) for key in drawn)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("look", ["eval", "no_grad", "inference_mode"])
def test_a_loss_that_is_looked_at_stays_as_it_is(name, steps, look):
    loss = trained(name, steps)
    untouched, before, x = copy.deepcopy(loss), snapshot(loss), batch(9)
    global_stream = torch.get_rng_state()
    loss.train(look != "eval")
    with {"eval": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}[look]():
        values = [call(loss, scale * x).item() for scale in (1.0, 1e-3, 1.0)]
    assert same(before, snapshot(loss)) and torch.equal(global_stream, torch.get_rng_state())
    assert values[0] == values[2] and math.isfinite(values[1])
    for seed in (5, 6):
        assert call(loss.train(), batch(seed)).item() == call(untouched, batch(seed)).item()


@pytest.mark.parametrize("distance", DEFAULTS)
def test_only_a_training_batch_sets_the_scale(distance):
    torch.manual_seed(0)
    loss, x = ProbabilisticProxyLoss(C, D, distance), batch()
    if distance in ("cosine", "nivmf"):  # they read no norms
        assert call(loss, x).isfinite() and loss.embedding_scale == 1.0 and "embedding_scale" not in loss.state_dict()
        return
    expected = 2 * D / x.norm(dim=1).mean().item()
    with torch.no_grad():
        loss(1e-3 * x, LABELS)
    loss.eval()(1e-3 * x, LABELS)
    loss.train()(torch.zeros(B, D), LABELS)
    assert math.isnan(loss.embedding_scale)
    looked_at = loss.eval()(x, LABELS).item()
    assert looked_at == loss.train()(x, LABELS).item()
    assert loss.embedding_scale.item() == pytest.approx(expected)
    loss(1e-3 * x, LABELS)
    assert loss.embedding_scale.item() == pytest.approx(expected)


recomputed = functools.partial(checkpoint, use_reentrant=False)


# each gives the value of a step in three calls, run(function, ...) what may be computed again


def each_call(loss, x, weight, run):
    return sum(run(lambda some: call(loss, some) * weight, each) for each in (x, 2 * x.roll(1, 1), x))


def with_a_network(loss, x, weight, run):
    return sum(run(lambda some: call(loss, some.tanh().atanh()) * weight, each) for each in (x, 2 * x.roll(1, 1), x))


def all_calls(loss, x, weight, run):
    return run(lambda x: sum(call(loss, each) * weight for each in (x, 2 * x.roll(1, 1), 3 * x)), x)


def step(loss, x, compute, run):
    """Gradients of a step, and the state behind it. The gradient by the weight needs the value that was computed."""
    weight = torch.tensor(0.5, requires_grad=True)
    compute(loss, x, weight, run).backward()
    found = [each.grad for each in (x, weight, *loss.parameters()) if each.grad is not None]
    return found, snapshot(loss)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("compute", [each_call, all_calls, with_a_network])
def test_activation_checkpointing_changes_no_gradient_and_no_state(name, compute, early_stop):
    loss = trained(name, 2)
    copied = copy.deepcopy(loss)
    with set_checkpoint_early_stop(early_stop):
        for seed in (7, 8):  # the second step has a graph of its own
            x = batch(seed).detach() / 4
            expected, state = step(loss, x.clone().requires_grad_(), compute, lambda function, *given: function(*given))
            actual, other = step(copied, x.clone().requires_grad_(), compute, recomputed)
            for one, two in zip(actual, expected, strict=True):
                assert (one - two).norm() <= 1e-5 * two.norm()
            assert same(state, other)


@pytest.mark.parametrize("name", HOLDING)
def test_equal_calls_in_one_checkpoint_are_refused(name):
    x = batch(9)
    loss = trained(name, 2)
    value = recomputed(lambda x: sum(call(loss, each) for each in (x, 2 * x.roll(1, 1), x)), x)
    with pytest.raises(RuntimeError, match="checkpoint calls with the same embeddings one by one"):
        value.backward()


@pytest.mark.parametrize("name", HOLDING)
def test_a_graph_may_be_gone_through_twice(name):
    loss, x = trained(name, 2), batch(9)
    value = checkpoint(call, loss, x, use_reentrant=False)
    call(loss, batch(10))
    first, second = (torch.autograd.grad(value, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", NAMES)
def test_reentrant_checkpointing_is_right_or_refused_by_name(name):
    loss, x = trained(name, 2), batch(9)
    expected = torch.autograd.grad(call(copy.deepcopy(loss), x), x)[0]
    value = checkpoint(call, loss, x, use_reentrant=True)
    if name in HOLDING:
        with pytest.raises(RuntimeError, match="cannot tell which of its calls activation checkpointing"):
            value.backward()
    else:
        value.backward()
        torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize("name", HOLDING)
def test_a_call_is_kept_no_longer_than_its_graph(name):
    from dmlrepro.losses import _state

    loss, before = trained(name), len(_state._calls)
    value = checkpoint(call, loss, batch(), use_reentrant=False)
    assert len(_state._calls) > before
    plain = call(loss, batch())
    assert len(_state._calls) == before + 1 or not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
    del plain
    value.backward()
    del value
    assert len(_state._calls) == before


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("twin", ["deepcopy", "pickle", "state"])
def test_a_copy_goes_on_as_the_loss_does(name, twin):
    loss = trained(name, 3)
    if twin == "state":
        other = built(name, seed=5)
        other.load_state_dict(snapshot(loss))
    else:
        other = copy.deepcopy(loss) if twin == "deepcopy" else pickle.loads(pickle.dumps(loss))
    global_stream = torch.get_rng_state()
    for seed in (5, 6, 7):
        assert call(loss, batch(seed)).item() == call(other, batch(seed)).item()
    assert torch.equal(global_stream, torch.get_rng_state())


def test_a_state_of_another_length_is_refused():
    small, large = cross_batch_memory(C, D, memory_size=5), cross_batch_memory(C, D, memory_size=9)
    with pytest.raises(ValueError, match=r"state of CrossBatchMemory must have \d+ bytes, got \d+; make the loss with"):
        small.load_state_dict(large.state_dict())


class Model(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.net, self.loss = nn.Linear(D, D), loss

    def forward(self, x):
        return call(self.loss, self.net(x))


AVERAGES = {
    "ModelEmaV2": lambda model: ModelEmaV2(model, 0.9),
    "ModelEmaV3": lambda model: ModelEmaV3(model, 0.9),
    "AveragedModel": AveragedModel,
    "AveragedModel, buffers": lambda model: AveragedModel(model, use_buffers=True),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("began", [0, 2])
def test_an_average_of_weights_has_a_sound_loss(name, average, began):
    """Begun before training, and amid it: weights are averaged, and what is no weight is not."""
    model = Model(trained(name, began))
    averaged = AVERAGES[average](model)
    update = averaged.update_parameters if "Averaged" in average else averaged.update
    held = {key: value.clone() for key, value in averaged.module.state_dict().items() if key.endswith("_extra_state")}
    for seed in range(3):
        model(batch(seed)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)
        update(model)
    assert {key for key in averaged.module.state_dict() if key.endswith("_extra_state")} == set(held)
    assert all(torch.equal(averaged.module.state_dict()[key], value) for key, value in held.items())
    assert averaged.module.eval()(batch(8)).isfinite()
    if name == "NivMF":
        ours, theirs = model.loss.embedding_scale, averaged.module.loss.embedding_scale
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    moved = built(name, seed=7)
    moved.load_state_dict(averaged.module.loss.state_dict())
    assert call(moved, batch(8)).isfinite()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [(2, 3), (0, 2), (0, 0)])
def test_the_mean_of_two_states_is_one_of_weights(name, steps):
    one, two = (trained(name, some, seed) for seed, some in enumerate(steps))
    states = one.state_dict(), two.state_dict()
    means = {key: (states[0][key] + states[1][key]) / 2 for key in states[0]}
    in_place = copy.deepcopy(states[0])
    for key, value in in_place.items():
        value.copy_(0.5 * value + 0.5 * states[1][key])
    for mean in (means, in_place):
        loss, fresh = built(name, seed=9), built(name, seed=9)
        loss.load_state_dict(mean)
        for key, parameter in loss.named_parameters():
            torch.testing.assert_close(parameter, (states[0][key] + states[1][key]) / 2)
        fresh.load_state_dict({key: value for key, value in mean.items() if not key.endswith("_extra_state")})
        assert call(loss, batch(8)).item() == call(fresh, batch(8)).item()  # its streams and memories begin anew


def test_the_mean_of_a_scale_and_none_is_the_scale():
    one, two, three = trained("NivMF", 0), trained("NivMF", 1), trained("NivMF", 1, seed=3)
    call(three, 5 * batch())  # no longer the first
    scale = two.embedding_scale.item()
    soup = {key: (value + two.state_dict()[key]) / 2 for key, value in one.state_dict().items()}
    one.load_state_dict(soup)
    assert one.embedding_scale.item() == pytest.approx(scale)
    four = built("NivMF")
    call(four, 0.5 * batch(0))
    four.load_state_dict({key: (value + two.state_dict()[key]) / 2 for key, value in four.state_dict().items()})
    assert four.embedding_scale.item() == pytest.approx(1.5 * scale)
