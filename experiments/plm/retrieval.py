"""Notebook 50: retrieval with PLM and its unsupervised baselines (Table 1)."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dmlrepro.losses.piecewise_linear import distances, linear_neighborhoods, pieces_and_similarity
from experiments.analysis.claims import START
from experiments.methods import spec_of
from experiments.params import Count, Params
from experiments.plm.claims import TESTS
from experiments.plm.methods import METHODS, PUBLISHED, PlmOptions, plm_study, unlabelled_runs
from experiments.studies import measured
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

DELTA = {"delta": PUBLISHED["loss.delta"].value}
LOOKED_AT = 1000  # unseen images whose distances are compared
AS_PUBLISHED = "settings=published"
# Of the loss, what decides which distances it asks for
ASKING = ("k", "dim", "quality", "n_alpha", "n_beta", "delta")


class PlmRetrievalParams(PlmOptions, Params):
    """The parameters of notebook 50."""

    methods: tuple[str, ...]
    clusters: Count  # of the pseudo-labels


def retrieval(params: PlmRetrievalParams) -> list[RunSpec]:
    """Every method, every seed, beside the untrained network's features; where the parameters have another delta than
    the paper, PLM also with its published settings."""
    specs = unlabelled_runs(params.methods, params)
    if "PLM" in params.methods and params.delta != DELTA["delta"]:
        specs += unlabelled_runs(["PLM"], params.untuned(), setting=AS_PUBLISHED, loss_options=DELTA)
    return specs


def distances_of(run: RunResult, params: PlmRetrievalParams) -> list:
    """How far apart a run leaves images of unseen classes, and how far apart PLM wants them to be.

    On the unit sphere, means over up to LOOKED_AT images: `nearest_distance` to the nearest image, `mean_distance` to
    any. For "random head", with which PLM begins, `nearest_asked` and `mean_asked`: what Eq. 6 asks for as PLM
    is here, and in setting AS_PUBLISHED as it is in the paper.
    """
    if run.spec.method != START:
        return [measured(run, apart_of)]
    return [measured(run, apart_of, setting, asking=options) for setting, options in asking(params).items()]


def asking(params: PlmRetrievalParams) -> dict[str, dict[str, Any]]:
    """The options ASKING of PLM's runs by setting: as they are here, and as published where these are others."""
    here = spec_of(METHODS["PLM"], params).loss_options
    as_published = spec_of(METHODS["PLM"], params.untuned(), loss_options=DELTA).loss_options
    every = {"": here} | ({} if params.delta == DELTA["delta"] else {AS_PUBLISHED: as_published})
    return {setting: {name: options[name] for name in ASKING} for setting, options in every.items()}


@measurement("plm.separation")
def apart_of(run: RunResult, asking: Mapping[str, float] | None = None) -> dict[str, float]:
    """`apart` of a run's test embeddings."""
    return apart(run.embeddings, asking)


def apart(embeddings: Tensor, asking: Mapping[str, float] | None = None) -> dict[str, float]:
    """`nearest_distance` and `mean_distance` of embeddings (N, D); with options ASKING of the loss also what Eq. 6,
    delta (1 - s), asks for of the same pairs where these are the momentum encoder's, `nearest_asked`, `mean_asked`."""
    points = _looked_at(embeddings)
    matrices = {"distance": distances(points, points)}
    if asking is not None:
        matrices["asked"] = asked(points, **asking)
    itself = torch.eye(len(points), dtype=torch.bool)
    nearest = matrices["distance"].masked_fill(itself, math.inf).argmin(1, keepdim=True)
    return {f"nearest_{name}": matrix.gather(1, nearest).mean().item() for name, matrix in matrices.items()} | {
        f"mean_{name}": matrix[~itself].mean().item() for name, matrix in matrices.items()
    }


def asked(points: Tensor, delta: float, **options: Any) -> Tensor:
    """(N, N) distances that Eq. 6 asks of unit vectors (N, D) that are the momentum encoder's, too."""
    return delta * (1 - pieces_and_similarity(points, **options)[2])


def _looked_at(embeddings: Tensor) -> Tensor:
    some = torch.randperm(len(embeddings), generator=torch.Generator().manual_seed(0))[:LOOKED_AT]
    return F.normalize(embeddings[some].double(), dim=1)


def asked_and_present(embeddings: Tensor, every: Iterable[Mapping[str, float]]) -> dict[str, tuple]:
    """How pairs of embeddings (N, D) of one network, up to LOOKED_AT of them, are distributed over distances, and over
    those that Eq. 6 asks of them with some options ASKING: {name: (distances, percent of pairs)}, for `charts.lines`.
    """
    points = _looked_at(embeddings)
    first, second = torch.triu_indices(len(points), len(points), 1)
    matrices = {"present": distances(points, points)}
    matrices |= {f"asked, δ = {options['delta']:.3g}": asked(points, **options) for options in every}
    edges = np.linspace(0, 2, 41)
    return {
        name: ((edges[:-1] + edges[1:]) / 2, 100 * np.histogram(matrix[first, second], edges)[0] / len(first))
        for name, matrix in matrices.items()
    }


def toy_manifold(number: int = 90, noise: float = 0.006, seed: int = 0) -> np.ndarray:
    """Points (number, 2) of a curve that crosses itself, an eight."""
    angles = 2 * math.pi * torch.arange(number, dtype=torch.float64) / number
    curve = torch.stack([angles.cos(), angles.sin() * angles.cos()], dim=1)
    drawn = torch.randn(curve.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (curve + noise * drawn).numpy()


def toy_pieces(points: np.ndarray, k: int = 9, quality: float = 0.9) -> np.ndarray:
    """Ends (P, 2, 2) of the lines, m = 1, that cover points (N, 2): always that which covers most of what is left."""
    places = torch.from_numpy(points)
    bases, members = linear_neighborhoods(places, k, 1, quality)
    left, ends = torch.ones(len(places), dtype=torch.bool), []
    while left.any():
        i = int((members & left).sum(1).argmax())
        along = (places[members[i]] - places[i]) @ bases[i, 0]
        ends.append(places[i] + torch.stack([along.min(), along.max()])[:, None] * bases[i, 0])
        left &= ~members[i]
    return torch.stack(ends).numpy()


DISTANCES = ("mean_distance", "mean_asked", "nearest_distance", "nearest_asked")
Retrieval = plm_study(
    "50_plm_retrieval",
    PlmRetrievalParams,
    retrieval,
    profiles={
        "*": {"methods": tuple(METHODS)},
        "quick": {"methods": ("untrained", "random head", "PLM", "STML-style", "NT-Xent", "K-Means")},
    },
    measures=distances_of,
    claims=TESTS,
)
