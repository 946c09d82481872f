"""Notebooks 31 and 38: the protocol of "A Metric Learning Reality Check" (Tables 1, 3 to 7 and 15), below the profile
paper with fewer steps and without a search, or with one of `search_trials` trials."""

import functools
from typing import Any

from experiments.meanfield.claims import SAME_RATE
from experiments.meanfield.methods import FIELD_LR, METHODS, meanfield_study, specs_of
from experiments.methods import expand_seeds, search_each
from experiments.params import Params, Whole, parameters
from experiments.training.spec import RunSpec


def _evaluations(params: Params) -> dict[str, Any]:
    """Two evaluations in a run, where the profile decides."""
    if params.profile == "paper" or params.eval_every_epochs:
        return {}
    if params.steps:
        return {"eval_every": max(params.steps // 2, 1), "eval_every_epochs": None}
    return {"eval_every": None, "eval_every_epochs": params.epochs / 2}


folds_study = functools.partial(meanfield_study, shared={"*": {"protocol": "mlrc"}})
PAIRS = ("Cont", "MFCont", "CWMS", "MFCWMS")  # a loss on pairs and its mean field, twice


def mlrc(params: Any) -> list[RunSpec]:
    """Tables 1 and 3 to 5: every method on every fold, its hyperparameters searched first where there are trials."""
    return expand_seeds(search_each(before_search(params), METHODS, params), params)


def before_search(params: Any) -> list[RunSpec]:
    return specs_of(params.methods, params, **_evaluations(params))


def nca(params: Any) -> list[RunSpec]:
    """Table 15: ProxyNCA++, MFNCA, and ProxyNCA++ that starts in MFNCA's directions and turns as fast: its proxies are
    an eighth as long, and so is their rate."""
    searched = specs_of(("untrained", "ProxyNCA++", "MFNCA"), params, **_evaluations(params))
    rate = {"*": FIELD_LR / 8}
    alike = specs_of(["ProxyNCA++"], params, setting=SAME_RATE, loss_lr=rate, **_evaluations(params))
    return expand_seeds(search_each(searched, METHODS, params) + alike, params)


Mlrc = folds_study(
    "31_meanfield_mlrc",
    parameters(protocol=str, search_trials=Whole, methods=tuple[str, ...]),
    mlrc,
    profiles={
        "*": {"methods": ("untrained", "ArcFace", "CosFace", "MultiSimilarity", "ProxyNCA++", "ProxyAnchor", *PAIRS)},
        "quick": {"methods": ("untrained", "ArcFace", "ProxyAnchor", "MFCont", "MFCWMS")},
    },
)
Nca = folds_study(
    "38_meanfield_nca",
    parameters(protocol=str, search_trials=Whole),
    nca,
    profiles={"small": {"seeds": 20}},  # the effect is as large as the spread
)
