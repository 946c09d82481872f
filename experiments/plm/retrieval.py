"""Notebook 50: retrieval with PLM and its unsupervised baselines (Table 1)."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from dmlrepro.losses.piecewise_linear import distances, pieces_and_similarity
from experiments.analysis.tables import START
from experiments.figures.style import described, legend, panels
from experiments.methods import spec_of
from experiments.params import Count, parameters
from experiments.plm.methods import METHODS, PUBLISHED, PlmOptions, plm_study, unlabelled_runs
from experiments.studies import measured
from experiments.training import records, runs
from experiments.training.spec import RunSpec

DELTA = {"delta": PUBLISHED["loss.delta"].value}
LOOKED_AT = 1000  # unseen images whose distances are compared
AS_PUBLISHED = "settings=published"
# Of the loss, what decides which distances it asks for
ASKING = ("k", "dim", "quality", "n_alpha", "n_beta", "delta")


def retrieval(params: Any) -> list[RunSpec]:
    """Every method, every seed, beside the untrained network's features; where the parameters have another delta than
    the paper, PLM also with its published settings."""
    specs = unlabelled_runs(params.methods, params)
    if "PLM" in params.methods and params.delta != DELTA["delta"]:
        specs += unlabelled_runs(["PLM"], params.untuned(), setting=AS_PUBLISHED, loss_options=DELTA)
    return specs


def distances_of(run: runs.RunResult, params: Any) -> list:
    """See `apart`; what is asked for is of "random head", with which PLM begins, as PLM is here, and in setting
    AS_PUBLISHED as it is in the paper."""
    if run.spec.method != START:
        return [measured(run, apart)]
    options = {"": spec_of(METHODS["PLM"], params).loss_options}
    if params.delta != DELTA["delta"]:
        options[AS_PUBLISHED] = spec_of(METHODS["PLM"], params.untuned(), loss_options=DELTA).loss_options
    asking = {setting: {name: of[name] for name in ASKING} for setting, of in options.items()}
    return [measured(run, apart, setting, asking=of) for setting, of in asking.items()]


@records.measurement("plm.separation")
def apart(run: runs.RunResult, asking: Mapping[str, float] | None = None) -> dict[str, float]:
    """How far apart a run leaves images of unseen classes, means over up to LOOKED_AT on the unit sphere:
    `nearest_distance` to the nearest image, `mean_distance` to any; with options ASKING of the loss `nearest_asked` and
    `mean_asked`, what Eq. 6, delta (1 - s), asks for of the same pairs where these are the momentum encoder's."""
    some = torch.randperm(len(run.embeddings), generator=torch.Generator().manual_seed(0))[:LOOKED_AT]
    points = F.normalize(run.embeddings[some].double(), dim=1)
    matrices = {"distance": distances(points, points)}
    if asking is not None:
        how: Any = {name: value for name, value in asking.items() if name != "delta"}
        matrices["asked"] = asking["delta"] * (1 - pieces_and_similarity(points, **how)[2])
    itself = torch.eye(len(points), dtype=torch.bool)
    nearest = matrices["distance"].masked_fill(itself, math.inf).argmin(1, keepdim=True)
    return {f"nearest_{name}": matrix.gather(1, nearest).mean().item() for name, matrix in matrices.items()} | {
        f"mean_{name}": matrix[~itself].mean().item() for name, matrix in matrices.items()
    }


def asked(stored: pd.DataFrame) -> Figure:
    """Distances between images of unseen classes before and after training with PLM and, between them, what Eq. 6 asks
    for at first, with published and with tuned settings; means over seeds of a table of `distances_of`."""
    means = stored[stored["metric"].isin(DISTANCES)].groupby(["method", "setting", "metric"])["value"].mean()
    kinds = {"nearest": "to the nearest image", "mean": "to any image"}
    looks: dict[str, dict[str, Any]] = {
        "before training": {"marker": "o", "color": "white", "edgecolor": "black"},
        "asked for": {"marker": "|", "color": "black"},
        "after training": {"marker": "o", "color": METHODS["PLM"].color, "edgecolor": "black"},
    }
    with panels(2, 1.9, sharex=True, sharey=True) as (figure, axes):
        for axis, (setting, title) in zip(axes, ((AS_PUBLISHED, "as published"), ("", "as tuned"))):
            for place, kind in enumerate(kinds):
                values = [means[START, setting, f"{kind}_{what}"] for what in ("distance", "asked")]
                values.append(means["PLM", setting, f"{kind}_distance"])
                arrow = {"arrowstyle": "->", "color": "0.5"}
                axis.annotate("", (values[2], place), (values[0], place), arrowprops=arrow)
                for value, (name, look) in zip(values, looks.items()):
                    axis.scatter(value, place, 70, zorder=3, label=name, **look)
            title = f"{title}, n = {stored['seed'].nunique()} seeds"
            axis.set(title=title, xlabel="distance on the unit sphere", xlim=(0, 1.7), ylim=(1.5, -0.5))
            axis.set_yticks(range(len(kinds)), kinds.values())
        legend(figure, axes[0])
    return described(figure, "Distances before and after training with PLM, and those that its loss asks for.")


DISTANCES = ("mean_distance", "mean_asked", "nearest_distance", "nearest_asked")
Retrieval = plm_study(
    "50_plm_retrieval",
    parameters(PlmOptions, methods=tuple[str, ...], clusters=Count),  # clusters of the pseudo-labels
    retrieval,
    profiles={
        "*": {"methods": tuple(METHODS)},
        "quick": {"methods": ("untrained", "random head", "PLM", "STML-style", "NT-Xent", "K-Means")},
    },
    measures=distances_of,
)
