"""Notebook 50: retrieval with PLM and its unsupervised baselines (Table 1)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from dmlrepro.evidence.stored import Numbers, agrees
from dmlrepro.losses.piecewise_linear import linear_neighborhoods
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.plm.methods import BEFORE, METHODS, OWN, PlmTrainingParams, learns, unlabelled_runs
from dmlrepro.training.spec import RunSpec


@dataclass(frozen=True)
class PlmRetrievalParams(PlmTrainingParams):
    """The parameters of notebook 50."""

    notebook = "50_plm_retrieval"
    positive: ClassVar = (*PlmTrainingParams.positive, "clusters")

    methods: tuple[str, ...] = tuple(METHODS)
    clusters: int | None = None  # of the pseudo-labels


def retrieval(params: PlmRetrievalParams) -> list[RunSpec]:
    """Every method, every seed, beside the untrained network's features."""
    return unlabelled_runs(params.methods, params)


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


# --- what was found ---------------------------------------------------------------------------------------------------


def _place(numbers: Numbers) -> str:
    first, *rest = numbers.ranked(OWN)
    rival = rest[0] if first == "PLM" else first
    return (
        f"{first} comes first of {len(rest) + 1} methods without labels, {agrees(first == 'PLM')}, whose Table 1 has "
        f"PLM first: PLM {numbers.against('PLM', rival)} of {rival}."
    )


def _above(numbers: Numbers) -> str:
    trained = numbers.ranked(OWN)
    above = [name for name in trained if numbers.mean(name) > max(map(numbers.mean, BEFORE))]
    return (
        f"Of {len(trained)} methods {len(above)} end above both the features before training and their random "
        f"projection: {', '.join(above) or 'none'}."
    )


def _claimed(numbers: Numbers) -> str:
    said = [f"{rival} {numbers.gap('PLM', rival)}" for rival in ("STML-style", "Hierarchical")]
    return f"Against the two methods that the paper compares itself with, R@1 differs thus: {'; '.join(said)}."


def _momentum(numbers: Numbers) -> str:
    return (
        "The paper does not say which of its two networks is evaluated; here it is the trained one. The momentum "
        f"network has {numbers.against('PLM;network=teacher', 'PLM')}."
    )


FINDINGS = (learns, _place, _above, _claimed, _momentum)
NOTEBOOKS = [Notebook(PlmRetrievalParams, retrieval, findings=FINDINGS)]
