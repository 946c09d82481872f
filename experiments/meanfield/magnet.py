"""Notebook 30: the infinite-range ferromagnet (Sec. 3.1, A.1, A.2), and the same picture for embeddings.

Here J = 1. The Monte Carlo is exact at every N, by Eq. 12: given a field the spins are independent, and given the spins
the field is normal about their mean with variance T / (J N). Drawing both in turn samples the Gibbs distribution.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from dmlrepro import vmf
from dmlrepro.losses import mean_field as losses
from experiments.analysis import tables
from experiments.meanfield.methods import MARGINS, SHARPNESS
from experiments.params import Count, Positive, parameters
from experiments.studies import study_rows
from experiments.study import Study

CRITICAL = 1 / 3  # T_c / J
TEMPERATURES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.33, 0.36, 0.4, 0.45, 0.5, 0.6)
ALPHAS = (0.01, 20.0)  # of MFCWMS: the paper's, and its choice for a transformer
SPREAD, SAMPLES = 0.2, 20  # of a class, where the other of the two varies
# How far centres scatter about a common direction: apart they fulfil the constraint of Eq. 7, crowded they do not
CENTERS = {"apart": 100.0, "crowded": 0.6}


def order_parameter(temperature: float) -> float:
    """The largest solution of M = L(M / T), where L(x) = coth x - 1 / x, the mean cosine of a spin with a field, is
    that of a vMF in three dimensions; 0 from T_c on."""
    from scipy import optimize

    if temperature >= CRITICAL:
        return 0.0

    def excess(order: float) -> float:
        return vmf.mean_resultant_length(torch.tensor(order / temperature, dtype=torch.float64), 3).item() - order

    return optimize.brentq(excess, 1e-9, 1.0)


def simulate(spins: int, temperatures: Tensor, sweeps: int, chains: int, seed: int = 0) -> Tensor:
    """Mean |sum of the spins| / N over the later half of 2 x `sweeps` sweeps: (temperatures, chains), from order."""
    generator = torch.Generator().manual_seed(seed)
    temperature = temperatures[:, None].expand(-1, chains).flatten()
    mean = F.one_hot(torch.zeros(len(temperature), dtype=torch.int64), 3).double()
    total = torch.zeros(len(temperature), dtype=torch.float64)
    for sweep in range(2 * sweeps):
        noise = torch.randn(mean.shape, dtype=torch.float64, generator=generator)
        field = mean + (temperature / spins).sqrt()[:, None] * noise
        mean = _mean_spin(field / temperature[:, None], spins, generator)
        if sweep >= sweeps:
            total += mean.norm(dim=1)
    return (total / sweeps).view(len(temperatures), chains)


def _mean_spin(fields: Tensor, spins: int, generator: torch.Generator) -> Tensor:
    """The mean of so many spins drawn with density exp(field . S), of each field (B, 3): (B, 3)."""
    strength = fields.norm(dim=1)
    uniform = torch.rand(2, spins, len(fields), dtype=torch.float64, generator=generator)
    # the cosine with the field has the density exp(strength cosine): its distribution function is inverted
    cosine = 1 + torch.log(uniform[0] + (1 - uniform[0]) * torch.exp(-2 * strength)) / strength
    sine, angle = (1 - cosine.square()).clamp_min(0).sqrt(), 2 * math.pi * uniform[1]
    along = F.normalize(fields, dim=1)
    other = F.one_hot(along.abs().argmin(1), 3).double()
    across = F.normalize(torch.linalg.cross(along, other), dim=1)
    parts = (cosine, along), (sine * angle.cos(), across), (sine * angle.sin(), torch.linalg.cross(along, across))
    return sum(part.mean(0)[:, None] * axis for part, axis in parts)


def classes_of(
    centers: str, spread: float, samples: int, seed: int, classes: int = 8, dim: int = 32
) -> tuple[Tensor, Tensor]:
    """Unit embeddings (N, D) around centres as CENTERS has them, and labels (N,)."""
    generator = torch.Generator().manual_seed(seed)
    common = F.normalize(torch.randn(dim, dtype=torch.float64, generator=generator), dim=0)
    noise = torch.randn(classes, dim, dtype=torch.float64, generator=generator) / dim**0.5
    middles = F.normalize(common + CENTERS[centers] * noise, dim=1)
    around = torch.randn(classes, samples, dim, dtype=torch.float64, generator=generator) / dim**0.5
    embeddings = F.normalize(middles[:, None] + spread * around, dim=2).flatten(0, 1)
    return embeddings, torch.arange(classes).repeat_interleave(samples)


def class_means(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Directions (C, D) of the mean unit embeddings of the classes 0 to C - 1."""
    unit = F.normalize(embeddings, dim=1)
    sums = unit.new_zeros(int(labels.max()) + 1, unit.shape[1]).index_add_(0, labels, unit)
    return F.normalize(sums, dim=1)


def field_offset(fields: Tensor, embeddings: Tensor, labels: Tensor) -> float:
    """Mean distance of fields (C, D) from their class means, over that of the embeddings from theirs, on the sphere."""
    means = class_means(embeddings, labels)
    spread = (F.normalize(embeddings, dim=1) - means[labels]).norm(dim=1).mean()
    return ((F.normalize(fields, dim=1) - means).norm(dim=1).mean() / spread).item()


def best_fields(
    embeddings: Tensor, labels: Tensor, loss: Callable[..., Tensor], steps: int = 100, start: Tensor | None = None
) -> Tensor:
    """Mean fields (C, D) that minimise loss(embeddings, labels, fields), from `start`, None: from the class means."""
    fields = (class_means(embeddings, labels) if start is None else start.clone()).requires_grad_()
    optimizer = torch.optim.LBFGS([fields], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(embeddings, labels, fields)
        value.backward()
        return value

    optimizer.step(closure)
    return fields.detach()


def loss_pairs() -> dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]]:
    """{name: (loss(embeddings, labels, mean fields), loss(embeddings, labels))} as printed, Eq. 8 and Eq. 6 for MFCont,
    Eq. 10 and Eq. 9 for MFCWMS at ALPHAS. Values differ by constants, of a class with itself and among fields."""
    contrastive = losses.mean_field_contrastive, losses.class_balanced_contrastive
    similarity = losses.mean_field_class_wise_multi_similarity, losses.class_wise_multi_similarity
    cases: dict[str, tuple[Any, dict[str, Any]]] = {"MFCont": (contrastive, MARGINS)}
    cases |= {f"MFCWMS;alpha={alpha:g}": (similarity, SHARPNESS | {"alpha": alpha}) for alpha in ALPHAS}
    return {
        name: (partial(with_fields, **options, averaging="paper"), partial(with_samples, **options))
        for name, ((with_fields, with_samples), options) in cases.items()
    }


def gradient_cosines(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    """What the embeddings feel when mean fields, here the class means, stand for the other samples: by loss, the cosine
    of the gradients of Eqs. 8 and 10 with those of Eqs. 6 and 9."""
    cosines, points = {}, embeddings.clone().requires_grad_()
    for name, (with_fields, with_samples) in loss_pairs().items():
        values = with_fields(points, labels, class_means(embeddings, labels)), with_samples(points, labels)
        ours, exact = (torch.autograd.grad(value, points)[0].flatten() for value in values)
        nothing = not (ours.any() or exact.any())  # all samples lie within the margins of both losses
        cosines[name] = 1.0 if nothing else F.cosine_similarity(ours, exact, dim=0).item()
    return cosines


def magnet_table(params: Any) -> pd.DataFrame:
    """The order parameter against temperature, by mean field and by Monte Carlo; then, of embeddings, offsets of the
    best mean fields and what the approximation costs, against spread and samples per class."""
    rows: list[tuple] = [
        ("mean field", f"T={temperature:g}", 0, "order_parameter", order_parameter(temperature))
        for temperature in params.temperatures
    ]
    temperatures = torch.tensor(params.temperatures, dtype=torch.float64)
    for spins in params.spins:
        order_parameters = simulate(spins, temperatures, params.sweeps, params.seeds).tolist()
        for temperature, chains in zip(params.temperatures, order_parameters):
            setting = f"N={spins};T={temperature:g}"
            rows += [("Monte Carlo", setting, chain, "order_parameter", value) for chain, value in enumerate(chains)]
    cases = [(spread, SAMPLES) for spread in params.spreads] + [(SPREAD, samples) for samples in params.samples]
    for centers, (spread, samples), seed in itertools.product(CENTERS, dict.fromkeys(cases), range(params.seeds)):
        embeddings, labels = classes_of(centers, spread, samples, seed)
        cosines = gradient_cosines(embeddings, labels)
        for name, (loss, _) in loss_pairs().items():
            method, _, setting = f"{name};centers={centers};spread={spread:g};samples={samples}".partition(";")
            rows.append((method, setting, seed, "gradient_cosine", cosines[name]))
            offset = field_offset(best_fields(embeddings, labels, loss), embeddings, labels)
            rows.append((method, setting, seed, "field_offset", offset))
    names = ("method", "setting", "seed", "metric", "value")
    return study_rows(params, [dict(zip(names, row)) for row in rows])


def curves(table: pd.DataFrame, metric: str, x: str, **fixed: str | float) -> dict[str, tuple]:
    """A metric over the setting `x` where other settings are `fixed`: {method and what is left of its setting: (x,
    mean, lowest, highest over seeds)}, for `charts.lines`."""
    values: dict[str, dict[float, list[float]]] = {}
    for row in table[table["metric"] == metric].itertuples():
        setting = tables.settings_of(row.setting)
        if fixed.items() <= setting.items():
            name = ", ".join([row.method, *(f"{key} = {setting[key]:g}" for key in setting if key not in (x, *fixed))])
            values.setdefault(name, {}).setdefault(setting[x], []).append(row.value)
    return {
        name: tuple(zip(*((level, np.mean(of), min(of), max(of)) for level, of in sorted(by_level.items()))))
        for name, by_level in values.items()
    }


Magnet = Study(
    "30_meanfield_magnet",
    parameters(  # `seeds` is the number of Monte-Carlo chains and of drawn sets of embeddings
        spins=(tuple[Count, ...], (10, 100, 1000)),  # N
        temperatures=(tuple[Positive, ...], TEMPERATURES),  # T / J
        sweeps=Count,  # of each chain after as many again that are thrown away
        spreads=(tuple[Positive, ...], (0.05, 0.1, 0.2, 0.4, 0.8)),  # root mean square distance from a class's centre
        samples=(tuple[Count, ...], (2, 5, 20, 80)),  # per class
    ),
    paper="meanfield",
    profiles={"*": {"sweeps": 3000, "seeds": 10}, "quick": {"sweeps": 150, "seeds": 3}},
    references={"spreads": (SPREAD,), "samples": (SAMPLES,)},
    tabulate=lambda finished, params: magnet_table(params),
)
