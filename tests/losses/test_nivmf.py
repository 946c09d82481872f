"""The distances and the loss against the equations per sample and proxy, against integrals, and at the edges."""

import copy
import math
import warnings

import numpy as np
import pytest
import scipy.special
import torch
from spheres import double, generator, quadrature
from torch import nn

from dmlrepro import vmf
from dmlrepro.losses import MFCont, NormSoftmax, nivmf
from dmlrepro.losses.nivmf import JointProxyLoss, ProbabilisticProxyLoss

B, C, D = 5, 4, 6
ISOTROPIC = {name: getattr(nivmf, f"{name}_distance") for name in ("cosine", "l2", "el_vmf", "bhattacharyya", "kl")}


def batch(seed=0, size=B, num_classes=C, dim=D, scale=3.0):
    g = generator(seed)
    z, p = (scale * torch.randn(n, dim, dtype=torch.float64, generator=g) for n in (size, num_classes))
    k = 0.5 + 4 * torch.rand(num_classes, dim, dtype=torch.float64, generator=g)
    return z, p, k, torch.randint(0, num_classes, (size,), generator=g)


# The equations in NumPy for one embedding z and one proxy p (natural parameters), or one point x and one (mu, k).


def log_c(kappa, dim):  # Eq. 11
    order = dim / 2 - 1
    return order * math.log(kappa) - dim / 2 * math.log(2 * math.pi) - math.log(scipy.special.ive(order, kappa)) - kappa


def mean_length(kappa, dim):
    return scipy.special.ive(dim / 2, kappa) / scipy.special.ive(dim / 2 - 1, kappa)


norm = np.linalg.norm


def cos(x, y):
    return x @ y / norm(x) / norm(y)


LITERAL = {
    "cosine": lambda z, p: -cos(z, p),
    "l2": lambda z, p: norm(p - z) ** 2,
    "el_vmf": lambda z, p: log_c(norm(z + p), len(z)) - log_c(norm(z), len(z)) - log_c(norm(p), len(z)),
    "bhattacharyya": lambda z, p: log_c(norm(z + p) / 2, len(z)) - sum(log_c(norm(x), len(z)) for x in (z, p)) / 2,
    "kl": lambda z, p: (
        log_c(norm(z), len(z)) - log_c(norm(p), len(z)) + mean_length(norm(z), len(z)) * (norm(z) - norm(p) * cos(z, p))
    ),
}


def log_rho(x, mu, k, jacobian="heuristic", variant="corrected"):  # Eqs. 4, 19
    mu, x = mu / norm(mu), x / norm(x)
    peak = norm(k * mu)
    angle = cos(x, k * mu) if variant == "released" else cos(k * x, k * mu)
    log_d = {
        "heuristic": math.log(math.prod(k)) - math.log(peak),
        "exact": math.log(math.prod(k)) - len(x) * math.log(norm(k * x)),
        "none": 0.0,
    }[jacobian]
    return log_c(peak, len(x)) + log_d + peak * angle


def literal_el_nivmf(points, mu, k, temperature=1.0, **options):  # Eq. 5; points (N, D)
    return -temperature * math.log(np.mean([math.exp(log_rho(x, mu, k, **options) / temperature) for x in points]))


def literal(function, *rows):
    """Matrix of function(z, *proxy) over the embeddings z and the rows of the proxies' tensors."""
    z, *proxies = (r.numpy() for r in rows)
    return double([[function(a, *b) for b in zip(*proxies)] for a in z])


def close(value, expected, tolerance=1e-9):
    torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ISOTROPIC)
def test_isotropic_distances_equal_the_equations(name, seed):
    z, p, _, _ = batch(seed)
    close(ISOTROPIC[name](z, p), literal(LITERAL[name], z, p))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("jacobian", nivmf.JACOBIANS)
def test_nivmf_density_and_distance_equal_the_equation(jacobian, seed):
    z, p, k, _ = batch(seed)
    expected = literal(lambda x, mu, c: log_rho(x, mu, c, jacobian), z, p, k)
    close(nivmf.nivmf_log_density(z, p, k, jacobian), expected)
    close(nivmf.nivmf_distance(z, p, k, jacobian), -expected)


@pytest.mark.parametrize("variant", ["corrected", "released"])
@pytest.mark.parametrize("temperature", [None, 0.25, 2.0])
def test_el_nivmf_equals_the_equation_on_the_same_samples(temperature, variant):
    z, p, k, _ = batch(1)
    envelope = "released" if variant == "released" else "exact"
    points = vmf.sample(vmf.direction(z), z.norm(dim=1), 4, generator(7), envelope).numpy()
    rows = zip(p.numpy(), k.numpy())
    expected = [
        [literal_el_nivmf(points[:, b], mu, c, temperature or 1.0, variant=variant) for b in range(B)] for mu, c in rows
    ]
    value = nivmf.el_nivmf_distance(z, p, k, 4, generator(7), temperature, variant=variant)
    close(value, double(expected).T)


def test_kl_as_printed_and_as_released():
    z, p, _, _ = batch(2)
    # Eq. 39: E[z] = mu_z
    printed = literal(lambda a, b: log_c(norm(a), D) - log_c(norm(b), D) + (a - b) @ a / norm(a), z, p)
    close(nivmf.kl_distance(z, p, variant="printed"), printed)
    close(nivmf.kl_distance(z, p, variant="released"), -printed)
    nearest = {variant: nivmf.kl_distance(z, z, variant=variant).argmin(1) for variant in ("corrected", "released")}
    assert torch.equal(nearest["corrected"], torch.arange(B))
    assert (nearest["released"] != torch.arange(B)).all()  # every sample has a proxy nearer than its own


def test_released_el_nivmf_is_an_isotropic_vmf_times_d():
    x, p, k, _ = batch(3)
    x, nu = vmf.direction(x), k * vmf.direction(p)
    peak = nu.norm(dim=1)
    expected = vmf.log_density(x[:, None], vmf.direction(nu), peak) + k.log().sum(1) - peak.log()
    close(nivmf.nivmf_log_density(x, p, k, variant="released"), expected)


@pytest.mark.parametrize("distance", nivmf.DEFAULTS)
@pytest.mark.parametrize("inside", [True, False])
def test_loss_equals_algorithm_1_or_equation_6(distance, inside):
    z, _, _, y = batch(4)
    torch.manual_seed(0)
    how = {"temperature_inside": inside, "embedding_scale": 7.0, "seed": 11}
    loss = ProbabilisticProxyLoss(C, D, distance, 2.5, 0.4, 3, **how).double()
    with torch.no_grad():
        if hasattr(loss, "log_concentrations"):
            loss.log_concentrations += torch.randn(C, D, dtype=torch.float64, generator=generator(8))
    p, t = loss.proxies.detach(), loss.log_temperature.exp().item()
    k = getattr(loss, "log_concentrations", torch.zeros(C, D)).detach().double().exp()
    if distance == "el_nivmf":
        distances = nivmf.el_nivmf_distance(z, p, k, 3, generator(11), t if inside else None)
    else:
        distances = nivmf.nivmf_distance(z, p, k) if distance == "nivmf" else ISOTROPIC[distance](z, p)
    score = np.exp(-distances.numpy() / t)
    expected = -np.mean([math.log(s[label] / s.sum()) for s, label in zip(score, y.tolist())])
    assert loss(z / 7, y).item() == pytest.approx(expected, rel=1e-9)


def test_low_concentrations_are_warned_of_once():
    z, y = torch.randn(6, 64, generator=generator()) / 8, torch.arange(6) % 3  # norms of 1
    loss = ProbabilisticProxyLoss(3, 64, embedding_scale=1.0)
    with pytest.warns(UserWarning, match=r"mean concentration of .*below their dimension 64.*raise embedding_scale"):
        loss(z, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(z, y)
        for options in ({"embedding_scale": 30.0}, {}, {"distance": "cosine"}):
            ProbabilisticProxyLoss(3, 64, **options)(z, y)


@pytest.mark.parametrize("scale", (1e-3, 1.0, 30.0, 1e4))
@pytest.mark.parametrize("dim", (2, 16, 512))
def test_kl_and_bhattacharyya_are_never_negative_and_vanish_at_equality(dim, scale):
    z, p, _, _ = batch(0, 30, 30, dim, scale)
    for distance in (nivmf.kl_distance, nivmf.bhattacharyya_distance):
        for q in (p, z, z * (1 + 1e-9)):
            assert (distance(z, q) >= 0).all()
        own = distance(z, z).diag()
        assert (own < 1e-8 * (1 + scale)).all()
        assert (distance(z, p) > own[:, None]).all()


@pytest.mark.parametrize("dim", (2, 3))
@pytest.mark.parametrize("seed", range(3))
def test_the_exact_jacobian_integrates_to_one_and_the_papers_does_not(dim, seed):
    points, weights = quadrature(dim)
    _, p, k, _ = batch(seed, num_classes=3, dim=dim)
    k = torch.cat([5 * k, double([[20, 5, 50][:dim]])])  # the last as in Fig. 2
    p = torch.cat([p, torch.ones(1, dim, dtype=torch.float64)])
    close(weights @ nivmf.nivmf_log_density(points, p, k, "exact").exp(), torch.ones(4, dtype=torch.float64), 1e-8)
    heuristic = weights @ nivmf.nivmf_log_density(points, p, k).exp()
    assert (heuristic > 2).all()
    if dim == 3:
        assert heuristic[-1].item() == pytest.approx(790.845, abs=1e-3)


@pytest.mark.parametrize("scale", (1.0, 1e4))
@pytest.mark.parametrize("dim", (2, 128))
def test_float32_distances_equal_float64(dim, scale):
    z, p, k, _ = (each.float() for each in batch(0, 20, 20, dim, scale))
    p[:5] = z[:5]  # equal distributions too, where large terms cancel
    for function in (*ISOTROPIC.values(), lambda *both: nivmf.nivmf_distance(*both, scale * k.to(both[0]) / 4)):
        value, expected = function(z, p), function(z.double(), p.double())
        assert value.dtype == torch.float32 and expected.dtype == torch.float64
        assert ((value - expected).abs() <= 1e-4 * expected.abs().clamp_min(1)).all()


@pytest.mark.parametrize("distance", nivmf.DEFAULTS)
@pytest.mark.parametrize(("size", "num_classes", "dim"), [(4, 3, 2), (1, 1, 8), (4, 3, 128)])
def test_value_and_gradients_at_the_edges_are_finite(distance, size, num_classes, dim):
    torch.manual_seed(0)
    loss = ProbabilisticProxyLoss(num_classes, dim, distance, num_samples=1)
    z = torch.randn(size, dim, generator=generator())
    for scale in (0.0, 1e-30, 1e-13, 1.0, 1e6):
        loss.zero_grad()
        x = (scale * vmf.direction(z)).requires_grad_()
        value = loss(x, torch.zeros(size, dtype=torch.int64))
        value.backward()
        assert value.isfinite() and all(each.grad.isfinite().all() for each in (x, *loss.parameters()))
        assert scale > 1e-12 or x.grad.abs().max() < 1e3  # as good as zero: the uniform distribution


def test_the_seed_of_the_samples_comes_with_that_of_the_proxies():
    seeds = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        seeds.append(ProbabilisticProxyLoss(C, D).seed)
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize("distance", ["nivmf", "el_nivmf"])
@pytest.mark.parametrize("log_concentration", [-800.0, 800.0])
def test_concentrations_that_ran_away_are_a_divergence_and_no_bad_argument(distance, log_concentration):
    loss = ProbabilisticProxyLoss(3, 4, distance, concentration=6.0)
    with torch.no_grad():
        loss.log_concentrations[1, 2] = log_concentration
    with pytest.raises(FloatingPointError, match="concentrations left the range of float64; lower their learning rate"):
        loss(torch.randn(3, 4, generator=generator(0)), torch.arange(3))


@pytest.mark.parametrize("distance", ["kl", "el_nivmf"])
def test_class_means_give_the_directions_and_keep_the_concentrations(distance):
    loss = ProbabilisticProxyLoss(3, 4, distance, concentration=6.0)
    norms = loss.proxies.norm(dim=1).detach()
    means = torch.randn(3, 4, generator=generator())
    loss.initialize_proxies(means)
    torch.testing.assert_close(nivmf.cosine_distance(means, loss.proxies).diag(), -torch.ones(3))
    torch.testing.assert_close(loss.proxies.norm(dim=1).detach(), norms)
    with pytest.raises(ValueError, match=r"class_means.*class 1"):
        loss.initialize_proxies(means * double([[1.0], [0.0], [1.0]]))
    with pytest.raises(ValueError, match=r"class_means.*class 0"):
        loss.initialize_proxies(1e-14 * means)
    with pytest.raises(ValueError, match=r"class_means.*\(3, 4\).*\(2, 4\)"):
        loss.initialize_proxies(means[:2])


@pytest.mark.parametrize(
    ("variant", "distance", "dim", "expected"),
    [
        ("corrected", "kl", 512, "exact"),
        ("printed", "kl", 512, "quadratic"),
        ("printed", "kl", 64, "exact"),
        ("released", "el_nivmf", 128, "quadratic"),
        ("released", "el_nivmf", 64, "quadratic_512"),
        ("released", "nivmf", 128, "quadratic_512"),
    ],
)
def test_each_variant_has_its_normalizer(variant, distance, dim, expected):
    loss = ProbabilisticProxyLoss(3, dim, distance, variant=variant)
    assert loss.normalizer == expected
    assert ProbabilisticProxyLoss(3, dim, distance, variant=variant, normalizer="exact").normalizer == "exact"
    assert loss(torch.randn(2, dim, generator=generator()), torch.tensor([0, 1])).isfinite()


@pytest.mark.parametrize(
    ("normalizer", "fit"), {"quadratic": (127, 0.01909, 0.003355), "quadratic_512": (868, 0.0002662, 0.0009685)}.items()
)
def test_quadratic_normalizers_reach_the_distances(normalizer, fit, monkeypatch):
    z, p, k, _ = batch(0, 3, 3, 128, 2.0)
    monkeypatch.setitem(globals(), "log_c", lambda kappa, dim: fit[0] - fit[1] * kappa - fit[2] * kappa**2)
    for name in ("el_vmf", "bhattacharyya", "kl"):
        close(ISOTROPIC[name](z, p, normalizer), literal(LITERAL[name], z, p))
    close(nivmf.nivmf_log_density(z, p, k, normalizer=normalizer), literal(log_rho, z, p, k))
    printed = literal(lambda a, b: log_c(norm(a), 128) - log_c(norm(b), 128) + (a - b) @ a / norm(a), z, p)
    close(nivmf.kl_distance(z, p, normalizer, "printed"), printed)


def test_the_fitted_scale_of_tiny_embeddings_survives_half_precision():
    loss = ProbabilisticProxyLoss(4, 512, seed=0)
    points, labels = 5e-4 * torch.randn(16, 512, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 4
    expected = loss(points, labels)
    assert loss.half().fitted_scale[0] > torch.finfo(torch.float16).max
    torch.testing.assert_close(loss(points.half(), labels).float(), expected, rtol=3e-2, atol=0)


def test_joint_loss_is_equation_7_with_shared_proxies_registered_once():
    from pytorch_metric_learning import losses

    z, _, _, y = batch(5)
    joint = nivmf.proxy_anchor_with_nivmf(C, D, omega=3.0, margin=0.2, alpha=16.0, distance="kl")
    probabilistic = joint.probabilistic
    means = torch.randn(C, D, generator=generator())
    joint.initialize_proxies(means)
    assert joint.proxies is probabilistic.proxies
    assert nivmf.cosine_distance(means, joint.proxies).diag().max() < -0.999
    reference = losses.ProxyAnchorLoss(C, D, margin=0.2, alpha=16)
    reference.proxies.data.copy_(probabilistic.proxies)
    twin, seen = copy.deepcopy(probabilistic), []
    joint.deterministic.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    value = joint(z.bfloat16(), y)
    torch.testing.assert_close(seen[0].norm(dim=1), torch.ones(B))
    torch.testing.assert_close(value, twin(z.bfloat16(), y) + 3 * reference(z.bfloat16().float(), y))
    assert probabilistic.proxies.dtype == torch.float32  # that library casts a loss's proxies in place
    value.backward()
    assert probabilistic.proxies.grad.isfinite().all()
    assert [name for name, _ in joint.named_parameters()] == ["probabilistic.proxies", "probabilistic.log_temperature"]
    assert not any(name.startswith("deterministic") for name in joint.state_dict())


EYE = torch.eye(3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nivmf.cosine_distance(EYE, torch.eye(4)), r"embeddings.*\(3, 3\).*\(4, 4\)"),
        (lambda: nivmf.kl_distance(EYE, EYE, variant="fixed"), r"variant.*corrected.*fixed"),
        (lambda: nivmf.kl_distance(EYE, EYE, normalizer="debye"), r"normalizer.*exact.*debye"),
        (lambda: nivmf.kl_distance(EYE, EYE, normalizer="quadratic"), r"quadratic.*128 and 512.*got 3"),
        (lambda: nivmf.nivmf_distance(EYE, EYE, torch.ones(3)), r"concentrations.*\(3, 3\).*\(3,\)"),
        (lambda: nivmf.nivmf_distance(EYE, EYE, EYE), r"concentrations must be positive, found 0"),
        (lambda: nivmf.nivmf_distance(EYE, 0 * EYE, EYE + 1), r"proxies.*row 0 is zero"),
        (lambda: nivmf.nivmf_distance(EYE, EYE, EYE + 1, jacobian="approximate"), r"jacobian.*approximate"),
        (lambda: nivmf.nivmf_log_density(EYE, EYE, EYE + 1, "exact", variant="released"), r"jacobian.*released"),
        (lambda: nivmf.el_nivmf_distance(EYE, EYE, EYE + 1, num_samples=0), r"num_samples.*got 0"),
        (lambda: ProbabilisticProxyLoss(3, 1), r"embedding_size.*from 2 on, got 1"),
        (lambda: ProbabilisticProxyLoss(3, 4, embedding_scale=0.0), r"embedding_scale.*got 0"),
        (lambda: ProbabilisticProxyLoss(3, 4, concentration=-1.0), r"concentration.*got -1"),
        (lambda: ProbabilisticProxyLoss(3, 64, normalizer="quadratic"), r"normalizer.*128 or 512, got 64"),
        (lambda: ProbabilisticProxyLoss(3, 4, variant="released", jacobian="exact"), r'jacobian="exact".*released'),
        (lambda: JointProxyLoss(ProbabilisticProxyLoss(3, 4), nn.Linear(4, 3), 1.0), r"deterministic.*proxies.*None"),
        (lambda: JointProxyLoss(ProbabilisticProxyLoss(3, 4), MFCont(3, 4), 1.0), "proxies.*got None"),
        (lambda: JointProxyLoss(ProbabilisticProxyLoss(3, 4), NormSoftmax(3, 5), 1.0), r"deterministic.*\(3, 5\)"),
        (lambda: JointProxyLoss(ProbabilisticProxyLoss(3, 4), NormSoftmax(3, 4), -1.0), r"omega.*-1"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
