"""Notebook 22: the seven distances, and what the embedding's norm does in them (Figs 3, 5, Table 4, Supp. F). Notebook
25: are embeddings more diverse with distributions for proxies? (Table 5)"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from dmlrepro import metrics
from dmlrepro.losses import nivmf as losses
from dmlrepro.retrieval import MEASURES
from experiments.analysis.tables import START
from experiments.methods import pick, runs_of
from experiments.nivmf.methods import DISTANCES, METHODS, NivmfOptions, nivmf_ablation
from experiments.params import Count, Whole, parameters
from experiments.studies import evaluated_labels, measured, study_rows, training_embeddings, with_measures
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

# At 128 dimensions, where the released code of all but KL uses the printed fit; those of nivMF differ in that alone
FORMS = {
    "EL-vMF": ("corrected", "printed"),
    "B-vMF": ("corrected", "printed"),
    "KL-vMF": ("corrected", "printed", "released"),
    "EL-nivMF": ("corrected", "printed", "released"),
}


def distances(params: Any) -> list[RunSpec]:
    """Every distance; then, with few steps, the printed and the released form of those that have one."""
    specs = runs_of(pick(METHODS, ("untrained", *params.methods)), params)
    for method, variants in FORMS.items():
        for variant in variants if params.variant_steps and method in params.methods else ():
            budget = {"embedding_size": params.variant_dim, "steps": params.variant_steps, "epochs": None}
            setting, form = f"variant={variant}", {"variant": variant}
            specs += runs_of([METHODS[method]], params, setting=setting, loss_options=form, **budget)
    return specs


def distances_table(finished: Iterable[RunResult], params: Any) -> pd.DataFrame:
    exact = study_rows(params, exact_rows(range(params.draws)))
    return pd.concat([with_measures(finished, euclidean_of, params), exact], ignore_index=True)


def euclidean_of(run: RunResult, params: Any) -> list:
    if run.spec.method not in (*DISTANCES, START) or run.spec.setting:
        return []
    return [measured(run, _euclidean_retrieval, "retrieval=euclidean")]


@measurement("nivmf.euclidean_retrieval")
def _euclidean_retrieval(run: RunResult) -> dict[str, float]:
    labels, query, gallery = evaluated_labels(run)
    points: Tensor = run.embeddings
    how: dict[str, Any] = {"distance": "euclidean", "measures": MEASURES}
    if not (query & gallery).all():
        how |= {"gallery": points[gallery], "gallery_labels": labels[gallery]}
    return metrics.retrieval(points[query], labels[query], run.spec.ks, **how)


def diversity(params: Any) -> list[RunSpec]:
    """The untrained network and some distances, all at the network's learning rate of the parameters, whatever their
    searches found: a network that moves farther is less diverse."""
    rates = {name: rate for name, rate in params.spec_options().items() if name in ("lr", "head_lr")}
    return runs_of(pick(METHODS, ("untrained", *params.methods)), params, **rates)


def both_diversities(run: RunResult, params: Any) -> list:
    """The diversities of Table 5 of a run's training images; of the test images beside them."""
    if run.spec.method not in params.methods:
        return []
    return [measured(run, diversities_of, split="train"), measured(run, diversities_of, "images=test", split="test")]


@measurement("nivmf.diversity")
def diversities_of(run: RunResult, split: str) -> dict[str, float]:
    if split == "test":
        embeddings, labels = run.embeddings, evaluated_labels(run)[0]
    else:
        _, embeddings, labels = training_embeddings(run)
    return {
        "class_diversity": metrics.class_diversity(embeddings, labels),
        "class_diversity_across": metrics.class_diversity(embeddings, labels, "across"),
        "feature_diversity": metrics.feature_diversity(embeddings),
    }


# At these temperatures the distances to proxies of norm 10 have logits of like slope where the embedding's norm is 10.
COMPARABLE = {"Cosine": 1 / 10, "L2": 20.0, "EL-vMF": 1.0, "B-vMF": 1.0, "KL-vMF": 1.0}
PROXY_NORM = 10.0  # as in Fig. 3
DIM, CLASSES = 64, 20
PAPER_DIM = 512  # to which the growth of the gradient is sensitive: a concentration counts against the dimension


def _distance(method: str) -> Callable[[Tensor, Tensor], Tensor]:
    return getattr(losses, f"{DISTANCES[method]}_distance")


def _logits(method: str, embeddings: Tensor, proxies: Tensor) -> Tensor:
    """-d / t of embeddings (B, M) to proxies (C, M) at the temperature of COMPARABLE: (B, C)."""
    return -_distance(method)(embeddings, proxies) / COMPARABLE[method]


def _directions(count: int, generator: torch.Generator, dim: int = DIM) -> Tensor:
    return F.normalize(torch.randn(count, dim, dtype=torch.float64, generator=generator), dim=1)


def exact_rows(seeds: Iterable[int]) -> list[dict]:
    """What Sec. 3.5 and Supp. F say of the embedding's norm, on random proxies and embeddings, a row per draw: metrics
    as in `claims`. gradient_error has p's own probability where Eqs. 8 and 9 print that of p*; growth_over_l2 is at the
    paper's dimension, and with dim=64 at that of the others."""
    rows = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        proxies, (direction,) = PROXY_NORM * _directions(CLASSES, generator), _directions(1, generator)
        varied = proxies * (0.5 + torch.rand(CLASSES, 1, dtype=torch.float64, generator=generator))
        norm = 1 + 49 * torch.rand((), dtype=torch.float64, generator=generator)
        target = int(torch.randint(CLASSES, (), generator=generator))
        for method in COMPARABLE:
            values = {"norm_sensitivity": _norm_sensitivity(method, norm, direction, varied)}
            values["entropy_slope"] = _entropy_slope(method, direction, proxies)
            if method in ("L2", "Cosine"):
                values["gradient_error"] = _gradient_error(method, norm * direction, varied, target)
            rows += [{"method": method, "seed": seed, "metric": name, "value": value} for name, value in values.items()]
        rows += _growths(seed, PAPER_DIM) + _growths(seed, DIM, f";dim={DIM}")
    return rows


def _growths(seed: int, dim: int, setting: str = "") -> list[dict]:
    generator = torch.Generator().manual_seed(seed)
    proxies, (direction,) = PROXY_NORM * _directions(CLASSES, generator, dim), _directions(1, generator, dim)
    scales = pd.DataFrame({name: gradient_scale(name, direction, proxies) for name in COMPARABLE}, GROWN.tolist())
    growths = scales[1:] / scales.iloc[0]
    over_l2 = growths.div(growths.pop("L2"), axis=0)
    common = {"seed": seed, "metric": "growth_over_l2"}
    return [
        common | {"method": name, "setting": f"norm={norm:g}{setting}", "value": value}
        for (name, norm), value in over_l2.unstack().items()
    ]


def logits_by_cosine(method: str, embedding: Tensor, proxies: Tensor) -> tuple[Tensor, Tensor]:
    """-d / t of an embedding (M,) to proxies (C, M) as a differentiable function of its cosines to them, both (C,);
    each proxy turns in the plane it spans with the embedding, at constant norm."""
    mode, norms = F.normalize(embedding, dim=0), proxies.norm(dim=1, keepdim=True)
    cosines = (F.normalize(proxies, dim=1) @ mode).requires_grad_()
    aside = F.normalize(proxies - (proxies @ mode)[:, None] * mode, dim=1)
    turned = norms * (cosines[:, None] * mode + (1 - cosines.square()).sqrt()[:, None] * aside)
    return _logits(method, embedding[None], turned)[0], cosines


def _gradient_error(method: str, embedding: Tensor, proxies: Tensor, target: int) -> float:
    posterior = _logits(method, embedding[None], proxies)[0].softmax(0)
    printed = (posterior - F.one_hot(torch.tensor(target), CLASSES)) / COMPARABLE[method]  # Eq. 8
    if method == "L2":
        printed = printed * 2 * proxies.norm(dim=1) * embedding.norm()  # Eq. 9
    logits, cosines = logits_by_cosine(method, embedding, proxies)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor(target)), cosines)
    return ((gradient - printed).abs().max() / printed.abs().max()).item()


def _norm_sensitivity(method: str, norm: Tensor, direction: Tensor, proxies: Tensor) -> float:
    def logits(log_norm: Tensor) -> Tensor:
        return _logits(method, (log_norm.exp() * direction)[None], proxies)[0]

    slope = torch.autograd.functional.jacobian(logits, norm.log())
    return (slope.abs().max() / logits(norm.log()).abs().max()).item()


NORMS = torch.logspace(0, 3, 25, dtype=torch.float64)
GROWN = torch.logspace(0, 3, 4, dtype=torch.float64)  # 1, to which growth is relative, 10, 100 and 1000


def _entropy_slope(method: str, direction: Tensor, proxies: Tensor) -> float:
    """Rank correlation of the norm with the entropy in nats of the class posterior, at embeddings of one direction;
    entropies that differ by rounding are equal, as all of Cosine's are."""
    from scipy import stats

    log_posterior = _logits(method, NORMS[:, None] * direction, proxies).log_softmax(1)
    entropies = -(log_posterior.exp() * log_posterior).sum(1).round(decimals=9)
    constant = bool((entropies == entropies[0]).all())
    return 0.0 if constant else float(stats.spearmanr(NORMS, entropies).statistic)


def gradient_scale(method: str, direction: Tensor, proxies: Tensor) -> Tensor:
    """|d logit / d cos| at each norm of GROWN, mean over proxies: the factor before the probabilities in Eqs. 8, 9."""
    scales = []
    for norm in GROWN:
        logits, cosines = logits_by_cosine(method, norm * direction, proxies)
        scales.append(torch.autograd.grad(logits.sum(), cosines)[0].mean())
    return torch.stack(scales)


def distance_maps() -> dict:
    """Fig. 3 as arguments of `planes.field`: distances of an embedding to a proxy of norm 10 over the plane that both
    span, and the direction in which each moves the embedding."""
    side = torch.linspace(-25.0, 25.0, 61, dtype=torch.float64)
    x, y = torch.meshgrid(side, side, indexing="xy")
    plane = F.pad(torch.stack([x.flatten(), y.flatten()], 1), (0, DIM - 2)).requires_grad_()
    proxy = F.pad(torch.tensor([[PROXY_NORM, 0.0]], dtype=torch.float64), (0, DIM - 2))
    values, forces = {}, {}
    for method in ("Cosine", "L2", "B-vMF"):
        distance = _distance(method)(plane, proxy)[:, 0]
        (slope,) = torch.autograd.grad(distance.sum(), plane)
        values[method] = distance.detach().view(61, 61).numpy()
        forces[method] = -slope[:, :2].view(61, 61, 2).numpy()
    return {
        **dict.fromkeys(("x", "y"), side.numpy()),
        "potentials": values,
        "forces": forces,
        "points": np.array([[PROXY_NORM, 0.0]]),
        "titles": ("κ_z cos(z, p)", "κ_z sin(z, p)", "distance to the proxy at ○"),
    }


Distances = nivmf_ablation(
    "22_nivmf_distances",
    parameters(
        NivmfOptions,
        methods=tuple[str, ...],
        variant_dim=(Count, 128),  # of the three-variant comparison: the paper's fits exist for 128 and 512
        variant_steps=Whole,  # steps of each of its runs; 0: none
        draws=(Count, 20),  # random proxies and embeddings of the exact statements
    ),
    distances,
    distances_table,
    euclidean_of,
    profiles={
        "*": {"methods": tuple(DISTANCES), "variant_steps": 100},
        "quick": {"variant_steps": 20, "methods": ("Cosine", "EL-vMF", "EL-nivMF")},
    },
)
Diversity = nivmf_ablation(
    "25_nivmf_diversity",
    parameters(NivmfOptions, methods=(tuple[str, ...], ("Cosine", "EL-vMF", "EL-nivMF"))),
    diversity,
    measures=both_diversities,
)
