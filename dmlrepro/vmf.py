"""The von Mises-Fisher (vMF) distribution on the unit sphere S^(M-1): normaliser, mean, sampler, density.

Paper      Kirchhof, Roth, Akata, Kasneci, "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning",
           ECCV 2022.
Equations  3 (density), 11 (normaliser), 12-13 (its quadratic fits). Wood, "Simulation of the von Mises Fisher
           distribution", 1994 (sampler); DLMF 10.41 (uniform expansion of Bessel functions).
Deviations The paper fits log C_M by a quadratic for M in {128, 512} and 10 <= kappa <= 50; the default here is exact
           for every M >= 2 and kappa in [0, 1e6]. The paper's sampler is s-vae's, whose envelope is wrong unless
           2 kappa >> M - 1 (mean cosine -0.73 instead of +0.04 at M=512, kappa=20); the default here is exact.

Everything is computed in float64, because log C_M(kappa) reaches 1e4 and the distances are small differences of such
numbers, and returned in the input's type (at least float32).

Derivation. With q = kappa^2 and R_M = A_M(kappa) / kappa, log C_M and R_M are smooth functions of q, also at q = 0:
    d log C_M / dq = -R_M / 2            R_M = 1 / (M + q R_{M+2})
    log C_M(kappa) - log C_M(0) = log C_{M+2}(kappa) - log C_{M+2}(0) - log(1 + q R_{M+2} / M)
so an order too small for the uniform expansion of I is raised, and descended again by these recurrences, whose terms
are all positive. Against 60-digit arithmetic the error is below 1e-13 max(1, |log C|) from M = 2 to 2048.
"""

import functools
import math
from fractions import Fraction

import torch
from torch import Tensor

MIN_ORDER, TERMS = 24, 8  # smallest Bessel order expanded, and terms of the expansion: truncation below 1e-14
QUADRATIC_FITS = {128: (127.0, 0.01909, 0.003355), 512: (868.0, 0.0002662, 0.0009685)}  # Eqs. 12, 13
STREAM = 5064  # bytes of a random stream: the state of a generator, of which a CPU's is the longest, and its length
MAX_ROUNDS = 1000  # the sampler gives up then; each round accepts more than half, so it needs ten or so


@functools.lru_cache
def _expansion(order: float) -> tuple[list[float], list[float]]:
    """Coefficients in p = order / sqrt(order^2 + kappa^2) of the uniform expansions (DLMF 10.41(ii)).

    The first polynomial is sum_{k>=1} U_k(p) / order^k, the second sum_{k>=1} (V_k - U_k)(p) / (order^k (1 - p^2)).
    """
    value, slope = [0.0] * (3 * TERMS + 1), [0.0] * (3 * TERMS + 2)
    u = [Fraction(1)]  # U_k(p) = sum_j u[j] p^(k + 2 j)
    for k in range(TERMS + 1):
        following = [Fraction(0)] * (len(u) + 1)
        for j, c in enumerate(u):
            e = k + 2 * j
            value[e] += float(c) / order**k
            slope[e + 1] -= float((Fraction(1, 2) + e) * c) / order ** (k + 1)
            following[j] += c * (Fraction(e, 2) + Fraction(1, 8 * (e + 1)))
            following[j + 1] -= c * (Fraction(e, 2) + Fraction(5, 8 * (e + 3)))
        u = following
    return [0.0, *value[1:]], slope


def _coefficients(order: float) -> tuple[list[float], list[float]]:
    """`_expansion`, whose fractions a compiler need not follow."""
    return _expansion(order)


_coefficients._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler's way imports for a second


def _horner(coefficients: list[float], x: Tensor) -> Tensor:
    result = torch.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result.mul_(x).add_(c)
    return result


def _bessel(q: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(log C_M(0) - log C_M(kappa), A_M(kappa) / kappa) at q = kappa^2 in float64."""
    order = dim / 2 - 1
    steps = max(0, math.ceil(MIN_ORDER - order))
    order += steps
    value, slope = _coefficients(order)
    s = (q + order**2).sqrt()
    # s - order without cancellation: everything below is then exact to the last digits at q = 0
    excess = q / (s + order)
    p = order / s
    u, u_at_zero = _horner(value, p), sum(value)
    growth = excess - order * torch.log1p(excess / (2 * order)) - 0.5 * torch.log1p(excess / order)
    growth += torch.log1p((u - u_at_zero) / (1 + u_at_zero))
    ratio = 1 / (s + order) + _horner(slope, p) / ((1 + u) * s)
    for m in range(dim + 2 * (steps - 1), dim - 1, -2):
        growth += torch.log1p(q * ratio / m)
        ratio = 1 / (m + q * ratio)
    return growth, ratio


class _Bessel(torch.autograd.Function):
    """`_bessel` with its analytic derivatives, of any order; saves two tensors instead of the expansion's dozens."""

    @staticmethod
    def forward(q: Tensor, dim: int):
        return _bessel(q, dim)

    @staticmethod
    def setup_context(ctx: torch.types.Any, inputs: tuple[Tensor, int], output: tuple[Tensor, Tensor]):
        q, ctx.dim = inputs
        ctx.save_for_backward(q, output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: torch.types.Any, grad_growth: Tensor | None, grad_ratio: Tensor | None):
        q, ratio = ctx.saved_tensors
        grad = None
        if grad_growth is not None:
            grad = grad_growth * ratio / 2
        if grad_ratio is not None:  # d R_M / dq = R_M (R_{M+2} - R_M) / 2
            term = grad_ratio * ratio * (_Bessel.apply(q, ctx.dim + 2)[1] - ratio) / 2
            grad = term if grad is None else grad + term
        return grad, None


def _check(kappa: Tensor, dim: int, modes: Tensor | None = None) -> None:
    """Raise ValueError unless kappa and dim are valid, and no mode (..., dim) has norm 0 where kappa is above it.

    A GPU is waited for once, whatever is checked.
    """
    if not isinstance(dim, int) or dim < 2:
        raise ValueError(
            f"dim must be an integer of at least 2, the dimension of the space around the sphere, got {dim!r}"
        )
    if not isinstance(kappa, Tensor) or not kappa.is_floating_point():
        raise ValueError(f"kappa must be a floating point tensor, got {kappa!r}")
    if torch.compiler.is_compiling():  # only shapes are known
        return
    valid = (kappa >= 0) & kappa.isfinite()
    has_mode = valid if modes is None else (modes.square().sum(-1) > 0.5) | (kappa < 1e-12)
    if not (valid & has_mode).all():
        if not valid.all():
            raise ValueError(f"kappa must be finite and at least 0, found {kappa[~valid][0].item()}")
        raise ValueError("mu has a zero row with kappa > 0, which gives no mode; use kappa = 0 (uniform) there")


def at_least_float32(result: Tensor, like: Tensor) -> Tensor:
    """Float64 result in the type of `like`, but never below float32: log C_M overflows half precision."""
    return result.to(torch.promote_types(like.dtype, torch.float32))


def log_normalizer_at_square(q: Tensor, dim: int, method: str = "exact") -> Tensor:
    """log C_M at q = kappa^2, any shape, float64 in and out; smooth at q = 0, where a norm has no derivative.

    q must be non-negative, which is not checked. Arguments otherwise as in `log_normalizer`.
    """
    if method == "exact":
        log_uniform = math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)  # 1 / area of the sphere
        return log_uniform - _Bessel.apply(q, dim)[0]
    if method != "quadratic":
        raise ValueError(f'method must be "exact" or "quadratic", got {method!r}')
    if dim not in QUADRATIC_FITS:
        raise ValueError(f'method="quadratic" exists for dim 128 and 512 only, got {dim}; use method="exact"')
    constant, linear, quadratic = QUADRATIC_FITS[dim]
    return constant - linear * q.clamp_min(1e-30).sqrt() - quadratic * q


def resultant_ratio_at_square(q: Tensor, dim: int) -> Tensor:
    """A_M(kappa) / kappa at q = kappa^2, float64 in and out; 1 / M at q = 0, and then like 1 / kappa."""
    return _Bessel.apply(q, dim)[1]


def log_normalizer(kappa: Tensor, dim: int, method: str = "exact") -> Tensor:
    """log C_M(kappa), the log of the density's constant on S^(M-1) (Eq. 11).

    Args:
        kappa: concentrations of any shape, finite and >= 0.
        dim: M >= 2, the dimension of the embedding.
        method: "exact", any M; or "quadratic", the paper's fits (Eqs. 12-13) for M in {128, 512}, made for
            10 <= kappa <= 50. Far outside their slope exceeds 1, which no vMF's does.

    Returns the shape of kappa. The derivative of "exact" is -A_M(kappa), which is differentiable in turn.

    Raises:
        ValueError: on a negative or non-finite kappa, dim < 2, an unknown method or a fit that does not exist.
    """
    _check(kappa, dim)
    return at_least_float32(log_normalizer_at_square(kappa.double().square(), dim, method), kappa)


def mean_resultant_length(kappa: Tensor, dim: int) -> Tensor:
    """A_M(kappa) = I_{M/2}(kappa) / I_{M/2-1}(kappa), the mean cosine of a vMF sample with its mode, in [0, 1).

    kappa of any shape, finite and >= 0; differentiable, with A' = 1 - A^2 - (M-1) A / kappa (1/M at kappa = 0).

    >>> mean_resultant_length(torch.tensor([0.0, 1.0, 100.0]), dim=3)  # on the sphere coth(kappa) - 1 / kappa
    tensor([0.0000, 0.3130, 0.9900])
    """
    _check(kappa, dim)
    wide = kappa.double()
    return at_least_float32(wide * resultant_ratio_at_square(wide.square(), dim), kappa)


def log_density(points: Tensor, mu: Tensor, kappa: Tensor) -> Tensor:
    """Log of the vMF density (Eq. 3), log C_M(kappa) + kappa <point, mu>, with respect to the area of the sphere.

    points (..., M) and mu (..., M) of unit norm and kappa (...) broadcast against each other.
    """
    _check(kappa, points.shape[-1])
    exponent = kappa.double() * (points.double() * mu.double()).sum(-1)
    return at_least_float32(log_normalizer_at_square(kappa.double().square(), points.shape[-1]) + exponent, points)


def direction(vectors: Tensor) -> Tensor:
    """vectors (..., M) divided by their norms. The zero vector, and one below 1e-12, which torch's F.normalize gives no
    direction either, stays as it is, with a bounded gradient."""
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / norms.masked_fill(norms < 1e-12, 1)


def _envelope(kappa: Tensor, dim: int, envelope: str) -> tuple[Tensor, Tensor]:
    """Wood's (b, t0 / (M - 1)). Only with the exact b is the second number 1."""
    root = (4 * kappa.square() + (dim - 1) ** 2).sqrt()
    b = (dim - 1) / (2 * kappa + root)
    if envelope == "exact":
        return b, torch.ones_like(b)
    if envelope != "released":
        raise ValueError(f'envelope must be "exact" or "released", got {envelope!r}')
    a = (dim - 1 + 2 * kappa + root) / 4
    blend = (kappa - 10).clamp(0, 1)
    b = blend * (dim - 1) / (4 * kappa.clamp_min(10)) + (1 - blend) * b
    return b, 4 * a * b / ((1 + b) * (dim - 1))


def _accepted(
    pole: Tensor, b: Tensor, excess: Tensor, num_samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Draws that make samples of a vMF: heights above the pole (N, B, 1), and tangents (N, B, M) at right angles to it.

    A uniform point u = height * pole + tangent, moved towards the pole by the Moebius map with x0 = (1 - b) / (1 + b),
    has Wood's envelope as its law. Accepting it with the probability below makes it vMF. No other axis is needed.
    """
    size, dim = pole.shape
    x0, log_excess = (1 - b) / (1 + b), excess.log()
    uniform = pole.new_empty(num_samples * size, dim)
    height = pole.new_empty(num_samples * size)
    pending = torch.arange(num_samples * size, device=pole.device)
    for _ in range(MAX_ROUNDS):
        row = pending % size
        draw = torch.randn(len(pending), dim, dtype=torch.float64, device=pole.device, generator=generator)
        draw /= torch.linalg.vector_norm(draw, dim=1, keepdim=True)
        h = torch.linalg.vecdot(draw, pole[row])
        y = x0[row] * h
        log_accept = (dim - 1) * (log_excess[row] - torch.log1p(y) + excess[row] * y / (1 + y))
        threshold = torch.rand(len(pending), dtype=torch.float64, device=pole.device, generator=generator).log()
        uniform[pending], height[pending] = draw, h
        pending = pending[threshold > log_accept]
        if len(pending) == 0:
            break
    else:
        raise RuntimeError(f"{len(pending)} vMF samples still rejected after {MAX_ROUNDS} rounds")
    height = height.view(num_samples, size, 1)
    return height, uniform.view(num_samples, size, dim) - height * pole


def stream_of(state: Tensor) -> Tensor:
    """The random stream (STREAM,), bytes on the CPU, that `torch.Generator.get_state` describes, on whatever device."""
    length = torch.tensor([len(state)], device="cpu").view(torch.uint8)
    return torch.cat([state, state.new_zeros(STREAM - len(state) - 8), length])


def _resumed(
    pole: Tensor, b: Tensor, excess: Tensor, num_samples: int, seed: int, stream: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`_accepted` from that stream, or, where it is of another type of device, from the seed's; and the rest."""
    generator = torch.Generator(pole.device).manual_seed(seed)
    size = len(generator.get_state())
    if stream[-8:].clone().view(torch.int64) == size:
        generator.set_state(stream[:size].clone())
    return *_accepted(pole, b, excess, num_samples, generator), stream_of(generator.get_state())


@torch.library.custom_op("dmlrepro::vmf_draws", mutates_args=())
def _resumed_operator(
    pole: Tensor, b: Tensor, excess: Tensor, num_samples: int, seed: int, stream: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """To a compiler, which can follow neither the rejections nor a generator, the draws are one operator."""
    return _resumed(pole, b, excess, num_samples, seed, stream)


@_resumed_operator.register_fake
def _(pole: Tensor, b: Tensor, excess: Tensor, num_samples: int, seed: int, stream: Tensor):
    return (
        pole.new_empty(num_samples, pole.shape[0], 1),
        pole.new_empty(num_samples, *pole.shape),
        torch.empty_like(stream),
    )


def _placed(axis: Tensor, b: Tensor, pole: Tensor, draws: tuple[Tensor, Tensor]) -> Tensor:
    """The samples (N, B, M) that draws about a pole become when it turns to an axis; differentiable in axis and b."""
    height, tangent = draws
    # The shortest rotation from pole to axis carries the tangent along: the identity in value, not in gradient.
    turn = torch.linalg.vecdot(tangent, axis)[..., None] / (1 + torch.linalg.vecdot(pole, axis)[:, None])
    tangent = tangent - turn * (pole + axis)
    b = b[:, None]
    return ((1 - b + (1 + b) * height) * axis + 2 * b.sqrt() * tangent) / (1 + b + (1 - b) * height)


def _axis(mu: Tensor, kappa: Tensor, num_samples: int) -> Tensor:
    """The directions of mu, after a check of what is to be sampled."""
    if mu.ndim != 2 or kappa.shape != mu.shape[:1]:
        raise ValueError(f"mu must be (B, M) and kappa (B,), got {tuple(mu.shape)} and {tuple(kappa.shape)}")
    if num_samples < 1:
        raise ValueError(f"num_samples must be at least 1, got {num_samples}")
    axis = direction(mu.double())
    _check(kappa, mu.shape[1], axis.detach())
    return axis


def sample(
    mu: Tensor, kappa: Tensor, num_samples: int, generator: torch.Generator | None = None, envelope: str = "exact"
) -> Tensor:
    """Draw num_samples vMF samples for each of B distributions, by rejection.

    Args:
        mu: (B, M) modes, normalised here. A zero row, which has no mode, is allowed where kappa is 0.
        kappa: (B,) concentrations, finite and >= 0.
        num_samples: N >= 1.
        generator: source of every draw, on the device of mu; None is torch's global one.
        envelope: "exact", or "released", the constant of the released code for kappa > 10 (to study what it did).

    Returns (N, B, M) unit vectors in the type of mu, reparameterised: gradients reach mu (the sample turns with it) and
    kappa (through the accepted cosine w). They are those of the drawn samples, of any order; numerical differences that
    draw anew, be it from the same seed, are others. Not differentiated is how the acceptance itself depends on kappa,
    which biases gradients through kappa: that of the mean cosine is low by at most 0.6 % for M=128, 1.2 % for 64,
    2.5 % for 32, 5.1 % for 16, 11 % for 8, 32 % for 3 and 50 % for 2 (at kappa near M).

    Raises:
        ValueError: on a wrong shape, num_samples < 1, a negative or non-finite kappa, or a zero mu with kappa > 0.
    """
    axis = _axis(mu, kappa, num_samples)
    pole, (b, excess) = axis.detach(), _envelope(kappa.double(), mu.shape[1], envelope)
    with torch.no_grad():
        draws = _accepted(pole, b, excess, num_samples, generator)
    return _placed(axis, b, pole, draws).to(mu.dtype)


def resumed_sample(
    mu: Tensor, kappa: Tensor, num_samples: int, seed: int, stream: Tensor, envelope: str = "exact"
) -> tuple[Tensor, Tensor]:
    """`sample` from a random stream that is a tensor, which torch.compile can follow: samples, and the stream behind.

    stream: (STREAM,) bytes on the CPU, what the call before returned or `stream_of` makes; zeros, or one of another
    type of device, stand for the stream that begins at seed.
    """
    axis = _axis(mu, kappa, num_samples)
    pole, (b, excess) = axis.detach(), _envelope(kappa.double(), mu.shape[1], envelope)
    with torch.no_grad():
        resumed = _resumed_operator if torch.compiler.is_compiling() else _resumed
        first, second, stream = resumed(pole, b, excess, num_samples, seed, stream)
    return _placed(axis, b, pole, (first, second)).to(mu.dtype), stream
