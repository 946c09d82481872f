"""Losses of unsupervised baselines against their equations."""

import math

import pytest
import torch
import torch.nn.functional as F

from dmlrepro.losses.unlabelled import ContextualSimilarityLoss, contextual_similarity, nt_xent


def literal_similarity(x, k, sigma):
    """STML, Sec. 3, point by point."""
    n, apart = len(x), torch.cdist(x, x)
    near = apart.argsort(dim=1, stable=True)[:, :k].tolist()
    mutual = [{j for j in near[i] if i in near[j]} for i in range(n)]
    overlap = [[len(mutual[i] & mutual[j]) / len(mutual[i]) * (j in mutual[i]) for j in range(n)] for i in range(n)]
    context = torch.stack([torch.tensor(overlap).double()[near[i][: k // 2]].mean(0) for i in range(n)])
    return ((-apart.square() / sigma).exp() + (context + context.T) / 2) / 2


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    z, x = torch.randn(2, 14, 6, generator=generator, dtype=torch.float64)
    return z, x


def test_similarity_and_loss_equal_the_description(batch):
    z, x = batch
    x = F.normalize(x, dim=1)
    w = literal_similarity(x, 6, 3.0)
    assert torch.allclose(contextual_similarity(x, 6, 3.0), w, atol=1e-9)
    apart = torch.cdist(F.normalize(z, dim=1), F.normalize(z, dim=1))
    apart = apart / apart.mean(1, keepdim=True)
    loss = ContextualSimilarityLoss(6, k=6)
    terms = loss.terms(z, x)
    torch.testing.assert_close(terms["pull"], (w * apart.square()).sum() / 14)
    push = (1 - w) * (1 - apart).relu().square()
    torch.testing.assert_close(terms["push"], push.fill_diagonal_(0).sum() / 14)
    assert torch.autograd.gradcheck(lambda z: loss(z, x), z.requires_grad_())


def test_nt_xent_is_that_of_its_authors(batch):
    z, labels = F.normalize(batch[0], dim=1), torch.arange(7).repeat(2)
    logits = (z @ z.T / 0.1).fill_diagonal_(-math.inf)
    expected = F.cross_entropy(logits, (torch.arange(14) + 7) % 14)
    assert nt_xent(7, 6)(batch[0], labels).item() == pytest.approx(expected.item())
