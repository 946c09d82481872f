"""The vMF mathematics against arbitrary precision, quadrature and scipy, and the sampler against the distribution."""

import math

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from spheres import double, generator, quadrature

from dmlrepro import vmf

DIMENSIONS = (2, 3, 8, 16, 64, 128, 512, 2048)
KAPPAS = (0.0, 1e-6, 1e-3, 0.1, 1.0, 7.0, 30.0, 100.0, 300.0, 1e3, 1e4, 1e5, 1e6)


def exact(kappa, dim):
    """log C_M and A_M with 40 digits, straight from Eq. 11."""
    with mpmath.workdps(40):
        if kappa == 0:  # 1 / area of the sphere
            return mpmath.loggamma(mpmath.mpf(dim) / 2) - mpmath.log(2) - dim * mpmath.log(mpmath.pi) / 2, mpmath.mpf(0)
        kappa, order = mpmath.mpf(kappa), mpmath.mpf(dim) / 2 - 1
        bessel = mpmath.besseli(order, kappa)
        log_c = order * mpmath.log(kappa) - dim * mpmath.log(2 * mpmath.pi) / 2 - mpmath.log(bessel)
        return log_c, mpmath.besseli(order + 1, kappa) / bessel


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_normalizer_and_mean_equal_arbitrary_precision(dim):
    log_c, mean = vmf.log_normalizer(double(KAPPAS), dim), vmf.mean_resultant_length(double(KAPPAS), dim)
    for kappa, c, a in zip(KAPPAS, log_c.tolist(), mean.tolist()):
        expected_c, expected_a = exact(kappa, dim)
        assert abs(c - expected_c) < 1e-12 * max(1, abs(expected_c)), kappa
        assert abs(a - expected_a) <= 1e-12 * expected_a, kappa


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_normalizer_falls_and_mean_rises_with_kappa(dim):
    kappa = torch.cat([torch.zeros(1, dtype=torch.float64), torch.logspace(-6, 6, 4001, dtype=torch.float64)])
    mean = vmf.mean_resultant_length(kappa, dim)
    assert (vmf.log_normalizer(kappa, dim).diff() <= 0).all()
    assert (mean.diff() > 0).all()
    assert mean[0] == 0 and mean[-1] < 1


@pytest.mark.parametrize("dim", DIMENSIONS)
@pytest.mark.parametrize("function", [vmf.log_normalizer, vmf.mean_resultant_length])
def test_float32_is_the_rounded_float64_with_finite_gradients(dim, function):
    kappa = torch.tensor(KAPPAS, requires_grad=True)
    value = function(kappa, dim)
    wide = kappa.detach().double().requires_grad_()
    expected = function(wide, dim)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected.float(), rtol=1e-6, atol=0)
    (grad,), (expected_grad,) = torch.autograd.grad(value.sum(), kappa), torch.autograd.grad(expected.sum(), wide)
    assert grad.isfinite().all()
    torch.testing.assert_close(grad, expected_grad.float(), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("dim", (2, 3, 64, 512))
def test_derivatives_of_first_and_second_order(dim):
    kappa = double([1e-3, 0.4, 3.0, 25.0, 400.0]).requires_grad_()
    (slope,) = torch.autograd.grad(vmf.log_normalizer(kappa, dim).sum(), kappa, create_graph=True)
    mean = vmf.mean_resultant_length(kappa, dim)
    torch.testing.assert_close(slope, -mean)
    (curvature,) = torch.autograd.grad(slope.sum(), kappa)
    torch.testing.assert_close(curvature, -(1 - mean**2 - (dim - 1) / kappa * mean).detach(), rtol=1e-6, atol=1e-12)
    assert torch.autograd.gradcheck(lambda k: vmf.log_normalizer(k, dim), kappa)
    assert torch.autograd.gradgradcheck(lambda k: vmf.log_normalizer(k, dim), kappa)
    assert torch.autograd.gradgradcheck(lambda k: vmf.mean_resultant_length(k, dim), kappa)


def test_derivatives_at_zero():
    kappa = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(vmf.log_normalizer(kappa, 8), kappa, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, kappa)
    assert slope.item() == 0 and curvature.item() == pytest.approx(-1 / 8, rel=1e-12)


def test_quadratic_fits_are_the_papers_and_only_local():
    kappa = torch.arange(10.0, 51.0, dtype=torch.float64)
    torch.testing.assert_close(vmf.log_normalizer(kappa, 128, "quadratic"), 127 - 0.01909 * kappa - 0.003355 * kappa**2)
    fit = vmf.log_normalizer(kappa, 512, "quadratic")
    torch.testing.assert_close(fit, 868 - 0.0002662 * kappa - 0.0009685 * kappa**2)
    for dim, worst in ((128, 0.35), (512, 0.4)):  # an offset, mostly, which a softmax cancels
        error = vmf.log_normalizer(kappa, dim, "quadratic") - vmf.log_normalizer(kappa, dim)
        assert error.abs().max() < worst
        assert error.max() - error.min() < 0.3
    far = double([200.0, 400.0]).requires_grad_()
    error = vmf.log_normalizer(far, 128, "quadratic") - vmf.log_normalizer(far, 128)
    np.testing.assert_allclose(error.detach(), [-41, -286], atol=1)
    (slope,) = torch.autograd.grad(vmf.log_normalizer(far, 128, "quadratic").sum(), far)
    assert (slope < -1).all()  # no vMF's: A_M < 1


@pytest.mark.parametrize("dim", (2, 3))
@pytest.mark.parametrize("kappa", (0.0, 1.0, 30.0))
def test_density_integrates_to_one_and_has_the_mean(dim, kappa):
    points, weights = quadrature(dim)
    mu = vmf.direction(double([1.0, -2.0, 0.5][:dim]))
    mass = weights * vmf.log_density(points, mu, double(kappa)).exp()
    assert mass.sum().item() == pytest.approx(1, abs=1e-10)
    expected = vmf.mean_resultant_length(double(kappa), dim) * mu
    torch.testing.assert_close(mass @ points, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dim", (2, 3, 16, 128, 512))
def test_sampler_has_the_first_two_moments(dim):
    kappa, n = double([0.0, 0.7, 5.0, 20.0, 81.0, 404.0, 3e3, 1e6]), 1000
    mu = vmf.direction(torch.randn(len(kappa), dim, dtype=torch.float64, generator=generator(1)))
    points = vmf.sample(mu, kappa, n, generator(2))
    assert points.shape == (n, len(kappa), dim)
    torch.testing.assert_close(points.norm(dim=-1), torch.ones(n, len(kappa), dtype=torch.float64))
    cosine = (points * mu).sum(-1)
    mean = vmf.mean_resultant_length(kappa, dim)
    variance = 1 - mean**2 - (dim - 1) * vmf.resultant_ratio_at_square(kappa**2, dim)
    z = (cosine.mean(0) - mean) / (variance / n).sqrt()
    assert z.abs().max() < 4.5, z
    assert ((cosine - mean).square().mean(0) / variance - 1).abs().max() < 0.35
    across = (points - cosine[..., None] * mu).mean(0) / ((1 - cosine**2).mean(0) / (dim - 1) / n).sqrt()[:, None]
    assert across.abs().max() < 5.5  # no direction around mu is preferred


@pytest.mark.parametrize("kappa", (0.5, 4.0, 60.0))
def test_sampler_has_the_law_of_the_cosine(kappa):
    """On S^2 the distribution function of the cosine w is (e^(kappa w) - e^-kappa) / (e^kappa - e^-kappa)."""
    mu = double([[0.6, 0.0, -0.8]])
    cosine = (vmf.sample(mu, double([kappa]), 20_000, generator(3)) @ mu[0]).flatten().numpy()
    uniform = np.expm1(kappa * (cosine + 1)) / np.expm1(2 * kappa)
    assert scipy.stats.kstest(uniform, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    ("dim", "kappa", "published"), [(512, 20, -0.73), (512, 50, -0.44), (512, 404, 0.52), (128, 20, -0.23)]
)
def test_the_released_sampler_is_wrong_where_kappa_is_below_the_dimension(dim, kappa, published):
    mu = torch.eye(dim, dtype=torch.float64)[:1]
    cosine = vmf.sample(mu, double([kappa]), 2000, generator(), envelope="released")[..., 0].mean().item()
    assert cosine == pytest.approx(published, abs=0.01)
    assert cosine < vmf.mean_resultant_length(double(kappa), dim).item() - 0.02


@pytest.mark.parametrize("kappa", (5.0, 2000.0))  # below its switch at 10, and far above the dimension, it is right
def test_the_released_sampler_is_right_elsewhere(kappa):
    mu = torch.eye(16, dtype=torch.float64)[:1]
    cosine = vmf.sample(mu, double([kappa]), 20_000, generator(), envelope="released")[..., 0].mean().item()
    assert cosine == pytest.approx(vmf.mean_resultant_length(double(kappa), 16).item(), abs=5e-3)


def test_the_gradient_of_samples_in_kappa():
    """In kappa that of the accepted cosine, 1 % low at M = 64; the next test has that in mu, which is exact."""
    mu, kappa = torch.randn(1, 64, dtype=torch.float64, generator=generator(4)), double([40.0]).requires_grad_()
    cosine = (vmf.sample(mu, kappa, 20_000, generator(7)) @ vmf.direction(mu)[0]).mean()
    (slope,) = torch.autograd.grad(cosine, kappa)
    (expected_slope,) = torch.autograd.grad(vmf.mean_resultant_length(kappa, 64).sum(), kappa)
    assert slope.item() == pytest.approx(expected_slope.item(), rel=0.02)


def test_sample_turns_with_mu():
    """Moving mu by d, orthogonal to it, moves a sample x by <x, mu> d - <x, d> mu; more kappa, straight to mu."""
    mu, kappa = double([[0.0, 0.0, 1.0]]).requires_grad_(), double([3.0]).requires_grad_()
    point = vmf.sample(mu, kappa, 1, generator())[0, 0]
    jacobian = torch.stack([torch.autograd.grad(c, mu, retain_graph=True)[0][0] for c in point])
    d, axis = double([0.3, -0.2, 0.0]), double([0.0, 0.0, 1.0])
    torch.testing.assert_close(jacobian @ d, (point @ axis) * d - (point @ d) * axis)
    velocity = torch.stack([torch.autograd.grad(c, kappa, retain_graph=True)[0][0] for c in point])
    to_mu = axis - (point @ axis) * point
    torch.testing.assert_close(velocity / velocity.norm(), to_mu / to_mu.norm())


@pytest.mark.parametrize("dim", (2, 3, 128))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_sampling_at_the_edges_is_finite(dim, dtype):
    mu = torch.eye(dim, dtype=dtype)[[0, 0, 0, 1]]
    mu[1] *= -1
    mu[3] = 0  # no mode, uniform
    mu.requires_grad_()
    kappa = torch.tensor([1e6, 3.0, 0.0, 0.0], dtype=dtype, requires_grad=True)
    points = vmf.sample(mu, kappa, 7, generator())
    assert points.dtype == dtype
    torch.testing.assert_close(points.norm(dim=-1), torch.ones(7, 4, dtype=dtype))
    points.square().sum(0)[:, 0].sum().backward()
    assert mu.grad.isfinite().all() and kappa.grad.isfinite().all()


def test_the_generator_alone_decides():
    mu, kappa = torch.eye(4), torch.full((4,), 5.0)
    before = torch.get_rng_state()
    first, again, other = (vmf.sample(mu, kappa, 3, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vmf.log_normalizer(double([1.0, -2.0]), 8), r"kappa.*-2"),
        (lambda: vmf.mean_resultant_length(double([math.inf]), 8), r"kappa.*inf"),
        (lambda: vmf.log_normalizer(torch.tensor([1]), 8), r"kappa.*floating"),
        (lambda: vmf.log_normalizer(double([1.0]), 1), r"dim.*2.*got 1"),
        (lambda: vmf.log_normalizer(double([1.0]), 64, "quadratic"), r"quadratic.*got 64.*exact"),
        (lambda: vmf.log_normalizer(double([1.0]), 64, "debye"), r"method.*debye"),
        (lambda: vmf.sample(torch.eye(3), torch.ones(2), 1), r"mu.*kappa"),
        (lambda: vmf.sample(torch.eye(3), torch.ones(3), 0), r"num_samples.*got 0"),
        (lambda: vmf.sample(torch.zeros(1, 3), torch.ones(1), 1), r"mu.*zero"),
        (lambda: vmf.sample(1e-13 * torch.eye(3), torch.full((3,), 9.0), 1), r"mu.*zero"),
        (lambda: vmf.sample(torch.eye(3), torch.ones(3), 1, envelope="wood"), r"envelope.*wood"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
