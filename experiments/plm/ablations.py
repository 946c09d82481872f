"""Notebooks 52 to 56: the ablations of PLM (Fig. 3, Table 3, and Sec. 3.1, which gives no figures). A run has the
paper's setting, with the delta of the profile, but for one thing. Its default in 52 to 54 (56 at `small`) is one."""

import functools
from collections.abc import Mapping
from typing import Any

from experiments.methods import Setting
from experiments.params import Number, Whole, parameters
from experiments.plm.methods import PROFILES, PUBLISHED, PlmOptions, plm_study, unlabelled_runs
from experiments.training.spec import RunSpec

HEAD = {"train_from": "head", "batch_size": 100}  # which will do below the profile paper
SHORT: dict[str, dict[str, Any]] = {
    "quick": PROFILES["quick"] | HEAD | {"steps": 30, "lr": PUBLISHED["lr"].value},
    "small": PROFILES["small"] | HEAD | {"steps": 1500},
}
FIG_3 = {**PUBLISHED, "embedding_size": Setting(128, "Sec. 4.4: 'a 128-dimensional embedding'")}
short_study = functools.partial(plm_study, shared=PROFILES | SHORT, takes_searches=False)
AT_128 = PROFILES | SHORT | {"paper": PROFILES["paper"] | {"embedding_size": 128}}
figure_3 = functools.partial(short_study, shared=AT_128, published=lambda _, of, *setting: FIG_3 if of == "PLM" else {})


def _levels(params: Any, levels: Mapping[str, Mapping[str, object]]) -> list[RunSpec]:
    """The network before training for comparison, then PLM at every level: {setting: options of its loss}."""
    runs = unlabelled_runs(["untrained"], params)
    for setting, options in levels.items():
        runs += unlabelled_runs(["PLM"], params, setting=setting, loss_options=options)
    return runs


def decay(params: Any) -> list[RunSpec]:
    """Fig. 3(c): how fast similarity falls across and along a piece; ValueError for a pair that is none."""
    settings = {}
    for pair in params.pairs:
        try:
            across, along = map(float, pair.split("/"))
        except ValueError as error:
            raise ValueError(f'pairs must be written "N_alpha/N_beta", as "4/0.5", got {pair!r}') from error
        settings[f"N_alpha={across:g};N_beta={along:g}"] = {"n_alpha": across, "n_beta": along}
    return _levels(params, settings)


def similarity(params: Any) -> list[RunSpec]:
    """Table 3: all neighbours, binary similarity, both; then without what Sec. 3.1 needs: such batches, momentum."""
    every, binary = {"quality": 0.0}, {"similarity": "binary"}
    pieces: dict[str, dict[str, Any]] = {"": {}, "neighbours=all": every, "similarity=binary": binary}
    pieces["neighbours=all;similarity=binary"] = every | binary
    specs = _levels(params, pieces) + unlabelled_runs(["PLM"], params, setting="batches=random", neighbours=None)
    return specs + unlabelled_runs(["PLM"], params, setting="momentum=0", algorithm_options={"momentum": 0.0})


Proxies = figure_3(  # Fig. 3(a); 0 leaves the point-point term alone
    "52_plm_ablation_proxies",
    parameters(PlmOptions, numbers=tuple[Whole, ...]),
    lambda params: _levels(params, {f"N_rho={number}": {"num_proxies": number} for number in params.numbers}),
    profiles={"*": {"numbers": (0, 10, 50, 100, 250, 500)}, "quick": {"numbers": (0, 10, 100)}},
    references={"numbers": (0, 100)},
)
Dimension = figure_3(  # Fig. 3(b): of the linear pieces
    "53_plm_ablation_dimension",
    parameters(PlmOptions, dimensions=tuple[Whole, ...]),
    lambda params: _levels(params, {f"m={dim}": {"dim": dim} for dim in params.dimensions}),
    profiles={"*": {"dimensions": (2, 3, 4, 5, 6, 7)}, "quick": {"dimensions": (2, 3, 6)}},
    references={"dimensions": (3,)},
)
Decay = figure_3(
    "54_plm_ablation_decay",
    parameters(PlmOptions, pairs=tuple[str, ...]),  # a pair of decays is written "N_alpha/N_beta"
    decay,
    profiles={
        "*": {"pairs": ("1/0.5", "3/0.5", "6/0.5", "4/0", "4/1", "1/1", "1.5/1.5", "0.5/1.5", "4/0.5")},
        "quick": {"pairs": ("1/0.5", "1/1", "4/0.5")},
    },
)
Delta = figure_3(  # Fig. 3(d): the distance of points without similarity
    "55_plm_ablation_delta",
    parameters(PlmOptions, deltas=tuple[Number, ...]),
    lambda params: _levels(params, {f"delta={delta:g}": {"delta": delta} for delta in params.deltas}),
    profiles={"*": {"deltas": (0.2, 0.5, 1.0, 1.5, 2.0)}, "quick": {"deltas": (0.2, 1.0, 2.0)}},
    references={"deltas": (2.0,)},
)
Similarity = short_study("56_plm_ablation_similarity", parameters(PlmOptions), similarity)
