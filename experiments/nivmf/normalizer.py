"""Notebook 23: the vMF normaliser, its quadratic fit, the samplers and the nivMF density (Figs 2, 8, Supp. A, B)."""

import itertools
from collections.abc import Sequence

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from dmlrepro import vmf
from dmlrepro.losses import nivmf as losses
from experiments.nivmf.claims import TESTS
from experiments.params import Params
from experiments.studies import study_rows
from experiments.study import Study

COSINE = 0.9  # between a sample and the mode, whose best concentration is sought


def normalizer_table(params: Params) -> pd.DataFrame:
    """The quadratic fit against the exact log C_M, in and outside the range it was made for, the samplers' mean
    cosines, and what the density of a nivMF integrates to."""
    rows = []
    for dim in vmf.QUADRATIC_FITS:
        at = f"dim={dim}"
        rows += [("quadratic", at, name, value) for name, value in _fit_errors(dim).items()]
        rows.append(("exact", at, "best_concentration", best_concentration(dim, "exact")))
        for method, (kappas, means) in sampler_means(dim, (20.0, 50.0, 200.0, 400.0)).items():
            rows += [(method, f"{at};kappa={kappa:g}", "mean_cosine", mean) for kappa, mean in zip(kappas, means)]
    concentrations = ((20.0, 20.0, 20.0), (20.0, 5.0, 50.0))  # Fig. 2
    for jacobian, kappa in itertools.product(("heuristic", "exact"), concentrations):
        at = "kappa=" + ",".join(f"{k:g}" for k in kappa)
        rows.append((f"{jacobian} D(K)", at, "integral", density_integral(kappa, jacobian)))
    return study_rows(params, [dict(zip(("method", "setting", "metric", "value"), row)) for row in rows])


def _error(kappa: Tensor, dim: int) -> Tensor:
    """Of the quadratic fit of log C_M."""
    return vmf.log_normalizer(kappa, dim, "quadratic") - vmf.log_normalizer(kappa, dim, "exact")


def _fit_errors(dim: int) -> dict[str, float]:
    fitted = torch.arange(10, 51).double()
    difference = _error(fitted, dim)
    relative = difference / vmf.log_normalizer(fitted, dim, "exact")
    at_200, at_400 = _error(torch.tensor([200.0, 400.0]).double(), dim).tolist()
    _, linear, quadratic = vmf.QUADRATIC_FITS[dim]
    return {
        "rms_relative_error": 100 * relative.square().mean().sqrt().item(),
        "max_relative_error": 100 * relative.abs().max().item(),
        "mean_squared_error": difference.square().mean().item(),
        "mean_error": difference.mean().item(),
        "error_without_mean": (difference - difference.mean()).abs().max().item(),
        "error_at_200": at_200,
        "error_at_400": at_400,
        "slope_exceeds_1_at": (1 - linear) / (2 * quadratic),
        "best_concentration": best_concentration(dim, "quadratic"),
    }


def best_concentration(dim: int, method: str) -> float:
    """The kappa that maximises log C(kappa) + kappa COSINE, where the slope of log C is -COSINE."""
    from scipy import optimize

    def slope(kappa: float) -> float:
        at = torch.tensor(kappa, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(vmf.log_normalizer(at, dim, method), at)[0].item() + COSINE

    return optimize.brentq(slope, 1.0, 1e6)


def fit_errors() -> dict[str, tuple]:
    """Quadratic fit minus exact log C_M, over kappa, for `charts.lines`."""
    kappa = torch.linspace(0, 400, 201, dtype=torch.float64)
    return {f"M = {dim}": (kappa.numpy(), _error(kappa, dim).numpy()) for dim in vmf.QUADRATIC_FITS}


def sampler_means(dim: int, kappas: Sequence[float]) -> dict[str, tuple]:
    """Mean cosine of vMF samples with their mode: exact A_M(kappa), our sampler, and the released one."""
    kappa = torch.tensor(list(kappas), dtype=torch.float64)
    mode = F.one_hot(torch.zeros(len(kappa), dtype=torch.int64), dim).double()
    means = {"A_M": (kappa.numpy(), vmf.mean_resultant_length(kappa, dim).numpy())}
    for name, envelope in (("corrected sampler", "exact"), ("released sampler", "released")):
        points = vmf.sample(mode, kappa, 5000, torch.Generator().manual_seed(0), envelope)
        means[name] = (kappa.numpy(), points[..., 0].mean(0).numpy())
    return means


def density_integral(kappa: Sequence[float], jacobian: str) -> float:
    """Integral over S^2 of the nivMF density with mode (1, 1, 1), midpoint rule on the equal-area cylinder."""
    steps = (torch.arange(600, dtype=torch.float64) + 0.5) / 600
    longitude, height = (at.flatten() for at in torch.meshgrid(2 * torch.pi * steps, 2 * steps - 1, indexing="ij"))
    radius = (1 - height.square()).clamp_min(0).sqrt()
    points = torch.stack([radius * longitude.cos(), radius * longitude.sin(), height], 1)
    mode, concentrations = torch.ones(1, 3).double(), torch.tensor([list(kappa)]).double()
    density = losses.nivmf_log_density(points, mode, concentrations, jacobian)[:, 0].exp()
    return (4 * torch.pi * density.mean()).item()


Normalizer = Study(
    "23_nivmf_normalizer",
    Params,
    paper="nivmf",
    tabulate=lambda finished, params: normalizer_table(params),
    claims=TESTS,
)
