"""The sparse energy against Eqs. 1-6 over all pairs, and what must not break it."""

import math

import pytest
import torch
from device_work import LargestTensor

from dmlrepro.losses import CPML, PFML, close_pairs, potential_field
from dmlrepro.losses.potential_field import contrastive_potential_energy, potential_energy


def decaying(alpha, delta, delta_rep):
    """Eqs. 1 and 2."""
    return lambda r: -r.clamp_min(delta).pow(-alpha), lambda r: r.clamp_max(delta_rep).pow(-alpha)


def logarithmic(delta, delta_rep):
    """The limits of (psi + 1) / alpha and (psi - 1) / alpha in Eqs. 1 and 2 as alpha -> 0."""
    return lambda r: r.clamp_min(delta).log(), lambda r: -r.clamp_max(delta_rep).log()


def contrastive(delta, delta_rep, repulsion):
    """Supp. Eq. 8 and the two readings of its repulsion."""
    repel = {
        "hinge": lambda r: (delta_rep - r).clamp_min(0).square(),
        "capped": lambda r: -r.clamp_max(delta_rep).square(),
    }
    return lambda r: r.clamp_min(delta).square(), repel[repulsion]


def literal(points, labels, potentials):
    """Eq. 6 by autograd through all N x N distances, in float64, own terms left out: value and gradient."""
    points = points.detach().double().requires_grad_()
    r = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    same = labels[:, None] == labels
    other, same = ~same, same.fill_diagonal_(False)
    energy = potentials[0](r[same]).sum() + potentials[1](r[other]).sum()
    return energy.item(), torch.autograd.grad(energy, points)[0]


def computed(points, labels, energy=potential_energy, **options):
    points = points.detach().clone().requires_grad_()
    value = energy(points, labels, **options)
    return value.item(), torch.autograd.grad(value, points)[0]


def sample(seed, n=16, dim=3, classes=3, scale=0.3):
    generator = torch.Generator().manual_seed(seed)
    points = scale * torch.randn(n, dim, dtype=torch.float64, generator=generator)
    return points, torch.randint(0, classes, (n,), generator=generator)


def assert_same(actual, expected, tolerance):
    assert actual[0] == pytest.approx(expected[0], rel=tolerance)
    assert (actual[1] - expected[1]).abs().max() <= tolerance * expected[1].abs().max()


CASES = {
    "paper": (potential_energy, {"delta": 0.4}, decaying(3, 0.4, 0.4)),
    "delta_rep": (potential_energy, {"alpha": 1.5, "delta": 0.3, "delta_rep": 0.7}, decaying(1.5, 0.3, 0.7)),
    "smaller delta_rep": (potential_energy, {"alpha": 6, "delta": 0.6, "delta_rep": 0.4}, decaying(6, 0.6, 0.4)),
    "no decay": (potential_energy, {"alpha": 0, "delta": 0.4, "delta_rep": 0.5}, logarithmic(0.4, 0.5)),
    "hinge": (contrastive_potential_energy, {"delta": 0.4, "delta_rep": 0.6}, contrastive(0.4, 0.6, "hinge")),
    "capped": (contrastive_potential_energy, {"delta": 0.5, "repulsion": "capped"}, contrastive(0.5, 0.5, "capped")),
}


@pytest.mark.parametrize("tile", [1, 3, 512])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_equals_the_equations(case, seed, tile, monkeypatch):
    monkeypatch.setattr(close_pairs, "_TILE", tile)  # 3: many tiles, sparse and dense; 1: in cells
    monkeypatch.setattr(close_pairs, "_CHUNK", 8 * tile)
    energy, options, potentials = CASES[case]
    points, labels = sample(seed)
    for some, tolerance in ((points, 1e-12), (points.float(), 1e-5)):
        assert_same(computed(some, labels, energy, **options), literal(some, labels, potentials), tolerance)


def clustered(n, dim, clusters, spread, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(clusters, dim, dtype=torch.float64, generator=generator)
    points = torch.nn.functional.normalize(centers, dim=1)[torch.randint(0, clusters, (n,), generator=generator)]
    points = points + spread / math.sqrt(dim) * torch.randn(n, dim, dtype=torch.float64, generator=generator)
    return torch.nn.functional.normalize(points, dim=1), torch.randint(0, classes, (n,), generator=generator)


@pytest.mark.parametrize(("clusters", "spread"), [(1, 20.0), (8, 0.15), (40, 0.05)])
def test_equals_the_dense_form_at_size(clusters, spread):
    """1,500 points: several tiles of the real size, in spatial order, with few and with many close pairs."""
    points, labels = clustered(1500, 32, clusters, spread, classes=180)
    for some, tolerance in ((points, 1e-9), (points.float(), 1e-5)):
        assert_same(computed(some, labels), literal(some, labels, decaying(3, 0.2, 0.2)), tolerance)


def test_gradcheck():
    points, labels = sample(1, n=10)
    points[3] = points[2] + 1e-3  # two classes inside min_distance, where the energy is smooth too
    labels[2], labels[3] = 0, 1
    points[5], labels[5], labels[4] = points[4], 2, 1  # two classes at one place
    points.requires_grad_()
    for energy, options in (
        (potential_energy, {"alpha": 2.0, "delta": 0.4, "min_distance": 0.05}),
        (potential_energy, {"alpha": 0, "delta": 0.4, "min_distance": 0.05, "reduction": "mean"}),
        (contrastive_potential_energy, {"delta": 0.4, "min_distance": 0.05}),
    ):
        assert torch.autograd.gradcheck(lambda p: energy(p, labels, **options), (points,), eps=1e-7, atol=1e-4)  # noqa: B023


@pytest.mark.parametrize("shift", [1e3, 1e7])
def test_far_from_the_origin(shift):
    """The matmuls that find and weigh pairs must not lose digits to a common offset."""
    points = (sample(2)[0] * 2**20).round() / 2**20  # coordinates that survive the shift exactly
    labels = sample(2)[1]
    assert_same(computed(points + shift, labels, delta=0.4), computed(points, labels, delta=0.4), 1e-9)


@pytest.mark.parametrize("tile", [1, 512])
def test_close_pairs_in_a_wide_cloud(tile, monkeypatch):
    """Where norms dwarf delta the distances come by subtraction, and the search must still lose no pair."""
    monkeypatch.setattr(close_pairs, "_TILE", tile)
    points, labels = sample(3, n=12)
    points[6:] += 1e6
    labels[:] = torch.arange(12) % 2
    assert_same(computed(points, labels, delta=0.4), literal(points, labels, decaying(3, 0.4, 0.4)), 1e-9)


def test_coarse_matmuls_lose_no_pair(monkeypatch):
    """With TF32 or bfloat16 matmuls only the search is coarse, and it widens its threshold."""

    def rounded(bias, a, b):
        return (bias + (a.bfloat16().double() @ b.bfloat16().double()).float()).float()

    points, labels = clustered(300, 32, 4, 0.15, classes=40)
    expected = computed(points, labels)
    monkeypatch.setattr(torch, "addmm", rounded)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    assert_same(computed(points, labels), expected, 1e-12)


def test_force_jumps_at_delta():
    """The potential is continuous at delta and the force is not; at equality Eqs. 1-2 take their second branch."""
    jump, at = 3 / 0.25**4, torch.tensor([1 - 1e-12, 1, 1 + 1e-12], dtype=torch.float64)
    for label, slopes in ((0, [0, jump, jump]), (1, [-jump, 0, 0])):  # of the other point's class, and of another
        for distance, slope in zip(0.25 * at, slopes):
            points = torch.stack([0 * distance, distance])[:, None]
            gradient = computed(points, torch.tensor([0, label]), alpha=3, delta=0.25)[1]
            assert gradient[1].item() / 2 == pytest.approx(slope)


def test_floor_of_the_distance():
    """Below min_distance the force falls linearly to zero and the energy is smooth; above it nothing changes."""

    def pair(distance):
        points = torch.tensor([[0.0], [distance]], dtype=torch.float64)
        value, gradient = computed(points, torch.tensor([0, 1]), alpha=3, min_distance=0.02)
        return value / 2, -gradient[1].item() / 2

    assert pair(0.02) == (pytest.approx(0.02**-3), pytest.approx(3 * 0.02**-4))
    assert pair(0.01)[1] == pytest.approx(3 * 0.02**-4 / 2)
    assert pair(0.0) == (pytest.approx(0.02**-3 * 2.5), 0)
    assert pair(0.01)[0] - pair(0.009)[0] == pytest.approx(-3 * 0.02**-4 * 0.00095 / 2, rel=1e-6)


def test_alpha_zero():
    points, labels = sample(4)
    literal_value, literal_gradient = computed(points, labels, alpha=0, alpha_zero="literal", delta=0.4)
    same = labels[:, None] == labels
    assert literal_value == (~same).sum() - (same.sum() - len(labels))
    assert not literal_gradient.any()  # the printed potential moves nothing
    limit = computed(points, labels, alpha=1e-6, delta=0.4)[1] / 1e-6
    assert_same((0, computed(points, labels, alpha=0, delta=0.4)[1]), (0, limit), 1e-4)


def test_detached_sources_and_mean():
    points, labels = sample(5)
    value, gradient = computed(points, labels, delta=0.4)
    assert_same(computed(points, labels, delta=0.4, detach_sources=True), (value, gradient / 2), 1e-12)
    pairs = len(labels) * (len(labels) - 1)
    assert_same(computed(points, labels, delta=0.4, reduction="mean"), (value / pairs, gradient / pairs), 1e-12)


@pytest.mark.parametrize(
    ("field", "potentials"),
    [
        (potential_field.decaying_field(2, 0.4), decaying(2, 0.4, 0.4)),
        (potential_field.contrastive_field(0.4), contrastive(0.4, 0.4, "hinge")),
    ],
)
def test_class_potential_and_force(field, potentials):
    points, labels = sample(6, dim=2)
    locations = sample(7, dim=2)[0].requires_grad_()
    potential, force = potential_field.class_potential(locations.detach(), points, labels, 1, field)
    r = (locations[:, None] - points).norm(dim=2)
    expected = torch.where(labels == 1, potentials[0](r), potentials[1](r)).sum(1)
    torch.testing.assert_close(potential, expected)
    torch.testing.assert_close(force, -torch.autograd.grad(expected.sum(), locations)[0])


LOSSES = [PFML, CPML]


@pytest.mark.parametrize("Loss", LOSSES)
def test_loss_is_the_energy_of_batch_and_proxies(Loss):
    loss = Loss(4, 5, proxies_per_class=2, delta=0.9)
    embeddings = torch.randn(6, 5, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 1, 3])  # class 2 has proxies only
    points = torch.cat([embeddings, loss.proxies.flatten(0, 1)])
    points = points / points.norm(dim=1, keepdim=True)
    classes = torch.cat([labels, torch.arange(4).repeat_interleave(2)])
    potentials = decaying(3, 0.9, 0.9) if Loss is PFML else contrastive(0.9, 0.9, "hinge")
    value, point_gradient = literal(points, classes, potentials)
    expected = torch.autograd.grad(points, [embeddings, loss.proxies], point_gradient.float())
    actual = torch.autograd.grad(loss(embeddings, labels), [embeddings, loss.proxies])
    sizes = classes.bincount()  # of the value the least is taken off, which pairs have within and beyond the radii
    same = int((sizes * (sizes - 1)).sum())
    attract, repel = (potential(torch.tensor(r).double()).item() for potential, r in zip(potentials, (0.1, 3.0)))
    value -= attract * same + repel * (len(classes) * (len(classes) - 1) - same)
    assert loss(embeddings, labels).item() == pytest.approx(value, rel=1e-5)
    assert loss(10 * embeddings, labels).item() == pytest.approx(value, rel=1e-5)
    for a, b in zip(actual, expected):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item())


@pytest.mark.parametrize("Loss", LOSSES)
def test_proxies_start_at_the_norm_that_was_asked_for_in_the_same_directions(Loss):
    def proxies(**options):
        torch.manual_seed(0)
        return Loss(5, 64, proxies_per_class=3, **options).proxies

    drawn, unit = proxies(proxy_norm=None), proxies()
    torch.testing.assert_close(unit.norm(dim=2), torch.ones(5, 3))
    torch.testing.assert_close(proxies(proxy_norm=4.0), 4 * unit)
    torch.testing.assert_close(drawn / drawn.norm(dim=2, keepdim=True), unit)
    assert (drawn.norm(dim=2) > 5).all()  # sqrt(64), but for the spread of a chi distribution


def test_under_adam_a_proxy_as_printed_turns_slower_by_its_norm():
    points, labels = torch.nn.functional.normalize(torch.randn(40, 64), dim=1), torch.arange(40) % 4
    turned = {}
    for norm in (1.0, 8.0):  # N(0, 1) in 64 dimensions has norm 8
        torch.manual_seed(0)
        loss = PFML(4, 64, proxies_per_class=2, proxy_norm=norm)
        before = torch.nn.functional.normalize(loss.proxies.detach().clone(), dim=2)
        optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
        loss(points, labels).backward()
        optimizer.step()
        after = torch.nn.functional.normalize(loss.proxies.detach(), dim=2)
        turned[norm] = (after - before).norm(dim=2).mean()
    assert turned[1.0] / turned[8.0] == pytest.approx(8, rel=0.05)


@pytest.mark.parametrize("Loss", LOSSES)
@pytest.mark.parametrize(("proxies", "dim", "size"), [(0, 8, 4), (0, 8, 1), (2, 1, 4)])
def test_without_proxies_and_in_one_dimension_gradients_are_finite(Loss, proxies, dim, size):
    embeddings = torch.randn(size, dim, requires_grad=True)
    loss = Loss(3, dim, proxies_per_class=proxies)
    value = loss(embeddings, torch.tensor([0, 0, 1, 2])[:size])
    value.backward()
    assert value.isfinite() and embeddings.grad.isfinite().all() and loss.proxies.grad.isfinite().all()
    assert size > 1 or value == 0


@pytest.mark.parametrize(("clusters", "classes"), [(5000, 2500), (10, 2500), (10, 1)])
def test_no_buffer_grows_with_the_pairs(clusters, classes):
    """5,000 points have 25 million pairs; a tenth of them close, or all of one class, must not be stored."""
    points, labels = clustered(5000, 8, clusters, 0.05, classes)
    points = points.float().requires_grad_()
    with LargestTensor() as mode:
        potential_energy(points, labels).backward()
    allowed = {1: 8 * 512 * len(points)}.get(classes, 8 * 2**20)  # a class alone: one row block of float64
    assert 0 < mode.largest <= allowed  # all pairs in float32: 100 MB; the close ones' indices: 20 MB
    with LargestTensor() as mode:
        torch.cdist(points, points)
    assert mode.largest == 4 * len(points) ** 2  # the mode does see such a buffer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 13}, "lower alpha or raise min_distance"),  # 12 is computed, see below
        ({"delta_rep": -0.1}, "delta_rep must be"),
        ({"min_distance": 0.3}, "min_distance must not exceed"),
    ],
)
def test_bad_options_are_named(options, message):
    points, labels = sample(9)
    assert potential_energy(points, labels, alpha=12.0).isfinite()
    with pytest.raises(ValueError, match=message):
        potential_energy(points, labels, **options)
    with pytest.raises(ValueError, match=message):
        PFML(3, 4, **options)


def test_bad_input_is_named():
    loss = PFML(3, 4, proxies_per_class=1)
    loss.proxies.data[0, 0, 0] = math.inf
    with pytest.raises(ValueError, match="proxies"):
        loss(torch.randn(2, 4), torch.tensor([0, 1]))
    for points, labels, message in (
        (torch.randn(4), torch.arange(4), "points must be"),
        (torch.ones(4, 2, dtype=torch.int64), torch.arange(4), "points must be"),
        (torch.randn(4, 2), torch.arange(3), "labels must be"),
        (torch.randn(4, 2), torch.rand(4), "labels must be"),
        (torch.randn(0, 2), torch.arange(0), "points is empty"),
        (torch.tensor([[0.0], [math.nan]]), torch.arange(2), "points .* contain NaN"),
        (torch.tensor([[0.0], [1e30]]), torch.arange(2), "points .* contain NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            potential_energy(points, labels)
