"""Losses of unsupervised baselines against their equations."""

import math

import pytest
import torch
import torch.nn.functional as F

from dmlrepro.losses.unlabelled import ContextualSimilarityLoss, contextual_similarity, nt_xent


def literal_similarity(x, k, sigma):
    """STML, Sec. 3, point by point."""
    n = len(x)
    apart = [[(a - b).norm().item() for b in x] for a in x]
    near = [sorted(range(n), key=lambda j: (apart[i][j], j))[:k] for i in range(n)]
    mutual = [{j for j in near[i] if i in near[j]} for i in range(n)]
    overlap = [[len(mutual[i] & mutual[j]) / len(mutual[i]) * (j in mutual[i]) for j in range(n)] for i in range(n)]
    context = [[sum(overlap[h][j] for h in near[i][: k // 2]) / (k // 2) for j in range(n)] for i in range(n)]
    return [
        [(math.exp(-(apart[i][j] ** 2) / sigma) + (context[i][j] + context[j][i]) / 2) / 2 for j in range(n)]
        for i in range(n)
    ]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    z, x = torch.randn(2, 14, 6, generator=generator, dtype=torch.float64)
    return z, x


def test_similarity_and_loss_equal_the_description(batch):
    z, x = batch
    x = F.normalize(x, dim=1)
    w = torch.tensor(literal_similarity(x, 6, 3.0), dtype=torch.float64)
    assert torch.allclose(contextual_similarity(x, 6, 3.0), w, atol=1e-9)
    unit, n = F.normalize(z, dim=1), 14
    pull = push = 0.0
    for i in range(n):
        apart = [(unit[i] - unit[j]).norm().item() for j in range(n)]
        mean = sum(apart) / n
        for j in range(n):
            pull += w[i, j].item() * (apart[j] / mean) ** 2 / n
            push += (i != j) * (1 - w[i, j].item()) * max(0, 1 - apart[j] / mean) ** 2 / n
    loss = ContextualSimilarityLoss(6, k=6)
    terms = loss.terms(z, x)
    assert terms["pull"].item() == pytest.approx(pull) and terms["push"].item() == pytest.approx(push)
    assert torch.autograd.gradcheck(lambda z: loss(z, x), z.requires_grad_())


def test_nt_xent_is_that_of_its_authors(batch):
    z, labels = F.normalize(batch[0], dim=1), torch.arange(7).repeat(2)
    logits = (z @ z.T / 0.1).fill_diagonal_(-math.inf)
    expected = F.cross_entropy(logits, (torch.arange(14) + 7) % 14)
    assert nt_xent(7, 6)(batch[0], labels).item() == pytest.approx(expected.item())
