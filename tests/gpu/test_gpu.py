"""CUDA against CPU: losses, samplers, metrics and a training step, at tolerances that each test states."""

import copy
from unittest import mock

import pytest
import tiny
import torch
from each_loss import HOLDING, NAMES, batch, built, call

from dmlrepro import metrics, samplers, vmf
from dmlrepro.losses import nivmf
from experiments.training import loop
from experiments.training.device import replayed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")


@pytest.fixture
def draws_of_the_cpu(monkeypatch):
    """A generator on a GPU draws other numbers."""

    def sample(mu, kappa, *others):
        points, stream = vmf.resumed_sample(mu.cpu(), kappa.cpu(), *others)
        return points.to(mu.device), stream

    monkeypatch.setattr(nivmf, "resumed_sample", sample)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_losses(name, dtype, tolerance, draws_of_the_cpu):
    """Value and gradients of two calls, relative to the largest entry of each."""
    found = {}
    for device in ("cpu", "cuda"):
        loss, found[device] = built(name).to(device, dtype), []
        for seed in (1, 2):
            x = batch(seed).detach().to(device, dtype).requires_grad_()
            value = call(loss, x)
            assert value.device.type == device
            gradients = torch.autograd.grad(value, [x, *loss.parameters()], allow_unused=True)
            found[device] += [each.cpu() for each in (value.detach(), *gradients) if each is not None]
    for ours, expected in zip(found["cuda"], found["cpu"], strict=True):
        assert (ours - expected).abs().max() <= tolerance * expected.abs().max().clamp_min(1e-6)


@pytest.mark.parametrize("name", HOLDING)
def test_a_state_goes_on_on_the_gpu_and_comes_from_the_cpu(name):
    loss, other = built(name).cuda(), built(name, seed=5).cuda()
    for seed in range(3):
        call(loss, batch(seed).cuda())
    other.load_state_dict({key: value.cpu() for key, value in loss.state_dict().items()})
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    with torch.no_grad():
        call(loss, batch(3).cuda())
    assert all(torch.equal(value, before[key]) for key, value in loss.state_dict().items())
    for seed in (4, 5):  # sums of atomic additions may differ in their last digits
        x = batch(seed).cuda()
        torch.testing.assert_close(call(loss, x), call(other, x))
    back = built(name)
    back.load_state_dict(loss.state_dict())  # of one length everywhere; a stream of the GPU begins at its seed
    assert call(back, batch()).isfinite()


def test_samplers():
    labels, neighbours = torch.arange(40) % 8, torch.arange(40).view(8, 5).repeat_interleave(5, dim=0)

    def batches(device):
        generator = torch.Generator().manual_seed(0)
        first = samplers.m_per_class(labels.to(device), 12, 3, 6, generator)
        second = samplers.neighbour_groups(neighbours.to(device), 10, 6, generator)
        return [chosen.tolist() for chosen in (*first, *second)]

    assert batches("cuda") == batches("cpu")


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_metrics(distance):
    """Ranks are those of float64 distances: the same fractions, but for the order of their sums."""
    torch.manual_seed(0)
    labels = torch.arange(600) % 30
    x = torch.randn(600, 32) + 0.7 * torch.randn(30, 32)[labels]
    x[::50] = x[1::50]  # duplicates, whose order is that of their indices
    found = metrics.retrieval(x.cuda(), labels.cuda(), distance=distance)
    assert found == pytest.approx(metrics.retrieval(x, labels, distance=distance), abs=1e-12)
    assert torch.equal(metrics.nearest(x.cuda(), 5, distance=distance).cpu(), metrics.nearest(x, 5, distance=distance))


def test_a_training_step():
    """Losses of the first steps, float32 convolutions in other orders: 1e-3 relative at first, 1e-2 after three."""
    spec = tiny.TINY.replace(steps=4, loss="potential_field.PotentialFieldLoss", loss_options={"proxies_per_class": 2})
    on_gpu = loop.train(spec).losses
    with mock.patch.object(torch.cuda, "is_available", return_value=False):
        on_cpu = loop.train(spec).losses
    apart = (on_gpu - on_cpu).abs() / on_cpu.abs()
    assert apart[0] <= 1e-3 and apart.max() <= 1e-2


def test_a_replayed_network_is_the_network():
    """Outputs, gradients, evaluation, and a batch of another shape."""
    draw = torch.Generator().manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU6(), torch.nn.Flatten(), torch.nn.Linear(8 * 7 * 7, 4)]
    eager = torch.nn.Sequential(*layers).cuda()
    graphed = copy.deepcopy(eager)
    batches = [torch.rand(count, 3, 16, 16, generator=draw).cuda() for count in (5, 5, 5, 3)]
    replayed(graphed, batches[0].clone(), half=True)
    for images in batches:
        found = []
        for network in (eager, graphed):
            network.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                output = network(images)
            output.float().square().sum().backward()
            found.append([output.detach().clone(), *(parameter.grad.clone() for parameter in network.parameters())])
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))
    assert torch.equal(graphed.eval()(batches[0]), eager.eval()(batches[0]))
