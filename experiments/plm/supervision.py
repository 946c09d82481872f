"""Notebook 51: how well pieces, clusters and random walks know the classes, before any training (Table 2).

Nothing is trained, and most ways to supervise draw nothing: what could turn an answer are other images. So where there
are enough seeds for an interval, seed s leaves out the s-th of n parts of the classes. With the quality q of all
classes, q_s of those left, and m the mean of q_s over the seeds, its value is q + (n - 1) (m - q_s), the jackknife's
pseudo-value (Tukey, 1958) without the correction of a bias: the values' mean is q, and their interval one over classes.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from dmlrepro import metrics
from dmlrepro.losses.piecewise_linear import pieces_and_similarity
from experiments.analysis import results, statistics, tables
from experiments.params import Count, Number, Whole, parameters
from experiments.plm.methods import PUBLISHED, plm_study, unlabelled_runs
from experiments.studies import evaluated_labels, scored
from experiments.training import records, runs
from experiments.training.algorithms import pseudo_labels as clusters

Qualities = list[tuple[str, dict[str, float]]]  # (way to supervise, {measure: value})
CLUSTERED = {"K-Means": clusters.kmeans, "Hierarchical": clusters.hierarchical, "Random Walk": clusters.random_walk}
STARTS = {"K-Means": 20}  # random starts, whose mean counts: the jackknife would multiply the scatter of a single one


def supervision_table(finished: Iterable[runs.RunResult], params: Any) -> pd.DataFrame:
    """Label purity and correlation with the ground truth, fractions, of every way to supervise without labels, with as
    many clusters as classes, and of two controls: "nearest" are as many nearest neighbours of each point as its piece
    has members, "cosine" is the similarity of the features themselves, continuous as PLM's."""
    finished = list(finished)
    values = of_seeds([ways_of(run, params) for run in finished], params.seeds)
    rows = [
        dataclasses.replace(scored(run, qualities), spec=run.spec.replace(method=way, protocol=""))
        for run, of_run in zip(finished, values)
        for way, qualities in of_run.items()
    ]
    return results.tidy(rows, params)


def ways_of(run: runs.RunResult, params: Any) -> list[Qualities]:
    """What `quality_of` finds of an untrained network with all classes and, where there are enough seeds for an
    interval, without those that the seed leaves out."""
    how = {name: getattr(params, name) for name in ("images", "k", "dim", "quality")}
    left_out = [{"without": run.spec.seed, "parts": params.seeds}] if params.seeds >= statistics.MIN_SEEDS else []
    return [records.derived([run], _quality, **how, **part) for part in ({}, *left_out)]


def of_seeds(qualities: Sequence[Sequence[Qualities]], parts: int) -> list[dict[str, dict[str, float]]]:
    """{way: {measure: value}} of each seed from what `ways_of` found of each: as it is, or its pseudo-value."""
    whole, *left = (
        pd.DataFrame([pd.concat({way: pd.Series(values) for way, values in ways}) for ways in each])
        for each in zip(*qualities)
    )
    values = whole.mean() + (parts - 1) * (left[0].mean() - left[0]) if left else whole
    return [{way: row[way].to_dict() for way in row.index.unique(0)} for _, row in values.iterrows()]


@records.measurement("plm.supervision_quality", version=2)
def _quality(run: runs.RunResult, images: int, without: int | None = None, parts: int = 1, **how: Any) -> Qualities:
    """`quality_of` the first test classes, two or as many as have so many images together, but for every `parts`-th
    from the class number `without`."""
    labels = evaluated_labels(run)[0]
    classes, counts = labels.unique(return_counts=True)
    classes = classes[: max(int((counts.cumsum(0) <= images).sum()), 2)]
    if without is not None:
        classes = classes[torch.arange(len(classes)) % parts != without]
    some = torch.isin(labels, classes)
    return quality_of(run.embeddings[some], labels[some], **how)


def quality_of(features: Tensor, labels: Tensor, k: int, dim: int, quality: float) -> Qualities:
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
        found = [function(unit, len(labels.unique()), start) for start in range(STARTS.get(name, 1))]
        purity = fmean(metrics.label_purity(groups, labels) for groups in found)
        correlation = fmean(metrics.similarity_correlation((of[:, None] == of).double(), labels) for of in found)
        rows.append((name, {"label_purity": purity, "gt_correlation": correlation}))
    walk = metrics.similarity_correlation(clusters.random_walk_similarity(unit), labels)
    return [*rows, ("random walk, continuous", {"gt_correlation": walk})]


Supervision = plm_study(
    "51_plm_supervision_quality",
    parameters(
        images=Count,  # at most so many test images are compared, whole classes
        k=(Count, PUBLISHED["loss.k"].value),  # neighbours among which a piece is grown
        dim=(Whole, PUBLISHED["loss.dim"].value),
        quality=(Number, PUBLISHED["loss.quality"].value),
    ),
    lambda params: [run for run in unlabelled_runs(["untrained"], params) if run.method != tables.START],
    supervision_table,
    ways_of,
    profiles={"quick": {"images": 1200}, "small": {"images": 3000}, "paper": {"images": 6000}},
)
