"""Every baseline against its equation written out pair by pair, and what must not break it."""

import copy
import itertools
import math

import pytest
import torch

from dmlrepro.losses import baselines

C, D, B = 5, 4, 12
WITH_PROXIES = ("proxy_anchor", "proxy_nca_pp", "normalized_softmax", "soft_triple", "arcface", "cosface")
NAMES = (*WITH_PROXIES, "contrastive", "triplet", "multi_similarity", "margin")


def cosine(a, b):
    return (a @ b) / (a @ a).sqrt() / (b @ b).sqrt()


def distance(a, b):
    difference = a / (a @ a).sqrt() - b / (b @ b).sqrt()
    return (difference @ difference).sqrt()


def hinge(x):
    return x if x > 0 else 0 * x


def mean_of_nonzero(values):
    kept = [value for value in values if value > 0]
    return sum(kept) / len(kept) if kept else 0.0


def pairs(y):
    ordered = list(itertools.permutations(range(len(y)), 2))
    return [(i, j) for i, j in ordered if y[i] == y[j]], [(i, j) for i, j in ordered if y[i] != y[j]]


def softmax_loss(scores, label):
    return -(scores[label].exp() / sum(score.exp() for score in scores)).log()


# One literal per loss: x a list of B vectors, y a list of ints, p the proxies (C, M, D).


def proxy_anchor(x, y, p, margin=0.1, alpha=32.0):
    positive, negative = 0.0, 0.0
    for c in range(len(p)):
        own = [(-alpha * (cosine(z, p[c, 0]) - margin)).exp() for z, label in zip(x, y) if label == c]
        others = [(alpha * (cosine(z, p[c, 0]) + margin)).exp() for z, label in zip(x, y) if label != c]
        positive += (1 + sum(own)).log() if own else 0.0
        negative += (1 + sum(others)).log() if others else 0.0
    return positive / len(set(y)) + negative / len(p)


def proxy_nca_pp(x, y, p, temperature=1 / 9):
    scores = [[-(distance(z, proxy[0]) ** 2) / temperature for proxy in p] for z in x]
    return sum(softmax_loss(row, label) for row, label in zip(scores, y)) / len(x)


def normalized_softmax(x, y, p, temperature=0.05):
    scores = [[cosine(z, proxy[0]) / temperature for proxy in p] for z in x]
    return sum(softmax_loss(row, label) for row, label in zip(scores, y)) / len(x)


def soft_triple(x, y, p, la=20.0, gamma=0.1, tau=0.2, margin=0.01):
    total = 0.0
    for z, label in zip(x, y):
        scores = []
        for c, centers in enumerate(p):
            weights = [(cosine(z, w) / gamma).exp() for w in centers]
            similarity = sum(weight * cosine(z, w) for weight, w in zip(weights, centers)) / sum(weights)
            scores.append(la * (similarity - margin * (c == label)))
        total = total + softmax_loss(scores, label)
    k = p.shape[1]
    spread = sum(
        (2 + 1e-5 - 2 * cosine(centers[s], centers[t])).sqrt() for centers in p for s in range(k) for t in range(s)
    )
    return total / len(x) + tau * spread / (len(p) * k * (k - 1))


def arcface(x, y, p, margin=0.5, scale=64.0):
    def score(z, proxy, own):
        similarity = cosine(z, proxy[0])
        angle = similarity.acos()
        if own:  # beyond pi - margin the library continues linearly in the cosine, as the released code does
            similarity = (angle + margin).cos() if angle <= math.pi - margin else similarity - margin * math.sin(margin)
        return scale * similarity

    scores = [[score(z, proxy, c == label) for c, proxy in enumerate(p)] for z, label in zip(x, y)]
    return sum(softmax_loss(row, label) for row, label in zip(scores, y)) / len(x)


def cosface(x, y, p, margin=0.35, scale=64.0):
    scores = [[scale * (cosine(z, q[0]) - margin * (c == label)) for c, q in enumerate(p)] for z, label in zip(x, y)]
    return sum(softmax_loss(row, label) for row, label in zip(scores, y)) / len(x)


def contrastive(x, y, p, pos_margin=0.0, neg_margin=0.5):
    same, different = pairs(y)
    pull = mean_of_nonzero([hinge(distance(x[i], x[j]) - pos_margin) for i, j in same])
    return pull + mean_of_nonzero([hinge(neg_margin - distance(x[i], x[j])) for i, j in different])


def triplet(x, y, p, margin=0.2, squared=True):
    same, different = pairs(y)
    terms = []
    for (a, i), (other, j) in itertools.product(same, different):
        if a == other:
            d_ap, d_an = (distance(x[a], x[k]) ** (2 if squared else 1) for k in (i, j))
            if d_ap < d_an <= d_ap + margin:
                terms.append(hinge(d_ap - d_an + margin))
    return mean_of_nonzero(terms)


def multi_similarity(x, y, p, alpha=2.0, beta=50.0, base=0.5, epsilon=0.1):
    total = 0.0
    for a, z in enumerate(x):
        own = [cosine(z, x[i]) for i in range(len(x)) if i != a and y[i] == y[a]]
        other = [cosine(z, x[i]) for i in range(len(x)) if y[i] != y[a]]
        positives = [s for s in own if s - epsilon < max(other)]
        negatives = [s for s in other if own and s + epsilon > min(own)]
        if positives:
            total += (1 + sum((-alpha * (s - base)).exp() for s in positives)).log() / alpha
        if negatives:
            total += (1 + sum((beta * (s - base)).exp() for s in negatives)).log() / beta
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
    """Value, and gradients of embeddings and parameters, are those of the value that is expected."""
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
    expected = globals()[name](list(embeddings), labels.tolist(), baselines.proxies_of(loss), **settings)
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
    triplets = list(zip(*(index.tolist() for index in copy.deepcopy(loss).miner(embeddings, labels))))
    hinges = []
    for a, i, j in triplets:
        assert a != i and labels[a] == labels[i] != labels[j]
        own = beta[labels[a]]
        hinges += [hinge(distance(embeddings[a], embeddings[i]) - own + 0.2)]
        hinges += [hinge(own - distance(embeddings[a], embeddings[j]) + 0.2)]
    assert any(each is beta for each in loss.parameters())  # it is learned
    assert_equals(mean_of_nonzero(hinges), loss, embeddings, labels)


def test_a_sharp_temperature_drops_no_sample():
    assert make("proxy_nca_pp", temperature=1e-4)(*batch(0)) > 1e3  # a logarithm after the softmax would


def test_proxies_are_the_ones_the_loss_pulls_to():
    """A sample on a class's proxy is classified as that class: the layout (C, M, D) is not merely a shape."""
    for name in WITH_PROXIES:
        loss = make(name)
        proxies = baselines.proxies_of(loss).detach()
        values = torch.stack([torch.stack([loss(z[:1], torch.tensor([c])) for c in range(C)]) for z in proxies])
        assert torch.equal(values.argmin(1), torch.arange(C)), name


@pytest.mark.parametrize("form", ["c1", "c2"])
def test_xbm_compares_with_the_last_embeddings_of_the_steps_after_its_warm_up(form):
    settings = {"form": form, "pos_margin": 0.1, "neg_margin": 0.6, "memory_size": 30, "warmup_steps": 1}
    loss = make("cross_batch_memory", **settings)

    def apart(a, b):
        return distance(a, b) if form == "c2" else 1 - cosine(a, b)

    def literal(pairs):
        far = 0.6 if form == "c2" else 0.4
        same = [hinge(apart(a, b) - 0.1) for a, b, own in pairs if own]
        return mean_of_nonzero(same) + mean_of_nonzero([hinge(far - apart(a, b)) for a, b, own in pairs if not own])

    past = []
    for step in range(5):
        x, y = batch(step)
        x.requires_grad_()
        classes = y.tolist()
        expected = literal([(x[i], x[j], classes[i] == classes[j]) for i, j in itertools.permutations(range(B), 2)])
        if past:
            expected = expected + literal([(z, old, a == b) for z, a in zip(x, classes) for old, b in past])
        assert_equals(expected, loss, x, y)
        if step >= 1:
            past = [*past, *zip(x.detach(), classes)][-30:]


def test_a_memory_smaller_than_the_batch_keeps_its_end():
    loss = make("cross_batch_memory", memory_size=5, warmup_steps=0)
    x, y = batch(0)
    loss(x, y)
    kept = {tuple(row) for row in loss.memory.tolist()}
    assert kept == {tuple(row) for row in x[-5:].tolist()}


def test_a_margin_in_degrees_is_refused():
    with pytest.raises(ValueError, match=r"angle in radians, got 28.6; pass math.radians\(28.6\)"):
        baselines.arcface(C, D, margin=28.6)
