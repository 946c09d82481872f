"""Notebook 12: do proxies align with the data they stand for? (Fig. 2, Proposition 1, Corollary 1, Table 3)"""

from collections.abc import Iterable
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F

from dmlrepro import metrics
from dmlrepro.losses.baselines import proxies_of
from experiments.methods import expand_seeds, pick, search_each, spec_of
from experiments.params import Count, Whole, parameters
from experiments.pfml import geometry
from experiments.pfml.methods import METHODS, FieldOptions, pfml_study
from experiments.studies import (
    measured,
    study_rows,
    trained_loss,
    training_embeddings,
    with_histories,
    with_measures,
    without_histories,
)
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

# How PFML is trained once more: as the paper's words have it, with proxies that are normalised in the forward pass only
# and gradients that nothing clips, and in shuffled batches with and without clipping
DRAWN = {"loss_options": {"proxy_norm": None}}
SHUFFLED, UNCLIPPED = {"samples_per_class": None}, {"loss_clip_value": None}
OTHERWISE: dict[str, dict] = {
    "proxies=as drawn": DRAWN,
    "gradients=unclipped": UNCLIPPED,
    "proxies=as drawn;gradients=unclipped": DRAWN | UNCLIPPED,
    "batches=shuffled": SHUFFLED,
    "batches=shuffled;gradients=unclipped": SHUFFLED | UNCLIPPED,
}


def proxy_alignment(params: Any) -> list[RunSpec]:
    """The methods of Table 3; those with several proxies per class have the same number, as the paper demands. Then
    PFML in the variants of OTHERWISE."""
    centers = {"SoftTriple": {"centers_per_class": params.proxies_per_class}}
    specs = [spec_of(method, params, loss_options=centers.get(method.name)) for method in pick(METHODS, params.methods)]
    specs = [spec for spec, _ in search_each(specs, METHODS, params)]
    otherwise = []
    for spec in (spec for spec in specs if spec.method == "PFML"):
        for setting in OTHERWISE if params.all_variants else ("proxies=as drawn",):
            options = {**spec.loss_options, **OTHERWISE[setting].get("loss_options", {})}
            otherwise.append(spec.replace(setting=setting, **OTHERWISE[setting] | {"loss_options": options}))
    return with_histories(expand_seeds(specs, params)) + expand_seeds(otherwise, params)


def alignments_of(run: RunResult, params: Any) -> list:
    return [measured(run, _alignment)] if run.spec.loss else []


def alignment_table(finished: Iterable[RunResult], params: Any) -> pd.DataFrame:
    """The rows of finished runs; of those that are trained W2 between the proxies and the training embeddings, in three
    readings, and the spread of the classes; after them the numerical study, whose data set is "synthetic"."""
    trained = without_histories(with_measures(finished, alignments_of, params))
    study = study_rows(params, geometry.study(range(params.point_sets)))
    return pd.concat([trained, study], ignore_index=True)


@measurement("pfml.alignment")
def _alignment(run: RunResult) -> dict[str, float]:
    manifest, embeddings, labels = training_embeddings(run)
    proxies = proxies_of(trained_loss(run, manifest, embeddings.shape[1]))
    readings = {"W2": "assignment", "true W2": "w2", "nearest sample": "nearest"}
    values = {
        name: metrics.proxy_wasserstein(proxies, embeddings, labels, form)[0]  # type: ignore[arg-type]
        for name, form in readings.items()
    }
    return values | class_distances(embeddings, labels)


def class_distances(embeddings: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Mean distance of unit embeddings (N, D) within a class, averaged over classes, and between all classes."""
    points, classes = F.normalize(embeddings.double(), dim=1), labels.unique()
    within = torch.stack([F.pdist(points[labels == label]).mean() for label in classes]).mean()
    means = torch.stack([points[labels == label].mean(0) for label in classes])
    return {"intra_class_distance": within.item(), "class_mean_distance": F.pdist(means).mean().item()}


Alignment = pfml_study(
    "12_pfml_proxy_alignment",
    parameters(
        FieldOptions,
        methods=tuple[str, ...],
        all_variants=(bool, True),
        point_sets=(Count, 5),
        protocol=str,
        search_trials=Whole,
    ),
    proxy_alignment,
    alignment_table,
    alignments_of,
    profiles={
        "*": {"methods": ("untrained", "PFML", "CPML", "SoftTriple", "ProxyNCA++", "ProxyAnchor")},
        "quick": {"methods": ("untrained", "PFML", "CPML", "SoftTriple", "ProxyAnchor")},
    },
    one_network=True,
)
