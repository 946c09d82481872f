"""Notebooks 22 and 23: the seven distances, what the embedding's norm does in them, and the normaliser they rest on.

Numerical studies give rows of a tidy table, or {name: (x, y)} for `plots.lines` and arguments of `plots.field`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dmlrepro import metrics, vmf
from dmlrepro.evidence import results
from dmlrepro.losses import nivmf as losses
from dmlrepro.papers.nivmf.methods import (
    DISTANCES,
    NivmfParams,
    evaluated_labels,
    measured,
    planned,
    published,
    study_rows,
    with_measured,
)
from dmlrepro.papers.params import Params
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd

# --- 22: the distances ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DistancesParams(NivmfParams):
    """22_nivmf_distances."""

    notebook = "22_nivmf_distances"

    methods: tuple[str, ...] = tuple(DISTANCES)
    variant_dim: int = 128  # dimension of the three-variant comparison: the paper's fits exist for 128 and 512
    variant_steps: int = 100  # steps of each of its runs; 0: none
    draws: int = 20  # random proxies and embeddings of the exact statements


# The forms that are run, at 128 dimensions, where the released code of all of these but KL's uses the printed fit;
# those of nivMF, which differ in the fit alone, are not.
FORMS = {
    "EL-vMF": ("corrected", "printed"),
    "B-vMF": ("corrected", "printed"),
    "KL-vMF": ("corrected", "printed", "released"),
    "EL-nivMF": ("corrected", "printed", "released"),
}


def distances(params: DistancesParams) -> list[RunSpec]:
    """Every distance, every seed; then, with few steps, the printed and the released form of those that have one."""
    found = planned(("untrained", *params.methods), params)
    for method, variants in FORMS.items():
        for variant in variants if params.variant_steps and method in params.methods else ():
            found += planned(
                [method],
                params,
                setting=f"variant={variant}",
                loss_options={"variant": variant},
                embedding_size=params.variant_dim,
                steps=params.variant_steps,
                epochs=None,
            )
    return found


def distances_table(finished: Iterable, params: DistancesParams) -> "pd.DataFrame":
    """The rows of the runs, those of the same embeddings ranked by Euclidean distance (Table 4), and the draws of
    `exact_rows`."""
    import pandas as pd

    finished = list(finished)
    euclidean = [
        measured(run, _euclidean_retrieval(run), "retrieval=euclidean")
        for run in finished
        if run.spec.method in DISTANCES and not run.spec.setting
    ]
    exact = study_rows(params, exact_rows(range(params.draws)))
    return pd.concat([with_measured(finished, euclidean, params), exact], ignore_index=True)


def _euclidean_retrieval(run) -> dict[str, float]:
    labels, query, gallery = evaluated_labels(run)
    points, ks = run.embeddings, run.spec.ks
    if (query & gallery).all():
        return metrics.retrieval(points, labels, ks, distance="euclidean")
    return metrics.retrieval(points[query], labels[query], ks, points[gallery], labels[gallery], "euclidean")


def retrieval_by_both_distances(table: "pd.DataFrame") -> "pd.DataFrame":
    """Table 4: R@1 by cosine and by Euclidean distance of the same embeddings, ours and what the paper prints."""
    import pandas as pd

    rows = table[table["setting"].isin(["", "retrieval=euclidean"]) & (table["metric"] == "R@1")]
    rows = rows[(rows["selection"] == "last") & rows["method"].isin(DISTANCES)]
    ours = rows.pivot_table(index="method", columns="setting", values="value")
    where = f"ours, {rows['dataset'].iloc[0]}"
    columns = {f"{where}: cosine": ours[""], f"{where}: Euclidean": ours["retrieval=euclidean"]}
    columns[f"{where}: change"] = ours["retrieval=euclidean"] - ours[""]
    for dataset, theirs in published("Table 4 (supp)").groupby("dataset"):
        columns[f"published, {dataset}: Euclidean"] = theirs.set_index("method")["value"]
    return pd.DataFrame(columns).reindex([name for name in DISTANCES if name in ours.index]).round(1)


def quoted_differences(table: "pd.DataFrame") -> "pd.DataFrame":
    """Differences of R@1 in points that the text quotes from Fig. 5, and ours, means over seeds."""
    rows = table[(table["metric"] == "R@1") & (table["selection"] == "last")]
    ours = rows.groupby("method")["value"].mean()
    quoted = results.published("nivmf_figures", "Fig. 5")
    quoted = quoted.pivot(index="split_or_setting", columns="dataset", values="value").add_prefix("published, ")
    pairs = [[f.removeprefix("d_").replace("Cos", "Cosine") for f in each.split(" - ")] for each in quoted.index]
    quoted.insert(0, f"ours, {rows['dataset'].iloc[0]}", [ours.get(a, np.nan) - ours.get(b, np.nan) for a, b in pairs])
    return quoted.rename_axis("R@1 difference").rename_axis(None, axis=1).round(1)


# Temperatures at which the distances to proxies of norm 10 have logits of like slope where the embedding's norm is 10.
COMPARABLE = {"Cosine": 1 / 10, "L2": 20.0, "EL-vMF": 1.0, "B-vMF": 1.0, "KL-vMF": 1.0}
PROXY_NORM = 10.0  # of Fig. 3
DIM, CLASSES = 64, 20


def _distance(method: str) -> Callable[[Tensor, Tensor], Tensor]:
    return getattr(losses, f"{DISTANCES[method]}_distance")


def _directions(count: int, generator: torch.Generator, dim: int = DIM) -> Tensor:
    return F.normalize(torch.randn(count, dim, dtype=torch.float64, generator=generator), dim=1)


def exact_rows(seeds: Iterable[int]) -> list[dict]:
    """What Sec. 3.5 and Supp. F say of the embedding's norm, on random proxies and embeddings; a row per draw.

    gradient_error: of Eqs. 8 and 9, with p's own probability where the print has that of p*, for L2 and Cosine.
    norm_sensitivity and entropy_slope: as in `claims`, for the five distances without samples.
    """
    rows = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        proxies, (direction,) = PROXY_NORM * _directions(CLASSES, generator), _directions(1, generator)
        varied = proxies * (0.5 + torch.rand(CLASSES, 1, dtype=torch.float64, generator=generator))
        norm = 1 + 49 * torch.rand((), dtype=torch.float64, generator=generator)
        target = int(torch.randint(CLASSES, (), generator=generator))
        for method, temperature in COMPARABLE.items():
            values = {
                "norm_sensitivity": _norm_sensitivity(method, norm, direction, varied, temperature),
                "entropy_slope": _entropy_slope(method, direction, proxies, temperature),
            }
            if method in ("L2", "Cosine"):
                values["gradient_error"] = _gradient_error(method, norm * direction, varied, target, temperature)
            rows += [
                {"method": method, "seed": seed, "metric": metric, "value": value} for metric, value in values.items()
            ]
    return rows


def logits_by_cosine(method: str, embedding: Tensor, proxies: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """-d / t of an embedding (M,) to proxies (C, M) as a differentiable function of its cosines to them, both (C,).

    Each proxy turns in the plane it spans with the embedding, at constant norm, so that its cosine alone changes.
    """
    mode, norms = F.normalize(embedding, dim=0), proxies.norm(dim=1, keepdim=True)
    cosines = (F.normalize(proxies, dim=1) @ mode).requires_grad_()
    aside = F.normalize(proxies - (proxies @ mode)[:, None] * mode, dim=1)
    turned = norms * (cosines[:, None] * mode + (1 - cosines.square()).sqrt()[:, None] * aside)
    return -_distance(method)(embedding[None], turned)[0] / temperature, cosines


def _gradient_error(method: str, embedding: Tensor, proxies: Tensor, target: int, temperature: float) -> float:
    posterior = (-_distance(method)(embedding[None], proxies)[0] / temperature).softmax(0)
    printed = (posterior - F.one_hot(torch.tensor(target), CLASSES)) / temperature  # Eq. 8
    if method == "L2":
        printed = printed * 2 * proxies.norm(dim=1) * embedding.norm()  # Eq. 9
    logits, cosines = logits_by_cosine(method, embedding, proxies, temperature)
    (found,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor(target)), cosines)
    return ((found - printed).abs().max() / printed.abs().max()).item()


def _norm_sensitivity(method: str, norm: Tensor, direction: Tensor, proxies: Tensor, temperature: float) -> float:
    def logits(log_norm: Tensor) -> Tensor:
        return -_distance(method)((log_norm.exp() * direction)[None], proxies)[0] / temperature

    slope = torch.autograd.functional.jacobian(logits, norm.log())
    return (slope.abs().max() / logits(norm.log()).abs().max()).item()


def _entropies(method: str, direction: Tensor, proxies: Tensor, norms: Tensor, temperature: float) -> Tensor:
    """Entropy in nats of the class posterior at embeddings of one direction and different norms."""
    log_posterior = (-_distance(method)(norms[:, None] * direction, proxies) / temperature).log_softmax(1)
    return -(log_posterior.exp() * log_posterior).sum(1)


NORMS = torch.logspace(0, 3, 25, dtype=torch.float64)


def _entropy_slope(method: str, direction: Tensor, proxies: Tensor, temperature: float) -> float:
    """Rank correlation with the norm; entropies that differ by rounding are equal, as all of Cosine's are."""
    from scipy import stats

    entropies = _entropies(method, direction, proxies, NORMS, temperature).round(decimals=9)
    constant = bool((entropies == entropies[0]).all())
    return 0.0 if constant else float(stats.spearmanr(NORMS, entropies).statistic)


def posterior_entropies(seeds: Iterable[int] = range(20)) -> dict[str, tuple]:
    """Entropy of the posterior against the embedding's norm, proxies of norm 10, mean over draws."""
    return _mean_over_draws(seeds, lambda method, z, proxies, t: _entropies(method, z, proxies, NORMS, t))


def gradient_scales(seeds: Iterable[int] = range(20)) -> dict[str, tuple]:
    """|d logit / d cos| against the embedding's norm, mean over proxies and draws: the factor before the probabilities
    in Eqs. 8 and 9, and in the posterior the reciprocal of a temperature."""

    def scales(method: str, direction: Tensor, proxies: Tensor, temperature: float) -> Tensor:
        found = []
        for norm in NORMS:
            logits, cosines = logits_by_cosine(method, norm * direction, proxies, temperature)
            found.append(torch.autograd.grad(logits.sum(), cosines)[0].mean())
        return torch.stack(found)

    return _mean_over_draws(seeds, scales)


def _mean_over_draws(seeds: Iterable[int], function: Callable) -> dict[str, tuple]:
    draws: dict[str, list] = {method: [] for method in COMPARABLE}
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        proxies, (direction,) = PROXY_NORM * _directions(CLASSES, generator), _directions(1, generator)
        for method, temperature in COMPARABLE.items():
            draws[method].append(function(method, direction, proxies, temperature))
    return {method: (NORMS.numpy(), torch.stack(found).mean(0).numpy()) for method, found in draws.items()}


def distance_maps(methods: Sequence[str] = ("Cosine", "L2", "B-vMF"), width: float = 25.0, size: int = 61) -> dict:
    """Fig. 3 as arguments of `plots.field`: distances of an embedding to a proxy of norm 10 over the plane that both
    span, and the direction in which each moves the embedding."""
    side = torch.linspace(-width, width, size, dtype=torch.float64)
    x, y = torch.meshgrid(side, side, indexing="xy")
    plane = F.pad(torch.stack([x.flatten(), y.flatten()], 1), (0, DIM - 2)).requires_grad_()
    proxy = F.pad(torch.tensor([[PROXY_NORM, 0.0]], dtype=torch.float64), (0, DIM - 2))
    values, forces = {}, {}
    for method in methods:
        distance = _distance(method)(plane, proxy)[:, 0]
        (slope,) = torch.autograd.grad(distance.sum(), plane)
        values[method] = distance.detach().view(size, size).numpy()
        forces[method] = -slope[:, :2].view(size, size, 2).numpy()
    points = np.array([[PROXY_NORM, 0.0]])
    return {
        "x": side.numpy(),
        "y": side.numpy(),
        "potentials": values,
        "forces": forces,
        "points": points,
        "names": ("κ_z cos(z, p)", "κ_z sin(z, p)", "distance to the proxy at ○"),
    }


# --- 23: the normaliser -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormalizerParams(Params):
    """23_nivmf_normalizer."""

    notebook = "23_nivmf_normalizer"
    paper = "nivmf"

    dims: tuple[int, ...] = (128, 512)  # dimensions for which the paper has a fit
    cosine: float = 0.9  # of the sample whose best concentration is sought


def normalizer(params: NormalizerParams) -> list[RunSpec]:
    """Nothing is trained."""
    return []


def normalizer_table(params: NormalizerParams) -> "pd.DataFrame":
    """The quadratic fit against the exact log C_M, in and outside the range it was made for, the samplers' mean
    cosines, and what the density of a nivMF integrates to."""
    rows = []
    for dim in params.dims:
        at = {"method": "quadratic", "setting": f"dim={dim}"}
        rows += [at | {"metric": name, "value": value} for name, value in _fit_errors(dim, params.cosine).items()]
        optimum = {"metric": "best_concentration", "value": best_concentration(dim, params.cosine, "exact")}
        rows.append({"method": "exact", "setting": f"dim={dim}"} | optimum)
        for method, (kappas, means) in sampler_means(dim, (20.0, 50.0, 200.0, 400.0)).items():
            for kappa, mean in zip(kappas, means):
                where = {"method": method, "setting": f"dim={dim};kappa={kappa:g}"}
                rows.append(where | {"metric": "mean_cosine", "value": mean})
    for jacobian in ("heuristic", "exact"):
        for kappa in SPHERE_CONCENTRATIONS:
            setting = "kappa=" + ",".join(f"{k:g}" for k in kappa)
            value = density_integral(kappa, jacobian)
            rows.append({"method": f"{jacobian} D(K)", "setting": setting, "metric": "integral", "value": value})
    return study_rows(params, rows)


def _log_c(kappa: Tensor, dim: int, method: str) -> Tensor:
    return vmf.log_normalizer(kappa.double(), dim, method)


def _fit_errors(dim: int, cosine: float) -> dict[str, float]:
    fitted = torch.arange(10, 51)
    difference = _log_c(fitted, dim, "quadratic") - _log_c(fitted, dim, "exact")
    relative = difference / _log_c(fitted, dim, "exact")
    far = torch.tensor([200, 400])
    _, linear, quadratic = vmf.QUADRATIC_FITS[dim]
    return {
        "rms_relative_error": 100 * relative.square().mean().sqrt().item(),
        "max_relative_error": 100 * relative.abs().max().item(),
        "mean_squared_error": difference.square().mean().item(),
        "mean_error": difference.mean().item(),
        "error_without_mean": (difference - difference.mean()).abs().max().item(),
        "error_at_200": (_log_c(far, dim, "quadratic") - _log_c(far, dim, "exact"))[0].item(),
        "error_at_400": (_log_c(far, dim, "quadratic") - _log_c(far, dim, "exact"))[1].item(),
        "slope_exceeds_1_at": (1 - linear) / (2 * quadratic),
        "best_concentration": best_concentration(dim, cosine, "quadratic"),
    }


def best_concentration(dim: int, cosine: float, method: str) -> float:
    """The kappa that maximises log C(kappa) + kappa cosine, where the slope of log C is -cosine, by bisection."""
    low, high = torch.tensor(0.0, dtype=torch.float64), torch.tensor(1e6, dtype=torch.float64)
    for _ in range(80):
        middle = ((low + high) / 2).requires_grad_()
        (slope,) = torch.autograd.grad(_log_c(middle, dim, method), middle)
        low, high = (middle.detach(), high) if slope + cosine > 0 else (low, middle.detach())
    return low.item()


def fit_errors(dims: Sequence[int], largest: float = 400.0) -> dict[str, tuple]:
    """Quadratic fit minus exact log C_M, over kappa."""
    kappa = torch.linspace(0, largest, 201, dtype=torch.float64)
    return {
        f"M = {dim}": (kappa.numpy(), (_log_c(kappa, dim, "quadratic") - _log_c(kappa, dim, "exact")).numpy())
        for dim in dims
    }


def normalizer_slopes(dims: Sequence[int], largest: float = 700.0) -> dict[str, tuple]:
    """-d log C_M / d kappa, exactly A_M(kappa) < 1, of the exact function and of the fit."""
    kappa = torch.linspace(0.5, largest, 201, dtype=torch.float64, requires_grad=True)
    found = {}
    for dim in dims:
        for method in ("exact", "quadratic"):
            (slope,) = torch.autograd.grad(_log_c(kappa, dim, method).sum(), kappa)
            found[f"{method}, M = {dim}"] = (kappa.detach().numpy(), -slope.numpy())
    return found


def objectives(dim: int, cosine: float, largest: float = 4000.0) -> dict[str, tuple]:
    """log C(kappa) + kappa cosine, the log likelihood of a sample at this cosine, less its value at kappa = 0."""
    kappa = torch.linspace(0, largest, 201, dtype=torch.float64)
    found = {}
    for method, shown in (("exact", kappa), ("quadratic", kappa[kappa <= 1000])):
        values = _log_c(shown, dim, method) + shown * cosine
        found[f"{method} log C"] = (shown.numpy(), (values - values[0]).numpy())
    return found


def sampler_means(dim: int, kappas: Sequence[float], count: int = 5000, seed: int = 0) -> dict[str, tuple]:
    """Mean cosine of vMF samples with their mode: exact A_M(kappa), our sampler, and the released one."""
    kappa = torch.tensor(list(kappas), dtype=torch.float64)
    mode = F.one_hot(torch.zeros(len(kappa), dtype=torch.int64), dim).double()
    found = {"A_M": (kappa.numpy(), vmf.mean_resultant_length(kappa, dim).numpy())}
    for name, envelope in (("corrected sampler", "exact"), ("released sampler", "released")):
        points = vmf.sample(mode, kappa, count, torch.Generator().manual_seed(seed), envelope)
        found[name] = (kappa.numpy(), points[..., 0].mean(0).numpy())
    return found


SPHERE_MODE = (1.0, 1.0, 1.0)
SPHERE_CONCENTRATIONS = ((20.0, 20.0, 20.0), (20.0, 5.0, 50.0))  # Fig. 2


def _sphere_density(points: Tensor, kappa: Sequence[float], jacobian: str) -> Tensor:
    mode, concentrations = torch.tensor([SPHERE_MODE]).double(), torch.tensor([list(kappa)]).double()
    return losses.nivmf_log_density(points, mode, concentrations, jacobian)[:, 0].exp()


def _on_sphere(longitude: Tensor, height: Tensor) -> Tensor:
    """Points (n, 3) of the unit sphere, the cylinder's area being the sphere's."""
    radius = (1 - height.square()).clamp_min(0).sqrt()
    return torch.stack([radius * longitude.cos(), radius * longitude.sin(), height], 1)


def density_integral(kappa: Sequence[float], jacobian: str, size: int = 600) -> float:
    """Integral over S^2 of the nivMF density with mode (1, 1, 1), midpoint rule on the equal-area cylinder."""
    steps = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    longitude, height = torch.meshgrid(2 * torch.pi * steps, 2 * steps - 1, indexing="ij")
    density = _sphere_density(_on_sphere(longitude.flatten(), height.flatten()), kappa, jacobian)
    return (4 * torch.pi * density.mean()).item()


def density_maps(size: int = 121) -> dict:
    """Fig. 2 as arguments of `plots.field`: densities of a vMF and of a nivMF, the paper's and that with the exact
    Jacobian, over their maxima, on the sphere unrolled."""
    longitude = torch.linspace(-0.7, 2.0, size, dtype=torch.float64)
    height = torch.linspace(-1.0, 1.0, size, dtype=torch.float64)
    x, y = torch.meshgrid(longitude, height, indexing="xy")
    points = _on_sphere(x.flatten(), y.flatten())
    isotropic, concentrations = SPHERE_CONCENTRATIONS
    panels = {
        f"vMF, κ = {isotropic[0]:g}": (isotropic, "exact"),
        "nivMF (Eq. 4), κ = (20, 5, 50)": (concentrations, "heuristic"),
        "nivMF, exact Jacobian": (concentrations, "exact"),
    }
    densities = {title: _sphere_density(points, *chosen).view(size, size) for title, chosen in panels.items()}
    return {
        "x": longitude.numpy(),
        "y": height.numpy(),
        "potentials": {title: (density / density.max()).numpy() for title, density in densities.items()},
        "points": np.array([[math.atan2(SPHERE_MODE[1], SPHERE_MODE[0]), SPHERE_MODE[2] / math.hypot(*SPHERE_MODE)]]),
        "names": ("longitude (radians)", "height on the sphere", "density / its maximum; ○: μ"),
    }


NOTEBOOKS = {
    DistancesParams.notebook: (DistancesParams, distances),
    NormalizerParams.notebook: (NormalizerParams, normalizer),
}
