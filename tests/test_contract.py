"""The contract checks say what is wrong with a loss, and nothing of one that is right."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dmlrepro.losses import baselines
from experiments import contract


class Proxies(nn.Module):
    """A sound loss, and what is wrong with those below it."""

    def __init__(self, num_classes, embedding_size):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(num_classes, embedding_size))

    def forward(self, embeddings, labels):
        return F.cross_entropy(F.normalize(embeddings) @ F.normalize(self.proxies).T, labels)


class NanOnLoneClasses(Proxies):
    def forward(self, embeddings, labels):
        others = (labels[:, None] == labels).sum(1) - 1
        return super().forward(embeddings, labels) + 0 * (1 / others.float()).log().exp().div(1 / others).mean()


class InfiniteGradient(Proxies):
    def forward(self, embeddings, labels):
        return super().forward(embeddings, labels) + (embeddings - embeddings.detach()).square().sum(1).sqrt().sum()


class FirstCounts(Proxies):
    def forward(self, embeddings, labels):
        return super().forward(embeddings[:8], labels[:8])


class Blind(Proxies):
    def forward(self, embeddings, labels):
        return super().forward(embeddings, torch.zeros_like(labels))


class AllPairsOfProxies(Proxies):
    def forward(self, embeddings, labels):
        return super().forward(embeddings, labels) + torch.cdist(self.proxies, self.proxies).exp().neg().exp().sum()


class Random(Proxies):
    def forward(self, embeddings, labels):
        return super().forward(F.dropout(embeddings), labels)


class NoScalar(Proxies):
    def forward(self, embeddings, labels):
        return F.normalize(embeddings) @ self.proxies.T


class Constant(Proxies):
    def forward(self, embeddings, labels):
        return torch.zeros(())


def unmet(loss) -> dict[str, str]:
    return {finding.name: finding.said for finding in contract.check(loss) if not finding.holds}


@pytest.mark.parametrize("loss", [Proxies, baselines.proxy_anchor, baselines.soft_triple, baselines.multi_similarity])
def test_a_sound_loss_has_no_finding_against_it(loss):
    findings = contract.check(loss)
    assert [finding.name for finding in findings if not finding.holds] == []
    assert len(findings) == 9 and contract.trains(findings)


@pytest.mark.parametrize(
    "loss, names, message",
    [
        (NanOnLoneClasses, {"lone classes", "batch of one"}, "the value is nan"),
        (FirstCounts, {"order of samples"}, "another order of one batch"),
        (Blind, {"labels"}, "it ignores its labels"),
        (AllPairsOfProxies, {"growth with classes"}, "power 2.0"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_else(loss, names, message):
    complaints = unmet(loss)
    assert set(complaints) == names
    assert all(message in complaint for complaint in complaints.values())


@pytest.mark.parametrize(
    "loss, message",
    [
        (InfiniteGradient, "gradient of embeddings is not finite"),
        (NoScalar, "a loss gives a scalar tensor"),
        (Constant, "raises RuntimeError"),
    ],
)
def test_a_loss_that_fails_on_a_usual_batch_cannot_be_trained_with(loss, message):
    findings = contract.check(loss)
    assert message in findings[0].said and not contract.trains(findings)
    assert "growth with batch" not in {finding.name for finding in findings}


def test_the_order_of_a_loss_that_draws_random_numbers_is_not_judged():
    assert "cannot be judged" in contract.order(Random).said


def test_growth_of_triplets_with_the_batch_is_steeper_than_that_of_pairs():
    from pytorch_metric_learning.losses import ContrastiveLoss, TripletMarginLoss

    triplets = contract.growth(lambda c, d: TripletMarginLoss(), "batch")
    pairs = contract.growth(lambda c, d: ContrastiveLoss(), "batch")
    assert not triplets.holds and pairs.holds and "power 2.0" in pairs.said


def test_a_check_leaves_the_random_stream_as_it_was():
    before = torch.random.get_rng_state()
    contract.check(Proxies)
    assert torch.equal(torch.random.get_rng_state(), before)
