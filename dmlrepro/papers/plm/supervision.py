"""Notebook 51: how well pieces, clusters and random walks know the classes, before any training (Table 2)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from dmlrepro import clusters, metrics
from dmlrepro.evidence import results
from dmlrepro.evidence.claims import START
from dmlrepro.evidence.stored import Numbers
from dmlrepro.losses.piecewise_linear import pieces_and_similarity
from dmlrepro.papers.plm.claims import TESTS
from dmlrepro.papers.plm.methods import PUBLISHED, PlmParams, unlabelled_runs
from dmlrepro.papers.studies import evaluated_labels, scored
from dmlrepro.papers.study import Study
from dmlrepro.training import records
from dmlrepro.training.protocols import Scored
from dmlrepro.training.spec import RunSpec

CLUSTERED = {"K-Means": clusters.kmeans, "Hierarchical": clusters.hierarchical, "Random Walk": clusters.random_walk}


@dataclass(frozen=True)
class SupervisionParams(PlmParams):
    """The parameters of notebook 51."""

    notebook = "51_plm_supervision_quality"
    overrides: ClassVar = {
        profile: values | {"images": {"quick": 1200, "small": 3000, "paper": 6000}[profile]}
        for profile, values in PlmParams.overrides.items()
    }
    positive: ClassVar = (*PlmParams.positive, "images", "k")

    images: int | None = None  # at most so many test images are compared, whole classes
    k: int = PUBLISHED["loss.k"].value  # neighbours among which a piece is grown
    dim: int = PUBLISHED["loss.dim"].value
    quality: float = PUBLISHED["loss.quality"].value


def supervision(params: SupervisionParams) -> list[RunSpec]:
    """The network before training: its features are all that is looked at."""
    return [run for run in unlabelled_runs(["untrained"], params) if run.method != START]


def supervision_table(finished: Iterable, params: SupervisionParams) -> pd.DataFrame:
    """Label purity and correlation with the ground truth, fractions, of every way to supervise without labels.

    There are as many clusters as classes, which favours clusters: nobody without labels knows that number. Two controls
    beside Table 2: "nearest" are as many nearest neighbours of each point as its piece has members, "cosine" is the
    similarity of the features themselves, continuous as PLM's.
    """
    return results.tidy([each for run in finished for each in ways_of(run, params)], params)


def ways_of(run, params: SupervisionParams) -> list[Scored]:
    """The rows of `supervision_table` that an untrained network gives."""
    how = {name: getattr(params, name) for name in ("k", "dim", "quality")}
    return [_of(run, *each) for each in records.derived([run], _quality, images=params.images, **how)]


def _quality(run, images: int, **how) -> list[tuple[str, dict[str, float]]]:
    labels = evaluated_labels(run)[0]
    some = labels < labels.unique()[_classes_within(labels, images) - 1] + 1
    return quality_of(run.embeddings[some], labels[some], seed=run.spec.seed, **how)


def quality_of(
    features: Tensor, labels: Tensor, k: int, dim: int, quality: float, seed: int = 0
) -> list[tuple[str, dict[str, float]]]:
    """(method, {label_purity, gt_correlation, members}) on features (N, D) with labels (N,)."""
    unit = F.normalize(features.double(), dim=1)
    _, members, similarity = pieces_and_similarity(unit, k, dim, quality)
    sizes = members.sum(1)
    near = torch.cat([torch.arange(len(unit))[:, None], metrics.nearest(unit, k)], dim=1)
    nearest = torch.zeros_like(members).scatter_(1, near, torch.arange(k + 1) < sizes[:, None])
    pieces = {
        "label_purity": metrics.label_purity(members, labels),
        "gt_correlation": metrics.similarity_correlation(similarity, labels),
        "members": sizes.double().mean().item(),
    }
    rows = [("PLM", pieces), ("nearest", {"label_purity": metrics.label_purity(nearest, labels)})]
    rows.append(("cosine", {"gt_correlation": metrics.similarity_correlation(unit @ unit.T, labels)}))
    for name, function in CLUSTERED.items():
        groups = function(unit, len(labels.unique()), seed)
        same = (groups[:, None] == groups).double()
        values = {"label_purity": metrics.label_purity(groups, labels)}
        rows.append((name, values | {"gt_correlation": metrics.similarity_correlation(same, labels)}))
    walk = metrics.similarity_correlation(clusters.random_walk_similarity(unit), labels)
    return [*rows, ("random walk, continuous", {"gt_correlation": walk})]


def _classes_within(labels: Tensor, images: int) -> int:
    """How many of the first classes have at most so many images together, at least two."""
    counts = labels.unique(return_counts=True)[1].cumsum(0)
    return max(int((counts <= images).sum()), 2)


def _of(run, method: str, values: dict[str, float]) -> Scored:
    row = scored(run, values)
    return Scored(run.spec.replace(method=method, protocol=""), row.dataset, row.rows)  # nothing is trained


# --- what was found ---------------------------------------------------------------------------------------------------


def _members(numbers: Numbers) -> str:
    members, free = numbers.mean("PLM", "members"), PUBLISHED["loss.dim"].value + 1
    chosen = f"admits {members - free:.2f} more" if members > free + 0.005 else "admits nobody else"
    return (
        f"A piece has {members:.1f} members on average; m + 1 = {free} points fit whatever the data, and the "
        f"threshold T {chosen}."
    )


Supervision = Study(SupervisionParams, supervision, supervision_table, ways_of, claims=TESTS, findings=(_members,))
