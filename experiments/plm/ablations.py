"""Notebooks 52 to 56: the ablations of PLM (Fig. 3, Table 3, and Sec. 3.1, which gives no figures).

Every run is PLM at the paper's setting (N_rho = 100, m = 3, N_alpha = 4, N_beta = 0.5), with the delta of the profile,
and with one thing varied. The default point of 52 to 54 and 56 is one spec.
"""

import functools
from collections.abc import Mapping
from typing import Any

from experiments.params import Number, Params, Whole
from experiments.plm.methods import BEFORE, PROFILES, PUBLISHED, PlmOptions, plm_study, unlabelled_runs
from experiments.training.spec import RunSpec

# Below the profile paper heads will do
SHORT: dict[str, dict[str, Any]] = {
    "quick": {"train_from": "head", "batch_size": 100, "steps": 30, "lr": PUBLISHED["lr"].value},
    "small": {"train_from": "head", "batch_size": 100, "steps": 1500},
    "paper": {},
}
short_study = functools.partial(
    plm_study, shared={name: PROFILES[name] | SHORT[name] for name in SHORT}, takes_searches=False
)


class PlmProxiesParams(PlmOptions, Params):
    """The parameters of notebook 52."""

    numbers: tuple[Whole, ...]


class PlmDimensionParams(PlmOptions, Params):
    """The parameters of notebook 53."""

    dimensions: tuple[Whole, ...]


class PlmDecayParams(PlmOptions, Params):
    """The parameters of notebook 54; a pair of decays is written "N_alpha/N_beta"."""

    pairs: tuple[str, ...]


class PlmDeltaParams(PlmOptions, Params):
    """The parameters of notebook 55."""

    deltas: tuple[Number, ...]


class PlmSimilarityParams(PlmOptions, Params):
    """The parameters of notebook 56."""


def ablation_proxies(params: PlmProxiesParams) -> list[RunSpec]:
    """Fig. 3(a): the number of proxies; 0 leaves the point-point term alone."""
    return _ablation(params, {f"N_rho={number}": {"num_proxies": number} for number in params.numbers})


def ablation_dimension(params: PlmDimensionParams) -> list[RunSpec]:
    """Fig. 3(b): the dimension of the linear pieces."""
    return _ablation(params, {f"m={dim}": {"dim": dim} for dim in params.dimensions})


def ablation_decay(params: PlmDecayParams) -> list[RunSpec]:
    """Fig. 3(c): how fast similarity falls across and along a piece; ValueError for a pair that is none."""
    settings = {}
    for pair in params.pairs:
        try:
            across, along = map(float, pair.split("/"))
        except ValueError as error:
            raise ValueError(f'pairs must be written "N_alpha/N_beta", as "4/0.5", got {pair!r}') from error
        settings[f"N_alpha={across:g};N_beta={along:g}"] = {"n_alpha": across, "n_beta": along}
    return _ablation(params, settings)


def ablation_delta(params: PlmDeltaParams) -> list[RunSpec]:
    """Fig. 3(d): the distance of points without similarity."""
    return _ablation(params, {f"delta={delta:g}": {"delta": delta} for delta in params.deltas})


def ablation_similarity(params: PlmSimilarityParams) -> list[RunSpec]:
    """Table 3: all neighbours for a piece, binary similarity, and both; then what Sec. 3.1 says is needed: batches of
    neighbours and the momentum encoder."""
    every, binary = {"quality": 0.0}, {"similarity": "binary"}
    pieces: dict[str, dict[str, Any]] = {"": {}, "neighbours=all": every, "similarity=binary": binary}
    specs = _ablation(params, pieces | {"neighbours=all;similarity=binary": every | binary})
    specs += _runs(params, "batches=random", neighbours=None)
    return specs + _runs(params, "momentum=0", scheme_options={"momentum": 0.0})


def _ablation(params: Params, settings: Mapping[str, Mapping[str, object]]) -> list[RunSpec]:
    """The network before training for comparison, then PLM at every setting with these options of its loss."""
    specs = unlabelled_runs(BEFORE, params)
    for setting, options in settings.items():
        specs += _runs(params, setting, loss_options=options)
    return specs


def _runs(params: Params, setting: str, **how: Any) -> list[RunSpec]:
    return unlabelled_runs(["PLM"], params, setting=setting, **how)


Proxies = short_study(
    "52_plm_ablation_proxies",
    PlmProxiesParams,
    ablation_proxies,
    profiles={"*": {"numbers": (0, 10, 50, 100, 250, 500)}, "quick": {"numbers": (0, 10, 100)}},
    references={"numbers": (0, 100)},
)
Dimension = short_study(
    "53_plm_ablation_dimension",
    PlmDimensionParams,
    ablation_dimension,
    profiles={"*": {"dimensions": (2, 3, 4, 5, 6, 7)}, "quick": {"dimensions": (2, 3, 6)}},
    references={"dimensions": (3,)},
)
Decay = short_study(
    "54_plm_ablation_decay",
    PlmDecayParams,
    ablation_decay,
    profiles={
        "*": {"pairs": ("1/0.5", "3/0.5", "6/0.5", "4/0", "4/1", "1/1", "1.5/1.5", "0.5/1.5", "4/0.5")},
        "quick": {"pairs": ("1/0.5", "1/1", "4/0.5")},
    },
)
Delta = short_study(
    "55_plm_ablation_delta",
    PlmDeltaParams,
    ablation_delta,
    profiles={"*": {"deltas": (0.2, 0.5, 1.0, 1.5, 2.0)}, "quick": {"deltas": (0.2, 1.0, 2.0)}},
    references={"deltas": (2.0,)},
)
Similarity = short_study("56_plm_ablation_similarity", PlmSimilarityParams, ablation_similarity)
