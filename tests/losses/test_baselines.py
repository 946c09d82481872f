"""Every baseline against its equation over all pairs, and what must not break it."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from dmlrepro.losses import baselines

C, D, B = 5, 4, 12
WITH_PROXIES = ("proxy_anchor", "proxy_nca_pp", "normalized_softmax", "soft_triple", "arcface", "cosface")
NAMES = (*WITH_PROXIES, "contrastive", "triplet", "multi_similarity", "margin")


def cosine(a, b):
    return (a @ b.mT) / a.norm(dim=-1)[..., :, None] / b.norm(dim=-1)[..., None, :]


def distance(a, b):
    unit = [x / x.norm(dim=1, keepdim=True) for x in (a, b)]
    return (unit[0][:, None] - unit[1]).norm(dim=2)


def mean_of_nonzero(values):
    return values.relu().sum() / (values > 0).sum().clamp_min(1)


def pairs(y):
    """(B, B): of one class, and of two."""
    same = y[:, None] == y
    return same & ~torch.eye(len(y), dtype=torch.bool), ~same


# The equation of each loss: embeddings x (B, D), labels y, and the proxies p (C, M, D).


def proxy_anchor(x, y, p, margin=0.1, alpha=32.0):
    s, own = cosine(x, p[:, 0]), F.one_hot(y, len(p)).bool()
    positive = ((-alpha * (s - margin)).exp() * own).sum(0).log1p()
    negative = ((alpha * (s + margin)).exp() * ~own).sum(0).log1p()
    return positive.sum() / len(y.unique()) + negative.mean()


def proxy_nca_pp(x, y, p, temperature=1 / 9):
    return F.cross_entropy(-distance(x, p[:, 0]).square() / temperature, y)


def normalized_softmax(x, y, p, temperature=0.05):
    return F.cross_entropy(cosine(x, p[:, 0]) / temperature, y)


def soft_triple(x, y, p, la=20.0, gamma=0.1, tau=0.2, margin=0.01):
    s = cosine(x, p).transpose(0, 1)  # (B, C, M)
    similarity = ((s / gamma).softmax(2) * s).sum(2)
    c, k = p.shape[:2]
    spread = sum((2 + 1e-5 - 2 * cosine(w, w)[*torch.tril_indices(k, k, -1)]).sqrt().sum() for w in p)
    return F.cross_entropy(la * (similarity - margin * F.one_hot(y, c).to(x)), y) + tau * spread / (c * k * (k - 1))


def arcface(x, y, p, margin=0.5, scale=64.0):
    s = cosine(x, p[:, 0])
    # beyond pi - margin the library continues linearly in the cosine, as the released code does
    turned = torch.where(s.acos() <= math.pi - margin, (s.acos() + margin).cos(), s - margin * math.sin(margin))
    return F.cross_entropy(scale * torch.where(F.one_hot(y, len(p)).bool(), turned, s), y)


def cosface(x, y, p, margin=0.35, scale=64.0):
    return F.cross_entropy(scale * (cosine(x, p[:, 0]) - margin * F.one_hot(y, len(p)).to(x)), y)


def contrastive(x, y, p, pos_margin=0.0, neg_margin=0.5):
    d, (same, different) = distance(x, x), pairs(y)
    return mean_of_nonzero(d[same] - pos_margin) + mean_of_nonzero(neg_margin - d[different])


def triplet(x, y, p, margin=0.2, squared=True):
    d, (same, different) = distance(x, x) ** (2 if squared else 1), pairs(y)
    near, far = d[:, :, None], d[:, None, :]
    mined = same[:, :, None] & different[:, None, :] & (near < far) & (far <= near + margin)
    return mean_of_nonzero((near - far + margin)[mined])


def multi_similarity(x, y, p, alpha=2.0, beta=50.0, base=0.5, epsilon=0.1):
    total, cosines, (same, different) = 0.0, cosine(x, x), pairs(y)
    for s, own, others in zip(cosines, same, different):
        positives = s[own][s[own] - epsilon < s[others].max()]
        negatives = s[others][s[others] + epsilon > s[own].min()] if own.any() else s[:0]
        total += (-alpha * (positives - base)).exp().sum().log1p() / alpha
        total += (beta * (negatives - base)).exp().sum().log1p() / beta
    return total / len(x)


def batch(seed, dtype=torch.float64):
    """Raw embeddings of four of the five classes, one of them a single sample, and a loss of the same seed."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor([0, 1, 2, 4, 1, 2, 1, 2, 0, 0, 2, 1])
    centers = torch.randn(C, D, dtype=dtype, generator=generator)
    return centers[y] + torch.randn(B, D, dtype=dtype, generator=generator), y


def make(name, seed=0, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return getattr(baselines, name)(C, D, **settings).double()


def assert_equals(expected, loss, embeddings, labels):
    value, points = loss(embeddings, labels), [embeddings, *loss.parameters()]
    slopes = [torch.autograd.grad(of, points, materialize_grads=True) for of in (value, expected)]
    for actual, wanted in zip((value, *slopes[0]), (expected, *slopes[1]), strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-9, rtol=1e-9)


CASES = [(name, {}) for name in NAMES if name != "margin"] + [
    ("proxy_anchor", {"margin": 0.3, "alpha": 8.0}),
    ("proxy_nca_pp", {"temperature": 0.5}),
    ("normalized_softmax", {"temperature": 0.3}),
    ("soft_triple", {"la": 5.0, "gamma": 0.7, "tau": 3.0, "margin": 0.4}),
    ("arcface", {"margin": 1.2, "scale": 4.0}),
    ("cosface", {"margin": 0.1, "scale": 3.0}),
    ("contrastive", {"pos_margin": 0.3, "neg_margin": 1.3}),
    ("triplet", {"margin": 0.5, "squared": False}),
    ("multi_similarity", {"alpha": 3.0, "beta": 10.0, "base": 0.2, "epsilon": 0.4}),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "settings"), CASES, ids=[f"{n}-{'set' if s else 'default'}" for n, s in CASES])
def test_value_and_gradients_equal_the_equation(name, settings, seed):
    embeddings, labels = batch(seed)
    embeddings.requires_grad_()
    loss = make(name, seed, **settings)
    expected = globals()[name](embeddings, labels, baselines.proxies_of(loss), **settings)
    assert expected > 0
    assert_equals(expected, loss, embeddings, labels)


@pytest.mark.parametrize("seed", range(3))
def test_margin_equals_the_equation_on_the_triplets_it_draws(seed):
    embeddings, labels = batch(seed)
    embeddings.requires_grad_()
    loss = make("margin", seed, beta=0.9)
    beta = loss.loss.beta
    with torch.no_grad():
        beta += torch.linspace(-0.2, 0.2, C)
    a, near, far = copy.deepcopy(loss).miner(embeddings, labels)
    d, (same, different), own = distance(embeddings, embeddings), pairs(labels), beta[labels[a]]
    assert same[a, near].all() and different[a, far].all()
    assert any(each is beta for each in loss.parameters())  # it is learned
    assert_equals(mean_of_nonzero(torch.cat([d[a, near] - own + 0.2, own - d[a, far] + 0.2])), loss, embeddings, labels)


def test_a_sharp_temperature_drops_no_sample():
    assert make("proxy_nca_pp", temperature=1e-4)(*batch(0)) > 1e3  # a logarithm after the softmax would


@pytest.mark.parametrize("form", ["c1", "c2"])
def test_xbm_compares_with_the_last_embeddings_of_the_steps_after_its_warm_up(form):
    settings = {"form": form, "pos_margin": 0.1, "neg_margin": 0.6, "memory_size": 30, "warmup_steps": 1}
    loss = make("cross_batch_memory", **settings)

    def literal(x, others, same, different):
        apart, far = (distance(x, others), 0.6) if form == "c2" else (1 - cosine(x, others), 0.4)
        return mean_of_nonzero(apart[same] - 0.1) + mean_of_nonzero(far - apart[different])

    past, classes = torch.zeros(0, D, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    for step in range(5):
        x, y = batch(step)
        x.requires_grad_()
        expected = literal(x, x, *pairs(y))
        if len(past):
            same = y[:, None] == classes
            expected = expected + literal(x, past, same, ~same)
        assert_equals(expected, loss, x, y)
        if step >= 1:
            past, classes = torch.cat([past, x.detach()])[-30:], torch.cat([classes, y])[-30:]


def test_a_memory_smaller_than_the_batch_keeps_its_end():
    loss = make("cross_batch_memory", memory_size=5, warmup_steps=0)
    x, y = batch(0)
    loss(x, y)
    kept = {tuple(row) for row in loss.memory.tolist()}
    assert kept == {tuple(row) for row in x[-5:].tolist()}


def test_a_margin_in_degrees_is_refused():
    with pytest.raises(ValueError, match=r"angle in radians, got 28.6; pass math.radians\(28.6\)"):
        baselines.arcface(C, D, margin=28.6)
