"""pytorch-metric-learning's own wrappers around the losses of this package."""

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses, miners

from dmlrepro.losses import baselines, chance_constrained
from dmlrepro.losses.potential_field import PotentialFieldLoss
from dmlrepro.pml import CrossBatchMemory, DistributedLossWrapper

C, D = 4, 6


def batches(count=4, size=8):
    generator = torch.Generator().manual_seed(0)
    return [(F.normalize(torch.randn(size, D, generator=generator)), torch.arange(size) % C) for _ in range(count)]


@pytest.mark.parametrize("miner", [None, miners.MultiSimilarityMiner(0.1)])
def test_the_memory_gives_our_contrastive_loss_the_pairs_that_it_gives_the_librarys(miner):
    ours = CrossBatchMemory(chance_constrained.ProxyContrastiveLoss("c2", 0.0, 0.5), D, 20, miner)
    theirs = losses.CrossBatchMemory(losses.ContrastiveLoss(0.0, 0.5), D, 20, miner)
    for x, y in batches():
        torch.testing.assert_close(ours(x, y), theirs(x, y))


@pytest.mark.parametrize(
    "loss",
    [
        chance_constrained.ProxyTripletLoss(),
        chance_constrained.ProxyMultiSimilarityLoss(),
        baselines.contrastive(C, D),
        baselines.multi_similarity(C, D),
    ],
)
def test_the_memory_takes_every_pair_loss(loss):
    memory = CrossBatchMemory(loss, D, 20)
    for x, y in batches():
        value = memory(x.requires_grad_(), y)
        value.backward()
        assert value.isfinite() and x.grad.isfinite().all()


def test_a_loss_without_a_meaning_for_the_past_says_so():
    memory = CrossBatchMemory(PotentialFieldLoss(C, D), D, 20)
    with pytest.raises(ValueError, match="indices_tuple must be None, got a tuple: PotentialFieldLoss takes the whole"):
        memory(*batches()[0])


def test_without_ranks_the_distributed_wrapper_is_the_loss():
    (x, y), loss = batches()[0], PotentialFieldLoss(C, D)
    wrapped = DistributedLossWrapper(loss)
    with pytest.warns(UserWarning, match="non-distributed"):
        value = wrapped(x, y)
    value.backward()
    expected = torch.autograd.grad(loss(x, y), loss.proxies)[0]
    assert torch.equal(loss.proxies.grad, expected)


def test_the_distributed_wrapper_takes_a_loss_whose_proxies_are_fixed():
    (x, y), loss = batches()[0], PotentialFieldLoss(C, D).requires_grad_(False)
    with pytest.warns(UserWarning, match="non-distributed"):
        value = DistributedLossWrapper(loss)(x, y)
    assert torch.equal(value, loss(x, y))
