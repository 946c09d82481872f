"""What the papers share: the ranges of a search, and how methods become a notebook's runs."""

from collections.abc import Iterable, Mapping

import numpy as np

from dmlrepro.training import protocols
from dmlrepro.training.search import Range, search
from dmlrepro.training.spec import RunSpec

# What a search varies: options of the loss, and `loss_lr`, the learning rate of its parameters: the highest where they
# have several, the others keep their ratio to it. The papers give the range of `loss_lr` and of PFML's alpha and delta;
# MLRC and CCP publish optima only, all of which the others enclose. nivMF: the grids of the released ablation (initial
# kappa 10 to 200, t 1/256 to 1), the 6 to 22 and 0.003 of its other runs, and what TUNED of papers/nivmf found for
# networks from scratch; omega as in Fig. 4 up to 100, of which the released runs take 0.1 to 5.
LOSS_LR = {"loss_lr": Range(1e-6, 1.0, log=True)}


RANGES: dict[str, dict[str, Range]] = {
    "potential_field.PotentialFieldLoss": {"alpha": Range(0, 6), "delta": Range(0.1, 0.3)} | LOSS_LR,
    "potential_field.ContrastivePotentialLoss": {"delta": Range(0.1, 0.3)} | LOSS_LR,
    "baselines.proxy_anchor": {"margin": Range(0, 0.4), "alpha": Range(4, 64)} | LOSS_LR,
    "baselines.proxy_nca_pp": {"temperature": Range(0.01, 1, log=True)} | LOSS_LR,
    "baselines.normalized_softmax": {"temperature": Range(0.01, 1, log=True)} | LOSS_LR,
    "baselines.soft_triple": {
        "la": Range(1, 200),
        "gamma": Range(0.01, 1, log=True),
        "tau": Range(0, 1),
        "margin": Range(0, 1),
    }
    | LOSS_LR,
    "baselines.arcface": {"margin": Range(0, 1), "scale": Range(10, 300)} | LOSS_LR,
    "baselines.cosface": {"margin": Range(0, 1), "scale": Range(10, 300)} | LOSS_LR,
    "baselines.margin": {"margin": Range(0, 1), "beta": Range(0, 2)} | LOSS_LR,
    "baselines.contrastive": {"pos_margin": Range(-0.2, 1), "neg_margin": Range(0, 1)},
    "baselines.triplet": {"margin": Range(0, 1)},
    "baselines.multi_similarity": {
        "alpha": Range(0.01, 50),
        "beta": Range(1, 200),
        "base": Range(0, 1),
        "epsilon": Range(0, 1),
    },
}


_VMF = {"concentration": Range(5, 500, log=True), "temperature": Range(1e-3, 100, log=True)} | LOSS_LR


RANGES |= {
    "nivmf.ProbabilisticProxyLoss": _VMF,
    "nivmf.proxy_anchor_with_nivmf": {"omega": Range(0.01, 100, log=True)} | _VMF,
}


def _ranges(loss: str | None) -> Mapping[str, Range]:
    if loss not in RANGES:
        raise ValueError(f"no search ranges for {loss}; give some, as those of {', '.join(RANGES)}")
    return RANGES[loss]


# a notebook's runs


def runs_of(methods: Iterable[RunSpec], params, name: str | None = None, *, trials: int = 0) -> list[RunSpec]:
    """The runs of methods under a notebook's parameters: one spec per method in, all its seeds and folds out.

    Args:
        name: of the protocol; None is that of the parameters.
        trials: of the `search` that first finds the hyperparameters of every method but an untrained network, once for
            all its seeds; 0: they stay as they are.

    Raises:
        ValueError: as `expand`, and before the first trial as `search`.
    """
    name = name or params.protocol
    how = _manner(params)
    if trials:
        methods = [spec for spec, _ in _searched(methods, name, trials, how)]
    return [
        run
        for spec in methods
        for seed in range(params.seeds)
        for run in protocols.expand(spec.replace(seed=seed), name, **how)
    ]


def found_by_search(methods: Iterable[RunSpec], params, *, trials: int = 0):
    """What the searches of `runs_of` found: a row per method with its hyperparameters, the best validation MAP@R in
    percent and the median of the trials. None without a search."""
    import pandas as pd

    if not trials:
        return None
    table = []
    for spec, rows in _searched(methods, params.protocol, trials, _manner(params)):
        if rows:
            scores = [100 * row["val MAP@R"] for row in rows]
            best = rows[int(np.argmax(scores))] | {"val MAP@R": max(scores), "median of the trials": np.median(scores)}
            table.append({"method": spec.method, "trials": len(rows)} | best)
    return pd.DataFrame(table).set_index("method") if table else None


def _manner(params) -> dict:
    return {"published": params.profile == "paper", "keep": params.spec_options()}


def _searched(methods: Iterable[RunSpec], name: str, trials: int, how: dict) -> list[tuple[RunSpec, list[dict]]]:
    methods = list(methods)
    protocols.with_folds(name)
    for spec in methods:  # an error in the last method would cost the searches before it
        if spec.loss is not None:
            _ranges(spec.loss)
    return [
        (spec, []) if spec.loss is None else search(spec, _ranges(spec.loss), name, trials=trials, **how)
        for spec in methods
    ]
