"""Linear pieces against an SVD per point and candidate, the loss against its equations, what must not break them."""

import copy
import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F

from dmlrepro.losses import PLM
from dmlrepro.losses import piecewise_linear as plm
from dmlrepro.losses.piecewise_linear import linear_neighborhoods, manifold_similarity
from experiments import timing

DEFAULTS = {"n_alpha": 4.0, "n_beta": 0.5, "delta": 2.0, "k": 9, "dim": 3, "quality": 0.9}


def neighbours(points, i, k):
    return sorted(range(len(points)), key=lambda j: (j != i, (points[j] - points[i]).norm().item(), j))[: k + 1]


def literal_pca(points, chosen, dim, centring, measure):
    """The basis of the set that begins with its own point, and the largest error of a member."""
    x = points[chosen]
    centred = x - {"mean": x.mean(0), "anchor": x[0], "none": torch.zeros_like(x[0])}[centring]
    basis = torch.linalg.svd(centred, full_matrices=False).Vh[:dim]
    residual = (centred - centred @ basis.T @ basis).norm(dim=1)
    error = {
        "energy": (residual / centred.norm(dim=1)) ** 2,
        "length": residual / centred.norm(dim=1),
        "norm": residual / x.norm(dim=1),
    }[measure]
    error[residual < 1e-9] = 0
    return basis, error.max().item()


def literal_piece(points, i, k, dim, quality, centring, measure):
    """Sec. 3.2 for one point: its members, in the order they came, and its basis."""
    order = neighbours(points, i, k)
    chosen = order[:dim]
    for candidate in order[dim:]:
        if literal_pca(points, [*chosen, candidate], dim, centring, measure)[1] <= 1 - quality:
            chosen.append(candidate)
    return chosen, literal_pca(points, chosen, dim, centring, measure)[0]


def literal_pieces(points, **options):
    bases, members = [], torch.zeros(len(points), len(points), dtype=torch.bool)
    for i in range(len(points)):
        chosen, basis = literal_piece(points, i, **options)
        members[i, chosen] = True
        bases.append(basis)
    return torch.stack(bases), members


def projectors(bases):
    return bases.mT @ bases


def unit_points(number, size, seed, dtype=torch.float64, classes=6):
    """Points of classes on the sphere: around each centre a few directions, and noise across them."""
    generator = torch.Generator().manual_seed(seed)
    centres, frames = (torch.randn(shape, generator=generator) for shape in ((classes, size), (classes, 3, size)))
    label = torch.arange(number) % classes
    inside = torch.randn(number, 1, 3, generator=generator)
    noise = torch.randn(number, size, generator=generator)
    points = centres[label] + 0.4 * (inside @ frames[label]).squeeze(1) + 0.15 * noise
    return F.normalize(points.to(dtype), dim=1)


@pytest.mark.parametrize(("centring", "measure"), list(product(plm.CENTRINGS, plm.MEASURES)))
@pytest.mark.parametrize(("k", "dim", "quality"), [(9, 3, 0.9), (12, 2, 0.7), (5, 5, 0.9), (6, 1, 0.5)])
def test_pieces_are_those_of_an_svd_per_candidate(centring, measure, k, dim, quality):
    points = unit_points(40, 16, seed=k)
    options = {"k": k, "dim": dim, "quality": quality, "centring": centring, "measure": measure}
    bases, members = linear_neighborhoods(points, **options)
    expected, expected_members = literal_pieces(points, **options)
    assert torch.equal(members, expected_members)
    assert torch.allclose(projectors(bases), projectors(expected), atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_the_threshold_decides(seed):
    points = unit_points(60, 16, seed)
    sizes = {q: linear_neighborhoods(points, 9, 3, q)[1].sum(1) for q in (0.0, 0.1, 0.8, 0.9, 1.0)}
    assert (sizes[0.0] == 10).all() and (sizes[1.0] == 4).all()  # m + 1 points always fit
    means = [sizes[q].double().mean().item() for q in (0.1, 0.8, 0.9, 1.0)]
    assert means == sorted(means, reverse=True) and means[0] > 9.5 and means[1] > means[2] > 4


def test_blocks_change_nothing(monkeypatch):
    points = unit_points(50, 16, seed=2)
    bases, members = linear_neighborhoods(points, 9)
    monkeypatch.setattr("dmlrepro.losses.piecewise_linear._BLOCK", 2000)
    again, members_again = linear_neighborhoods(points, 9)
    assert torch.equal(members, members_again) and torch.allclose(projectors(bases), projectors(again), atol=1e-12)


@pytest.mark.parametrize("copies", [2, 6, 12])
def test_duplicates_leave_orthonormal_bases_and_a_finite_loss(copies):
    points = unit_points(8, 16, seed=3, classes=2).repeat(copies, 1)
    bases, members = linear_neighborhoods(points, 9)
    assert torch.allclose(bases @ bases.mT, torch.eye(3, dtype=bases.dtype).expand(len(points), 3, 3), atol=1e-7)
    assert members.diagonal().all() and (members.sum(1) >= min(copies, 10)).all()
    loss = PLM(16, 5)
    z = points.clone().requires_grad_()
    value = loss(z, points)
    value.backward()
    assert value.isfinite() and z.grad.isfinite().all() and all(p.grad.isfinite().all() for p in loss.parameters())


def literal_similarity(x, y, bases, n_alpha, n_beta):
    """s'(x, y) (Eqs. 2-4) of all pairs, (X, Y), by the pieces (Y, m, D) through y."""
    difference = x[:, None] - y
    along = torch.einsum("xyd,ymd,yme->xye", difference, bases, bases)
    o, p = (difference - along).norm(dim=2), along.norm(dim=2)
    return (1 + o / 2) ** -n_alpha * (1 + p) ** -n_beta


def literal_terms(loss, embeddings, momentum_embeddings, n_alpha, n_beta, delta, k, dim, quality):
    """Eqs. 5-8."""
    z, x = F.normalize(embeddings, dim=1), F.normalize(momentum_embeddings, dim=1)
    rho = F.normalize(loss.proxies.detach().double(), dim=1)
    psi = loss.orthonormal_subspaces().detach().double()
    pieces = literal_pieces(x, k=k, dim=dim, quality=quality, centring="mean", measure="energy")[0]

    def similarity(a, b, of_a, of_b):
        one = literal_similarity(a, b, of_b, n_alpha, n_beta)
        return (one + literal_similarity(b, a, of_a, n_alpha, n_beta).T) / 2

    to_points, to_proxies = similarity(x, x, pieces, pieces), similarity(x, rho, pieces, psi)
    cosines = torch.einsum("pvd,xmd->xpvm", psi, pieces).norm(dim=3)
    return {
        "point": (delta * (1 - to_points) - torch.cdist(z, z)).fill_diagonal_(0).square().sum(),
        "proxy": (delta * (1 - to_proxies) - torch.cdist(z, rho)).square().sum(),
        "neighborhood": (to_proxies[:, :, None] - cosines).square().sum(),
    }


def a_batch(seed=0, number=20, size=8, dtype=torch.float64, proxies=4, **options):
    torch.manual_seed(seed)
    loss = PLM(size, proxies, **options)
    x = unit_points(number, size, seed, classes=3)
    return loss, (2 * x + 0.1 * torch.randn(number, size)).to(dtype), (3 * x).to(dtype)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float64, 1e-7), (torch.float32, 1e-4)])
@pytest.mark.parametrize("given", [{}, {"n_alpha": 1.0, "n_beta": 1.5, "delta": 0.5, "dim": 2, "k": 6, "quality": 0.8}])
def test_terms_equal_the_equations(seed, dtype, rel, given):
    loss, z, x = a_batch(seed, dtype=dtype, **given)
    expected = literal_terms(loss, z.double(), x.double(), **DEFAULTS | given)
    terms = loss.terms(z, x)
    assert terms.keys() == expected.keys()
    assert all(value.item() == pytest.approx(expected[name].item(), rel=rel) for name, value in terms.items())
    assert loss(z, x).dtype == dtype and loss(z, x).item() == pytest.approx(sum(expected.values()).item(), rel=rel)


@pytest.mark.parametrize("centring", plm.CENTRINGS)
@pytest.mark.parametrize("copies", [1, 3])
def test_pieces_and_similarity_are_those_found_one_after_the_other(centring, copies):
    points = unit_points(30, 8, seed=6).repeat(copies, 1)
    bases, members = linear_neighborhoods(points, 9, centring=centring)
    at_once = plm.pieces_and_similarity(points, 9, n_alpha=3.0, n_beta=0.7, centring=centring)
    assert torch.equal(at_once[0], bases) and torch.equal(at_once[1], members)
    assert torch.allclose(at_once[2], manifold_similarity(points, bases, 3.0, 0.7), atol=1e-7)
    narrow = plm.pieces_and_similarity(points.float(), 9, n_alpha=3.0, n_beta=0.7, centring=centring)
    assert narrow[0].dtype == narrow[2].dtype == torch.float32
    assert torch.allclose(narrow[2].double(), at_once[2], atol=1e-5)


@pytest.mark.parametrize("kind", ["random", "near", "far", "planar"])
def test_in_float32_the_similarity_is_that_of_float64(kind):
    """Given only the bases that float32 can hold, it errs no more than what finds bases and similarity at once."""
    points = {
        "random": unit_points(60, 32, seed=1),
        "near": F.normalize(unit_points(5, 32, seed=2).repeat(12, 1) + 1e-3 * unit_points(60, 32, seed=1), dim=1),
        "far": 100 + unit_points(60, 32, seed=1),
        "planar": unit_points(60, 3, seed=1) @ unit_points(3, 32, seed=2),
    }[kind].float()
    exact = plm.pieces_and_similarity(points.double(), 9)[2]
    bases, _, at_once = plm.pieces_and_similarity(points, 9)
    # on a piece the distance across it is the root of the rounding of float64
    assert (at_once - exact).abs().max() < 1e-7 and (manifold_similarity(points, bases) - exact).abs().max() < 5e-7


def test_similarity_is_symmetric_and_bounded():
    points = unit_points(60, 16, seed=4)
    s = manifold_similarity(points, linear_neighborhoods(points, 9)[0])
    assert torch.equal(s, s.T) and torch.allclose(s.diagonal(), torch.ones(60, dtype=s.dtype))
    assert s.min() > 0.0539 and s.max() <= 1


def gradients(loss, z, x, term):
    leaves = {"embeddings": z, "momentum": x, **dict(loss.named_parameters())}
    slopes = torch.autograd.grad(loss.terms(z, x)[term], list(leaves.values()), allow_unused=True)
    return {name for name, value in zip(leaves, slopes) if value is not None and value.abs().max() > 0}


LEARNED = {"proxies", "subspaces"}


@pytest.mark.parametrize(
    ("detach", "expected"),
    [(True, [{"embeddings", "proxies"}, {"subspaces"}]), (False, [{"embeddings", *LEARNED}, LEARNED])],
)
def test_each_term_moves_what_the_paper_says(detach, expected):
    loss, z, x = a_batch(detach_similarity=detach)
    z.requires_grad_(), x.requires_grad_()
    found = [gradients(loss, z, x, term) for term in ("point", "proxy", "neighborhood")]
    assert found == [{"embeddings"}, *expected]


def test_ablations_of_table_3():
    loss, z, x = a_batch(similarity="binary", k=9)
    members = linear_neighborhoods(F.normalize(x, dim=1), 9)[1].double()
    target = 2 - (members + members.T)
    distances = torch.cdist(F.normalize(z, dim=1), F.normalize(z, dim=1))
    assert loss.terms(z, x)["point"].item() == pytest.approx((target - distances).fill_diagonal_(0).square().sum())
    whole = PLM(8, 4, similarity="binary", quality=0.0)
    whole.load_state_dict(loss.state_dict())
    rho = F.normalize(whole.proxies.detach().double(), dim=1)
    to_proxies = torch.cdist(F.normalize(x, dim=1), rho)
    near = to_proxies <= to_proxies.kthvalue(9, dim=0).values
    expected = (2 * (1 - near.double()) - torch.cdist(F.normalize(z, dim=1), rho)).square().sum()
    assert whole.terms(z, x)["proxy"].item() == pytest.approx(expected.item())
    assert loss.terms(z, x)["proxy"] != whole.terms(z, x)["proxy"]


def test_without_proxies_one_term_is_left():
    loss, z, x = a_batch(proxies=0)
    assert list(loss.terms(z, x)) == ["point"] and not list(loss.parameters())
    torch.testing.assert_close(loss(z, x), a_batch(proxies=4)[0].terms(z, x)["point"])


def test_subspaces_stay_orthonormal():
    loss = a_batch(proxies=6, k=3)[0]
    assert torch.allclose(loss.orthonormal_subspaces().float(), loss.subspaces, atol=1e-6)
    loss.subspaces.data += torch.randn(loss.subspaces.shape)
    psi = loss.orthonormal_subspaces().detach()
    assert (psi @ psi.mT - torch.eye(3)).abs().max() < 1e-5


def test_memory_is_that_of_the_neighbours():
    points, k = unit_points(400, 128, seed=5, dtype=torch.float32), 9
    linear_neighborhoods(points[:50], k)
    peak = timing.peak_bytes(lambda: linear_neighborhoods(points, k), "cpu")
    neighbours, pairs, grams = 400 * (k + 1) * 128, 400 * 400, 400 * (k + 1) ** 2
    assert peak < 8 * (2.5 * neighbours + 4 * pairs + 12 * grams)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 2}, "k must be at least dim = 3"),
        ({"dim": 9, "k": 9}, "dim must be at most embedding_size = 8, got 9"),
        ({"quality": 90}, "quality must lie in \\[0, 1\\], got 90; 90 % is 0.9"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        PLM(8, **options)


def test_bad_batches_are_named():
    loss, z, x = a_batch()
    for embeddings, momentum, message in (
        (z[:9], x[:9], "k = 9 neighbours need more than k points, got 9"),
        (z, 0 * x, "momentum_embeddings have a norm of 0"),
        (z, x[:1].expand(20, 8), "points all coincide"),
        (z[:, :4], x[:, :4], "embeddings must have shape"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(embeddings, momentum)
    for parameter in loss.parameters():
        broken = copy.deepcopy(loss)
        broken.load_state_dict({name: p * math.nan if p is parameter else p for name, p in loss.named_parameters()})
        with pytest.raises(ValueError, match=r"of nan in row 0|subspaces contain NaN"):
            broken(z, x)
    with pytest.raises(ValueError, match="points must be floats"):
        linear_neighborhoods(torch.zeros(5), 3)
    with pytest.raises(ValueError, match="dim must be at most 2"):
        linear_neighborhoods(torch.randn(8, 2), 5)
    with pytest.raises(ValueError, match="points contain NaN"):
        linear_neighborhoods(torch.full((8, 4), math.nan), 5)
