"""Probabilistic proxies: images are vMF distributions, classes are (non-isotropic) vMF distributions.

Paper      Kirchhof, Roth, Akata, Kasneci, "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning",
           ECCV 2022.
Equations  2, 6 (loss), 4 (nivMF density), 5 (EL-nivMF), 7 (joint loss), 19 (D(K)), 24-39 (vMF distances), Algorithm 1.
Deviations
  - Eqs. 1, 2 and 6 are minimised, so they get the minus sign that the print lacks. log C_M is exact, not a fit.
  - KL: Eqs. 38-39 put the mode mu_z where the mean A_M(kappa_z) mu_z belongs. The default has the mean, "printed" the
    mode; "released" is the released code, which takes +KL for a similarity and so maximises it to the own proxy.
  - EL-nivMF: Algorithm 1 prints the likelihood of z where Eq. 5 and the code take the samples'; so do we. In the
    released code K does not reach the samples, cos(z, K mu) for cos(K z, K mu), which leaves an isotropic vMF times
    D(K), and the sampler's envelope is wrong below kappa ~ M: "released" is both. The other distances have one form.
  - D(K) is a heuristic and its density does not integrate to one; jacobian="exact" does. The default is the paper's.
  - Temperature and concentrations are learned as logarithms and so stay positive (released: clamped, or not at all). A
    released learning rate of theirs corresponds to that rate divided by the initial value here.

An embedding z is vMF(z / ||z||, ||z||). vMF proxies are natural parameters kappa mu, so that K never appears; nivMF
proxies are a direction mu and M concentrations, K = diag(kappa). No distance needs more than two matrix products, since
    ||K mu|| cos(K x, K mu) = <x, K^2 mu> / sqrt(<x^2, kappa^2>).
They are in float64: at kappa = 1e4 a float32 cosine is uncertain by 1e-3 nats, which a temperature of 0.003 makes 0.3.
"""

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dmlrepro.extras import require
from dmlrepro.losses._state import _Stateful, goes_on, replayable
from dmlrepro.losses.checks import (
    LEAST_NORM,
    _WholeBatch,
    check_batch,
    check_finite,
    check_positive,
    check_sizes,
    printed,
    values_are_known,
    whole_labels,
)
from dmlrepro.losses.recommended import groups
from dmlrepro.vmf import (
    STREAM,
    at_least_float32,
    direction,
    log_normalizer_at_square,
    resultant_ratio_at_square,
    resumed_sample,
    sample,
)

# Initial (concentration, temperature): what the released ablation on CUB chose for each distance.
DEFAULTS = {
    "cosine": (10.0, 1 / 256),
    "l2": (200.0, 1.0),
    "nivmf": (10.0, 1 / 32),
    "el_vmf": (10.0, 1.0),
    "bhattacharyya": (10.0, 1.0),
    "kl": (10.0, 1.0),
    "el_nivmf": (50.0, 1.0),
}
# The rates of the released ablation (network 1e-5): proxies x 5000, concentrations x 50000 at an initial 50 and
# temperature x 500 at an initial 1, the last two as rates of the logarithms that are learned here.
RATES = {"proxies": 0.05, "log_concentrations": 0.01, "log_temperature": 0.005}
# Mean kappa of the first batch over D: the ratio that a scale of None sets, and below which a given scale warns.
# EL-nivMF on glyphs, conv4 from scratch, D = 64, 150 steps, one seed, has R@1 of 17 % at 0.07 (untrained: 29), 50 at
# 0.5, 67 at 1, 79 at 2, 81 at 4, 80 at 14.
FITTING, TOO_LOW = 2.0, 0.1
VARIANTS = ("corrected", "printed", "released")
JACOBIANS = ("heuristic", "exact", "none")
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # torch 2.6 does not say
NORMALIZERS = ("exact", "quadratic", "quadratic_512")


def _choose(name: str, value: str, choices: tuple[str, ...] | dict[str, tuple]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _wide(embeddings: Tensor, proxies: Tensor, name: str = "embeddings") -> tuple[Tensor, Tensor]:
    """Both in float64, which autocast leaves alone, after a check of their shapes."""
    if embeddings.ndim != 2 or proxies.ndim != 2 or embeddings.shape[1] != proxies.shape[1] or proxies.shape[1] < 2:
        raise ValueError(
            f"{name} must be (B, D) and proxies (C, D) with the same D >= 2, "
            f"got {tuple(embeddings.shape)} and {tuple(proxies.shape)}"
        )
    return embeddings.double(), proxies.double()


def _log_normalizer(q: Tensor, dim: int, normalizer: str) -> Tensor:
    """log C_dim at q = kappa^2; "quadratic_512" is the fit of M=512 at any dimension, as released."""
    _choose("normalizer", normalizer, NORMALIZERS)
    if normalizer == "quadratic_512":
        return log_normalizer_at_square(q, 512, "quadratic")
    return log_normalizer_at_square(q, dim, normalizer)


def _squares_and_dots(embeddings: Tensor, proxies: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """kappa_z^2 (B, 1), kappa_p^2 (C,) and nu_z . nu_p (B, C) of natural parameters nu."""
    return embeddings.square().sum(1, keepdim=True), proxies.square().sum(1), embeddings @ proxies.T


def cosine_distance(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """d_Cos = -cos(z, nu_p) (Sec. 3.3), 0 for a zero vector. embeddings (B, D), proxies (C, D); returns (B, C)."""
    z, p = _wide(embeddings, proxies)
    return at_least_float32(-direction(z) @ direction(p).T, embeddings)


def l2_distance(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """d_L2 = ||nu_p - nu_z||^2, squared and not normalised. embeddings (B, D), proxies (C, D); returns (B, C).

    >>> l2_distance(torch.tensor([[3.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[16.,  9.]])
    """
    z, p = _wide(embeddings, proxies)
    z2, p2, zp = _squares_and_dots(z, p)
    return at_least_float32((z2 + p2 - 2 * zp).clamp_min(0), embeddings)


def el_vmf_distance(embeddings: Tensor, proxies: Tensor, normalizer: str = "exact") -> Tensor:
    """Expected likelihood, d_EL-vMF = -log of the integral of rho zeta (Eqs. 34-35); symmetric.

    embeddings (B, D) and proxies (C, D) are natural parameters kappa mu; returns (B, C).
    """
    z, p = _wide(embeddings, proxies)
    z2, p2, zp = _squares_and_dots(z, p)
    joint, own_z, own_p = (
        _log_normalizer(q, z.shape[1], normalizer) for q in ((z2 + p2 + 2 * zp).clamp_min(0), z2, p2)
    )
    return at_least_float32(joint - own_z - own_p, embeddings)


def bhattacharyya_distance(embeddings: Tensor, proxies: Tensor, normalizer: str = "exact") -> Tensor:
    """d_B-vMF = -log of the integral of sqrt(rho zeta) (Eqs. 28-29); symmetric.

    embeddings (B, D) and proxies (C, D) are natural parameters kappa mu; returns (B, C), 0 for equal distributions and
    never negative (if exact).
    """
    z, p = _wide(embeddings, proxies)
    z2, p2, zp = _squares_and_dots(z, p)
    mean2 = ((z2 + p2 + 2 * zp) / 4).clamp_min(0)
    joint, own_z, own_p = (_log_normalizer(q, z.shape[1], normalizer) for q in (mean2, z2, p2))
    distance = joint - (own_z + own_p) / 2
    return at_least_float32(distance.clamp_min(0) if normalizer == "exact" else distance, embeddings)


def kl_distance(embeddings: Tensor, proxies: Tensor, normalizer: str = "exact", variant: str = "corrected") -> Tensor:
    """d_KL-vMF = KL(zeta || rho) = log C(kappa_z) - log C(kappa_p) + A_M(kappa_z) (kappa_z - nu_p . mu_z) (Eq. 37).

    Args:
        embeddings: (B, D) natural parameters kappa mu.
        proxies: (C, D) natural parameters kappa mu.
        normalizer: "exact", "quadratic" (Eqs. 12-13) or "quadratic_512".
        variant: "corrected"; "printed", Eq. 39, which lacks A_M and can be negative; "released", minus the printed one.

    Returns (B, C), never negative if corrected and exact.
    """
    _choose("variant", variant, VARIANTS)
    z, p = _wide(embeddings, proxies)
    z2, p2, zp = _squares_and_dots(z, p)
    constants = _log_normalizer(z2, z.shape[1], normalizer) - _log_normalizer(p2, z.shape[1], normalizer)
    if variant == "corrected":
        distance = constants + resultant_ratio_at_square(z2, z.shape[1]) * (z2 - zp)
        return at_least_float32(distance.clamp_min(0) if normalizer == "exact" else distance, embeddings)
    mode = direction(z)
    as_printed = constants + (z * mode).sum(1, keepdim=True) - mode @ p.T
    return at_least_float32(as_printed if variant == "printed" else -as_printed, embeddings)


def nivmf_log_density(
    points: Tensor,
    proxies: Tensor,
    concentrations: Tensor,
    jacobian: str = "heuristic",
    normalizer: str = "exact",
    variant: str = "corrected",
) -> Tensor:
    """Log density of every point under every nivMF proxy (Eq. 4), with respect to the area of the sphere.

    Args:
        points: (N, D), of any norm: the density is that at their directions.
        proxies: (C, D) directions mu, of any norm.
        concentrations: (C, D) positive kappa, the diagonal of K.
        jacobian: what stands for that of x -> K x / ||K x||. "heuristic" is the paper's D(K) = prod kappa / ||K mu||
            (Eq. 19), whose density does not integrate to one (mu = (1, 1, 1), kappa = (20, 5, 50): 791) and is c^(D-1)
            times the vMF's for K = c I. "exact" is prod kappa / ||K x||^D, which gives one and the vMF. "none" leaves
            it out.
        normalizer: "exact", "quadratic" (Eqs. 12-13) or "quadratic_512".
        variant: "released" is cos(x, K mu) for cos(K x, K mu); the other two are Eq. 4.

    Returns (N, C).

    Raises:
        ValueError: on shapes that do not match, a concentration that is not positive, a zero proxy, an unknown choice,
            or the exact Jacobian of the released variant, which transforms nothing.
    """
    _choose("jacobian", jacobian, JACOBIANS)
    _choose("variant", variant, VARIANTS)
    if variant == "released" and jacobian == "exact":
        raise ValueError(
            'jacobian="exact" does not exist for variant="released", which does not stretch the points; use "none"'
        )
    x, mu = _wide(points, proxies, "points")
    if concentrations.shape != proxies.shape:
        raise ValueError(f"concentrations must be {tuple(proxies.shape)}, got {tuple(concentrations.shape)}")
    dim = x.shape[1]
    x, mu, k = direction(x), direction(mu), concentrations.double()
    peak2 = (k * mu).square().sum(1)  # ||K mu||^2
    least, least_peak = concentrations.detach().min(), peak2.detach().min()
    if values_are_known() and not (least > 0) & (least_peak > 0):  # both at once: a GPU is waited for once
        if not least > 0:
            raise ValueError(f"concentrations must be positive, found {least.item()}")
        raise ValueError(f"proxies must have a direction, but row {peak2.argmin().item()} is zero or not finite")
    log_scale = _log_normalizer(peak2, dim, normalizer)
    if jacobian != "none":
        log_scale = log_scale + k.log().sum(1)
    if jacobian == "heuristic":
        log_scale = log_scale - peak2.log() / 2
    if variant == "released":
        return at_least_float32(log_scale + x @ (k * mu).T, points)
    k2, x2 = k.square(), x.square()
    stretch2 = x2 @ k2.T  # ||K x||^2
    # an embedding near zero has no direction: its cosine is 0, as in cosine_distance
    stretch2 = stretch2 + ((stretch2 == 0) | (x2.sum(1, keepdim=True) < 0.5))
    log_density = torch.addcmul(log_scale, x @ (k2 * mu).T, stretch2.rsqrt())
    if jacobian == "exact":
        log_density = log_density - dim / 2 * stretch2.log()
    return at_least_float32(log_density, points)


def nivmf_distance(
    embeddings: Tensor, proxies: Tensor, concentrations: Tensor, jacobian: str = "heuristic", normalizer: str = "exact"
) -> Tensor:
    """d_nivMF = -log rho(mu_z), the density at the embedding's direction (Sec. 3.3); its norm has no effect.

    embeddings (B, D); the others as in `nivmf_log_density`; returns (B, C).
    """
    return -nivmf_log_density(embeddings, proxies, concentrations, jacobian, normalizer)


def el_nivmf_distance(
    embeddings: Tensor,
    proxies: Tensor,
    concentrations: Tensor,
    num_samples: int = 5,
    generator: torch.Generator | None = None,
    temperature: Tensor | float | None = None,
    jacobian: str = "heuristic",
    normalizer: str = "exact",
    variant: str = "corrected",
) -> Tensor:
    """d_EL-nivMF = -log mean_i rho(z_i), z_i drawn from the embedding's vMF (Eq. 5).

    Args:
        embeddings: (B, D) natural parameters kappa mu; the zero embedding is the uniform distribution.
        proxies: (C, D) directions mu; concentrations: (C, D) positive kappa.
        num_samples: N per embedding; the paper trains with 5 and ablates with 10 to 20.
        generator: source of the draws, on the device of the embeddings; None is torch's global one.
        temperature: None is Eq. 5. A value t gives -t log mean_i rho(z_i)^(1/t), whose softmax at temperature t is
            Algorithm 1; equal to Eq. 5 for N = 1 or t = 1, and a maximum over the samples as t goes to 0.
        jacobian, normalizer, variant: as in `nivmf_log_density`; "released" also samples as the released code does.

    Returns (B, C), a Monte-Carlo estimate, differentiable in everything (through the samples as `vmf.sample` states).
    """
    if temperature is not None and not isinstance(temperature, Tensor):
        check_positive(temperature=temperature)
    check_sizes(num_samples=num_samples)
    z, _ = _wide(embeddings, proxies)
    envelope = "released" if variant == "released" else "exact"
    points = sample(direction(z), torch.linalg.vector_norm(z, dim=1), num_samples, generator, envelope)
    distance = _mean_likelihood(points, proxies, concentrations, temperature, jacobian, normalizer, variant)
    return at_least_float32(distance, embeddings)


def _mean_likelihood(
    points: Tensor,
    proxies: Tensor,
    concentrations: Tensor,
    temperature: Tensor | float | None,
    jacobian: str,
    normalizer: str,
    variant: str,
) -> Tensor:
    """`el_nivmf_distance` for samples (N, B, D) of each embedding: (B, C)."""
    num_samples, size, _ = points.shape
    log_rho = nivmf_log_density(points.flatten(0, 1), proxies, concentrations, jacobian, normalizer, variant)
    log_rho = log_rho.view(num_samples, size, len(proxies))
    t = 1.0 if temperature is None else temperature
    return -t * ((log_rho / t).logsumexp(0) - math.log(num_samples))


class ProbabilisticProxyLoss(_Stateful, _WholeBatch):
    """-log softmax(-d / t) over all proxies at the true class, mean over the batch (Eqs. 2, 6, Algorithm 1).

    Args:
        num_classes: C, labels are integers in [0, C).
        embedding_size: D = M >= 2.
        distance: "cosine", "l2", "nivmf", "el_vmf", "bhattacharyya", "kl" or "el_nivmf".
        concentration: initial kappa, the proxies' norm or for the nivMF distances every entry of K; None is `DEFAULTS`.
        temperature: initial t; None is `DEFAULTS`. Learned unless you call `log_temperature.requires_grad_(False)`.
        num_samples: N of EL-nivMF; the paper trains with 5.
        temperature_inside: where EL-nivMF has its temperature. True is Algorithm 1 and the code, log sum rho^(1/t);
            False is Eq. 6, (1/t) log mean rho.
        variant: "corrected"; "printed": KL after Eq. 39, and the quadratic fits for the D (128 and 512) that have one;
            "released": KL and EL-nivMF as the code computes them, and its quadratic fits. See the file's header.
        normalizer: None is the variant's; "exact", "quadratic" or "quadratic_512" overrides it, to isolate its effect.
        jacobian: the nivMF distances take "heuristic" (paper), "exact" or "none"; see `nivmf_log_density`.
        embedding_scale: multiplies the embeddings before they are read as kappa mu. A fresh head gives norms of a few,
            yet a vMF says little far below kappa ~ D, where its mean cosine is about kappa / D, and EL-nivMF hardly
            learns: the first batch warns of that. None: the first batch of training (not in eval(), nor under no_grad,
            nor one of zeros) sets the scale, once, so that its mean kappa is 2 D, and the state_dict keeps it (1 for
            "cosine" and "nivmf", which read no norms). The released code has a scale of 10 to 150, on the initial
            weights of the last layer.
        seed: it starts the module's own generator for the samples, on whatever device the embeddings are; None draws it
            from torch's global generator, after the proxies. The generator's state is part of the state_dict, so that a
            resumed run draws what the uninterrupted one would have drawn (on another type of device, whose states
            differ, it starts again from seed). In eval() and under no_grad each call draws the same, which the next
            call of training draws, too.

    Attributes:
        proxies: Parameter (C, D), natural parameters kappa mu, initially random of norm `concentration`; for the nivMF
            distances directions, initially N(0, 1), whose norm has no effect.
        log_concentrations: Parameter (C, D) of the nivMF distances; log_temperature: Parameter ().

    Raises:
        ValueError: on an unknown or non-positive argument; in use, on a bad batch (see `check_batch`).
        RuntimeError: in torch.export, of "el_nivmf".
        FloatingPointError: in use, when training has driven a concentration to zero or infinity.
    """

    kept = ("_stream",)
    fitted_scale: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        distance: str = "el_nivmf",
        concentration: float | None = None,
        temperature: float | None = None,
        num_samples: int = 5,
        temperature_inside: bool = True,
        variant: str = "corrected",
        normalizer: str | None = None,
        jacobian: str = "heuristic",
        embedding_scale: float | None = None,
        seed: int | None = None,
    ):
        super().__init__()
        _choose("distance", distance, DEFAULTS)
        _choose("variant", variant, VARIANTS)
        _choose("jacobian", jacobian, JACOBIANS)
        concentration = DEFAULTS[distance][0] if concentration is None else concentration
        temperature = DEFAULTS[distance][1] if temperature is None else temperature
        check_sizes(num_classes=num_classes, num_samples=num_samples)
        check_sizes(least=2, embedding_size=embedding_size)
        for name, value in (
            ("concentration", concentration),
            ("temperature", temperature),
            ("embedding_scale", 1.0 if embedding_scale is None else embedding_scale),
        ):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value}")
        if normalizer is None:
            normalizer = self._own_normalizer(distance, variant, embedding_size)
        _choose("normalizer", normalizer, NORMALIZERS)
        if normalizer == "quadratic" and embedding_size not in (128, 512):
            raise ValueError(
                f'normalizer="quadratic" needs embedding_size 128 or 512, got {embedding_size}; use "exact"'
            )
        if variant == "released" and jacobian == "exact" and distance == "el_nivmf":
            raise ValueError(
                'jacobian="exact" does not exist for variant="released" of el_nivmf; use "heuristic" or "none"'
            )
        self.distance, self.variant, self.normalizer, self.jacobian = distance, variant, normalizer, jacobian
        self.num_samples, self.temperature_inside = num_samples, temperature_inside
        self.concentration, self.temperature = concentration, temperature  # at the start
        self._given_scale = embedding_scale
        if embedding_scale is None and distance in ("cosine", "nivmf"):
            self._given_scale = 1.0
        elif embedding_scale is None:  # a sum of scales and how many, of which averages have a meaning from 0 on
            self.register_buffer("fitted_scale", torch.zeros(2, dtype=torch.float64))
        self._looks = distance not in ("cosine", "nivmf")  # at the concentrations of the next batch
        self.register_load_state_dict_pre_hook(_keep_the_scale)
        self.register_load_state_dict_post_hook(_look_again)
        self.proxies = nn.Parameter(torch.randn(num_classes, embedding_size))
        if distance in ("nivmf", "el_nivmf"):
            self.log_concentrations = nn.Parameter(torch.full((num_classes, embedding_size), math.log(concentration)))
        else:
            with torch.no_grad():
                self.proxies.copy_(concentration * direction(self.proxies))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        # on the CPU whatever the default device is, the meta device included, where nothing can be drawn
        self.seed = int(torch.randint(2**31, (), device="cpu")) if seed is None else seed
        self._stream = torch.zeros(STREAM, dtype=torch.uint8, device="cpu")  # until the first draw

    @staticmethod
    def _own_normalizer(distance: str, variant: str, dim: int) -> str:
        if variant == "corrected":
            return "exact"
        if variant == "printed":
            return "quadratic" if dim in (128, 512) else "exact"
        # The released code forgets to pass its dimension on in two of the five, and has only two fits.
        return "quadratic" if dim == 128 and distance not in ("nivmf", "kl") else "quadratic_512"

    def _apply(self, *args: object, **kwargs: object):
        """The scale stays float64: that of tiny embeddings is beyond float16."""
        scale = self._buffers.get("fitted_scale")
        super()._apply(*args, **kwargs)
        if scale is not None and not scale.is_meta:
            self.fitted_scale = scale.to(self.fitted_scale.device)
        return self

    @torch.no_grad()
    def initialize_proxies(self, class_means: Tensor) -> None:
        """Turn the proxies to the class means (C, D) of the embeddings, as the released code does before training.

        Their norms, and so the concentrations, stay. Raises ValueError on a wrong shape or a mean without direction.
        """
        if class_means.shape != self.proxies.shape:
            raise ValueError(f"class_means must be {tuple(self.proxies.shape)}, got {tuple(class_means.shape)}")
        norms = torch.linalg.vector_norm(class_means, dim=1)
        bad = ~(norms >= LEAST_NORM) | norms.isinf()
        if bad.any():
            raise ValueError(
                f"class_means has no direction for class {bad.nonzero()[0].item()}: its mean is zero or not finite"
            )
        norms = torch.linalg.vector_norm(self.proxies, dim=1, keepdim=True)
        self.proxies.copy_(norms * direction(class_means.to(self.proxies)))

    @property
    def embedding_scale(self) -> Tensor | float:
        """What multiplies the embeddings; NaN until the first batch of training sets it."""
        return self.fitted_scale[0] / self.fitted_scale[1] if self._given_scale is None else self._given_scale

    def _look_at_concentrations(self, embeddings: Tensor) -> Tensor | float:
        """The scale of the first batch (B, D): fit it if nobody has given one, else warn where it makes kappa small."""
        norm, dim = torch.linalg.vector_norm(embeddings.detach().double(), dim=1).mean(), embeddings.shape[1]
        if self._given_scale is None:
            fitting = torch.stack([FITTING * dim / norm, torch.ones_like(norm)]).to(self.fitted_scale)
            unset = (self.fitted_scale[1] == 0) & (norm > LEAST_NORM)
            scale, many = torch.where(unset, fitting, self.fitted_scale)
            if goes_on(self):
                self.fitted_scale.copy_(torch.stack([scale, many]))
                if values_are_known():  # compiled code looks each time, rather than being compiled twice
                    self._looks = not many
            return torch.where(many > 0, scale / many, 1.0)
        if not (goes_on(self) and values_are_known()):
            return self._given_scale
        self._looks = False
        if (kappa := self._given_scale * norm.item()) < TOO_LOW * dim:
            warnings.warn(
                f"embeddings have a mean concentration of {kappa:.3g}, far below their dimension {dim}, where a vMF is "
                f"nearly uniform and distance={self.distance!r} hardly learns; raise embedding_scale, or leave it out "
                "and the first batch sets it",
                stacklevel=2,
            )
        return self._given_scale

    def distances(self, embeddings: Tensor) -> Tensor:
        """Distances (B, C) in float64 of the embeddings (B, D) to all proxies; "el_nivmf" draws anew in training."""
        scale = self._look_at_concentrations(embeddings) if self._looks else self.embedding_scale
        embeddings = scale * embeddings.double()
        if self.distance == "cosine":
            return cosine_distance(embeddings, self.proxies)
        if self.distance == "l2":
            return l2_distance(embeddings, self.proxies)
        if self.distance == "el_vmf":
            return el_vmf_distance(embeddings, self.proxies, self.normalizer)
        if self.distance == "bhattacharyya":
            return bhattacharyya_distance(embeddings, self.proxies, self.normalizer)
        if self.distance == "kl":
            return kl_distance(embeddings, self.proxies, self.normalizer, self.variant)
        concentrations = self.log_concentrations.double().exp()
        least, most = torch.aminmax(concentrations.detach())
        if values_are_known() and not (least > 0) & (most < torch.inf):
            raise FloatingPointError("the concentrations left the range of float64; lower their learning rate")
        if self.distance == "nivmf":
            return nivmf_distance(embeddings, self.proxies, concentrations, self.jacobian, self.normalizer)
        if _is_exporting():
            raise RuntimeError(
                "el_nivmf cannot be exported: every call goes on with the random stream of the one before, which a "
                "graph does not hold and would draw from its start; export another distance, or the network alone"
            )
        return self._sampled_distances(embeddings, concentrations)

    @replayable
    def _sampled_distances(self, embeddings: Tensor, concentrations: Tensor) -> Tensor:
        points, self._stream = resumed_sample(
            direction(embeddings),
            torch.linalg.vector_norm(embeddings, dim=1),
            self.num_samples,
            self.seed,
            self._stream,
            "released" if self.variant == "released" else "exact",
        )
        temperature = self.log_temperature.double().exp() if self.temperature_inside else None
        return _mean_likelihood(
            points, self.proxies, concentrations, temperature, self.jacobian, self.normalizer, self.variant
        )

    def per_sample(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The terms (B,) whose mean the loss is."""
        return self.of_batch(embeddings, whole_labels(embeddings, labels), "none")

    def of_batch(self, embeddings: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        check_batch(embeddings, labels, *self.proxies.shape, least_norm=0.0)  # zero is the uniform distribution
        logits = -self.distances(embeddings) / self.log_temperature.double().exp()
        return at_least_float32(F.cross_entropy(logits, labels, reduction=reduction), embeddings)

    def parameter_groups(self, lr: float) -> list[dict]:
        """Recommended groups for an optimiser such as Adam: RATES, whatever the network's rate lr is."""
        return groups(self, RATES)

    def extra_repr(self) -> str:
        unknown = self._given_scale is None and self.fitted_scale.is_meta
        scale = math.nan if unknown else float(self.embedding_scale)
        known = dict(zip(("num_classes", "embedding_size"), self.proxies.shape))
        return printed(self, **known, embedding_scale=None if math.isnan(scale) else scale)


def _look_again(loss: ProbabilisticProxyLoss, _: object) -> None:
    """After a state was loaded, which may be one from before the first batch."""
    loss._looks = loss._given_scale is None or loss._looks


def _keep_the_scale(loss: ProbabilisticProxyLoss, state: dict, prefix: str, *_: object) -> None:
    """A state of parameters alone leaves the scale as it is."""
    if loss._given_scale is None:
        state.setdefault(f"{prefix}fitted_scale", loss.fitted_scale)


class JointProxyLoss(_WholeBatch):
    """L_joint = L_probabilistic(rho, zeta) + omega L_deterministic(mu_rho, mu_zeta), with shared proxies (Eq. 7).

    Args:
        probabilistic: a `ProbabilisticProxyLoss`, whose proxies both use.
        deterministic: a loss called as loss(embeddings, labels) with a Parameter `proxies` (C, D), such as
            pytorch-metric-learning's ProxyAnchorLoss, or `.loss` of ProxyAnchor here. The shared proxies replace it;
            they stay registered once.
        omega: weight >= 0 of the deterministic loss. Released: CUB 3 (128-D) and 5 (512-D), Cars 0.3 and 0.1.

    Raises:
        ValueError: if deterministic has no `proxies` of the same shape, or omega is negative; in use, on a bad batch,
            to which an embedding of norm 0 belongs, though it has a meaning for `probabilistic` alone.
    """

    def __init__(self, probabilistic: ProbabilisticProxyLoss, deterministic: nn.Module, omega: float):
        super().__init__()
        proxies = deterministic._parameters.get("proxies")
        if proxies is None or proxies.shape != probabilistic.proxies.shape:
            raise ValueError(
                "deterministic must have a Parameter `proxies` to share, of shape "
                f"{tuple(probabilistic.proxies.shape)}, got {None if proxies is None else tuple(proxies.shape)}"
            )
        if not 0 <= omega < math.inf:
            raise ValueError(f"omega must be finite and at least 0, got {omega}")
        self.probabilistic, self.deterministic, self.omega = probabilistic, deterministic, omega
        del deterministic.proxies
        self._share()

    def _share(self) -> None:
        """Past nn.Module, which would register the shared parameter, and save it, twice."""
        vars(self.deterministic)["proxies"] = self.proxies

    @property
    def proxies(self) -> Tensor:
        return self.probabilistic.proxies

    def initialize_proxies(self, class_means: Tensor) -> None:
        self.probabilistic.initialize_proxies(class_means)

    def parameter_groups(self, lr: float) -> list[dict]:
        """Recommended groups for an optimiser: RATES, and lr for what the deterministic loss learns beside proxies."""
        return groups(self, {f"probabilistic.{name}": rate for name, rate in RATES.items()} | {"*": lr})

    def of_batch(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if _is_exporting():
            raise RuntimeError(
                "JointProxyLoss cannot be exported: a graph would hold a copy of the proxies that its parts share, "
                "without their gradient; export one of the parts, or the network alone"
            )
        if self.omega:  # the deterministic loss knows directions alone
            check_batch(embeddings, labels, *self.proxies.shape)
        loss = self.probabilistic(embeddings, labels)
        kind, kept = torch.promote_types(embeddings.dtype, torch.float32), self.deterministic.proxies
        # pytorch-metric-learning casts a loss's proxies to the type of the embeddings: it gets them in that type
        vars(self.deterministic)["proxies"] = self.proxies.to(kind)
        try:
            with torch.autocast(embeddings.device.type, enabled=False):
                return loss + self.omega * self.deterministic(direction(embeddings.to(kind)), labels)
        finally:  # not what `functional_call` put in their place
            vars(self.deterministic)["proxies"] = self.proxies if isinstance(self.proxies, nn.Parameter) else kept

    def extra_repr(self) -> str:
        return printed(self)


def proxy_anchor_with_nivmf(
    num_classes: int,
    embedding_size: int,
    omega: float = 1.0,
    margin: float = 0.1,
    alpha: float = 32.0,
    **options: torch.types.Any,
) -> JointProxyLoss:
    """PANC + EL-nivMF of Tables 1 and 2: Eq. 7 with pytorch-metric-learning's ProxyAnchor.

    omega weighs ProxyAnchor, margin and alpha are its own; options go to `ProbabilisticProxyLoss`. The released
    ProxyAnchor averages over samples, which differs in batches that are not balanced.
    """
    require("pytorch-metric-learning")
    from pytorch_metric_learning.losses import ProxyAnchorLoss

    check_finite(margin=margin)
    check_positive(alpha=alpha)
    probabilistic = ProbabilisticProxyLoss(num_classes, embedding_size, **options)
    return JointProxyLoss(probabilistic, ProxyAnchorLoss(num_classes, embedding_size, margin, alpha), omega)
