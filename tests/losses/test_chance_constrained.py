"""Pair losses between samples and proxies against their definitions over all pairs, and greedy k-center."""

import math

import numpy as np
import pytest
import torch
from device_work import LargestTensor

from dmlrepro import metrics
from dmlrepro.losses import CCPContrastive, CCPMultiSimilarity, CCPTriplet
from dmlrepro.losses.chance_constrained import clip_to_unit_ball, covering_radius, greedy_k_center, projection_penalty


def clipped(vectors):
    return vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1)


def compared(embeddings, labels, proxies, proxy_labels):
    """Both sides and (B, P), whether a pair is of one class, or of two; or all pairs within the batch."""
    others, classes = (embeddings, labels) if proxies is None else (proxies, proxy_labels)
    same = labels[:, None] == classes
    return clipped(embeddings), clipped(others), same.clone().fill_diagonal_(False) if proxies is None else same, ~same


def contrastive(form, positive_margin, negative_margin, reduction):
    def loss(*batch):
        a, b, same, other = compared(*batch)
        apart = (a[:, None] - b).norm(dim=2) if form == "c2" else 1 - a @ b.T
        far = negative_margin if form == "c2" else 1 - negative_margin
        parts = (apart[same] - positive_margin).relu(), (far - apart[other]).relu()
        if reduction == "nonzero":
            return sum(part.sum() / (part > 0).sum().clamp_min(1) for part in parts)
        return torch.cat(parts).sum() / len(a) if reduction == "per_sample" else torch.cat(parts).mean()

    return loss


def triplet(margin, reduction):
    def loss(*batch):
        a, b, same, other = compared(*batch)
        apart = (a[:, None] - b).norm(dim=2)
        hinges = (apart[:, :, None] - apart[:, None, :] + margin)[same[:, :, None] & other[:, None, :]].relu()
        return hinges.sum() / ((hinges > 0).sum() if reduction == "nonzero" else len(hinges))

    return loss


def multi_similarity(alpha, beta, base):
    def loss(*batch):
        a, b, same, other = compared(*batch)
        near = ((-alpha * (a @ b.T - base)).exp() * same).sum(1).log1p() / alpha
        far = ((beta * (a @ b.T - base)).exp() * other).sum(1).log1p() / beta
        return (near + far).mean()

    return loss


CASES = {
    "c2": (CCPContrastive(), contrastive("c2", 0.0, 0.3841, "nonzero")),
    "c2 margins": (CCPContrastive("c2", 0.3, 0.9), contrastive("c2", 0.3, 0.9, "nonzero")),
    "c2 mean": (CCPContrastive("c2", 0.1, 1.2, "mean"), contrastive("c2", 0.1, 1.2, "mean")),
    "c1": (CCPContrastive("c1"), contrastive("c1", 0.0, 0.5, "nonzero")),
    "c1 per sample": (CCPContrastive("c1", 0.1, -0.2, "per_sample"), contrastive("c1", 0.1, -0.2, "per_sample")),
    "triplet": (CCPTriplet(), triplet(0.0961, "nonzero")),
    "triplet mean": (CCPTriplet(0.5, "mean"), triplet(0.5, "mean")),
    "ms": (CCPMultiSimilarity(), multi_similarity(2.0, 40.0, 0.5)),
    "ms cars": (CCPMultiSimilarity(alpha=14.35, beta=75.83, base=0.66), multi_similarity(14.35, 75.83, 0.66)),
}


def batch_of(seed, in_batch, dtype=torch.float64):
    """Norms on both sides of 1; class 3 has a sample and no proxies, class 4 has proxies and no sample."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = 0.6 * torch.randn(7, 3, dtype=torch.float64, generator=generator)
    proxies = 0.6 * torch.randn(8, 3, dtype=torch.float64, generator=generator)
    labels = torch.tensor([0, 0, 1, 2, 1, 3, 0])
    assert (embeddings.norm(dim=1) > 1).any() and (embeddings.norm(dim=1) < 1).any()
    proxy_labels = torch.tensor([0, 1, 2, 0, 1, 2, 4, 4])
    rest = (None, None) if in_batch else (proxies.to(dtype), proxy_labels)
    return embeddings.to(dtype), labels, *rest


def value_and_gradients(loss, batch):
    leaves = [x.clone().requires_grad_() for x in batch if x is not None and x.is_floating_point()]
    embeddings, proxies = (*leaves, None)[:2]
    value = loss(embeddings, batch[1], proxies, batch[3])
    return value, torch.autograd.grad(value, leaves)


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_equals_the_sum_over_pairs(case, seed, dtype, in_batch):
    loss, literal = CASES[case]
    batch = batch_of(seed, in_batch, dtype)
    exact = [x.double() if x is not None and x.is_floating_point() else x for x in batch]
    (expected, slopes), (value, gradients) = value_and_gradients(literal, exact), value_and_gradients(loss, batch)
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5}[dtype]
    assert value.dtype == dtype and value.item() == pytest.approx(expected.item(), rel=tolerance)
    for gradient, slope in zip(gradients, slopes):
        assert (gradient - slope).abs().max() <= tolerance * max(slope.abs().max().item(), 1e-3)


@pytest.mark.parametrize("case", CASES)
def test_one_sample_without_proxies_has_no_pair_and_no_loss(case):
    lonely = CASES[case][0](torch.ones(1, 2, requires_grad=True), torch.tensor([0]))
    lonely.backward()
    assert lonely == 0


@pytest.mark.parametrize("case", CASES)
def test_no_buffer_grows_with_pairs_of_proxies(case):
    """32 samples, 4,000 proxies: 128,000 pairs in float32 are 0.5 MB; pairs of proxies would be 64 MB."""
    generator = torch.Generator().manual_seed(0)
    embeddings, proxies = torch.randn(32, 16, generator=generator), torch.randn(4000, 16, generator=generator)
    proxy_labels = torch.arange(1000).repeat_interleave(4)
    with LargestTensor() as mode:
        CASES[case][0](embeddings.requires_grad_(), torch.arange(32), proxies.requires_grad_(), proxy_labels).backward()
    assert 0 < mode.largest <= 8 * 32 * 4001


def test_bad_proxies_are_named():
    loss = CCPContrastive()
    x, y, p, c = batch_of(0, in_batch=False)
    for arguments, message in (
        ((x, y, p[:, :2], c), r"proxies \(ref_emb\) must have shape \(P, 3\)"),
        ((x, y, p[:0], c[:0]), "P >= 1"),
        ((x, y, p), r"proxy_labels \(ref_labels\) must be int64"),
        ((x, y, p, c[:3]), r"proxy_labels .* must be int64 of shape \(8,\)"),
        ((x, y, p * math.inf, c), r"proxies \(ref_emb\) contain NaN or infinity"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(*arguments)


def test_many_proxies_in_half_precision_are_no_infinity():
    x, y, p, c = torch.rand(8, 128), torch.arange(8) % 2, torch.rand(2000, 128), torch.arange(2000) % 2  # their sum is
    loss = CCPContrastive()
    torch.testing.assert_close(loss(x.half(), y, p.half(), c).float(), loss(x, y, p, c), rtol=2e-2, atol=0)


def test_clipping_is_the_identity_in_the_ball_and_1_lipschitz():
    generator = torch.Generator().manual_seed(0)
    x, y = (1.5 * torch.randn(200, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    torch.testing.assert_close(clip_to_unit_ball(x), clipped(x), rtol=0, atol=1e-15)
    assert ((clip_to_unit_ball(x) - clip_to_unit_ball(y)).norm(dim=1) <= (x - y).norm(dim=1) + 1e-12).all()
    on_the_sphere = torch.tensor([[1.0, 0.0]], requires_grad=True)
    slope = torch.autograd.grad(clip_to_unit_ball(on_the_sphere).sum(), on_the_sphere)[0]
    assert slope.tolist() == [[1.0, 1.0]]  # at norm 1 it is still the identity


def exhaustive(pool, centers, k):
    """Algorithm 2 for one class, over all candidates in order, with squared distances of integers: exact."""
    picks, pool, centers = [], pool.numpy(), centers.numpy()
    for _ in range(k):
        radii = ((pool[:, None] - np.concatenate([centers, pool[picks]])) ** 2).sum(2).min(1)
        radii[picks] = -1
        picks.append(radii.argmax().item())  # of equal ones the first
    return picks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(20))
def test_greedy_k_center_is_the_exhaustive_greedy(seed, dtype):
    """Points of a small lattice, so that most cases have ties and many have duplicates."""
    generator = torch.Generator().manual_seed(seed)
    classes, size, centers, dim = 6, int(torch.randint(1, 9, (), generator=generator)), 1 + seed % 4, 1 + seed % 3
    pool = torch.randint(-2, 3, (classes, size, dim), generator=generator).to(dtype)
    old = torch.randint(-2, 3, (classes, centers, dim), generator=generator).to(dtype)
    for k in range(1, size + 1):
        expected = [exhaustive(p, c, k) for p, c in zip(pool, old)]
        assert greedy_k_center(pool, old, k).tolist() == expected
        assert greedy_k_center(pool[0], old[0], k).tolist() == expected[0]
    assert all(sorted(row) == list(range(size)) for row in greedy_k_center(pool, old, size).tolist())


def test_more_picks_never_widen_the_radius_and_it_is_that_of_the_metrics():
    generator = torch.Generator().manual_seed(0)
    pool, old = torch.rand(5, 12, 4, generator=generator), torch.rand(5, 2, 4, generator=generator)
    picks, before = greedy_k_center(pool, old, 6), covering_radius(pool, old)
    for k in range(1, 7):
        centers = torch.cat([old, pool.gather(1, picks[:, :k, None].expand(-1, -1, 4))], 1)
        radius = covering_radius(pool, centers)
        assert radius.shape == (5,) and (radius <= before).all()
        assert radius[2].item() == pytest.approx(metrics.covering_radius(pool[2], centers[2]), rel=1e-6)
        before = radius
    assert covering_radius(pool[0], old[0]).shape == ()


@pytest.mark.parametrize(
    ("pool", "centers", "k", "message"),
    [
        ((5, 2), (3, 2), 6, r"k must lie in \[1, 5\], the size of the pool, got 6"),
        ((5, 2), (3, 2), 0, "k must lie in"),
        ((5, 2), (0, 2), 1, r"centers must not be empty, got shape \(0, 2\); give at least one point"),
        ((0, 2), (3, 2), 1, "pool must not be empty"),
        ((5, 2), (3, 3), 1, "must have shapes"),
        ((4, 5, 2), (3, 3, 2), 1, "must have shapes"),
    ],
)
def test_greedy_k_center_names_what_does_not_fit(pool, centers, k, message):
    with pytest.raises(ValueError, match=message):
        greedy_k_center(torch.zeros(pool), torch.zeros(centers), k)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_covered_as_its_float32(dtype):
    generator = torch.Generator().manual_seed(0)
    pool, old = (torch.rand(3, n, 4, generator=generator).to(dtype) for n in (12, 2))
    assert torch.equal(greedy_k_center(pool, old, 6), greedy_k_center(pool.float(), old.float(), 6))
    radius = covering_radius(pool, old)
    assert radius.dtype == torch.float32 and torch.equal(radius, covering_radius(pool.float(), old.float()))
    assert covering_radius(pool, old.double()).dtype == torch.float64


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_no_farthest_point(value):
    pool, old = torch.zeros(2, 5, 3), torch.zeros(2, 2, 3)
    pool[1, 4, 2] = old[0, 1, 0] = value
    for search in (lambda *points: greedy_k_center(*points, k=1), covering_radius):
        with pytest.raises(ValueError, match=rf"(pool|points) must be finite, got {value} in row 1, 4; lower the"):
            search(pool, torch.zeros(2, 2, 3))
        with pytest.raises(ValueError, match=rf"centers must be finite, got {value} in row 1; lower the learning rate"):
            search(torch.zeros(5, 3), old[0])
        with pytest.raises(ValueError, match=r"must be floating point, got torch.int64; pass (pool|points).float\(\)"):
            search(torch.zeros(5, 3).long(), torch.zeros(2, 3))


def test_the_penalty_pulls_towards_the_anchors():
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.randn(shape, generator=generator, requires_grad=True) for shape in ((3, 2), (4,))]
    anchors = [torch.randn(p.shape, generator=generator) for p in parameters]
    value = projection_penalty(parameters, anchors, 0.3)
    assert value.item() == pytest.approx(0.15 * sum(((p - a) ** 2).sum().item() for p, a in zip(parameters, anchors)))
    for parameter, anchor, slope in zip(parameters, anchors, torch.autograd.grad(value, parameters)):
        torch.testing.assert_close(slope, 0.3 * (parameter.detach() - anchor))  # descent goes to the anchor
    with pytest.raises(ValueError, match="zip"):
        projection_penalty(parameters, anchors[:1], 0.3)
    with pytest.raises(ValueError, match=r"anchors\[1\] must have the shape .*4.* of its parameter, got .*1"):
        projection_penalty(parameters, [anchors[0], anchors[1][:1]], 0.3)
