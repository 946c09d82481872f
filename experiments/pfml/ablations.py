"""Notebooks 13 to 16: the four ablations of PFML (Fig. 3).

One thing varies about the paper's setting, and alpha is 3 whatever a search has found: an ingredient is judged at its
published decay. The default point of all four is one spec, but at paper, where notebook 13 has batches of its own.
"""

from collections.abc import Mapping
from typing import Any

from experiments.methods import runs_of
from experiments.params import Number, Whole, parameters
from experiments.pfml.alignment import class_distances
from experiments.pfml.methods import METHODS, FieldOptions, pfml_study
from experiments.studies import evaluated_labels, measured
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

LITERAL = "alpha=0;alpha_zero=literal"


def _levels(params: Any, levels: Mapping[str, Mapping[str, object]]) -> list[RunSpec]:
    """What training begins with, for comparison, then PFML at every level: {setting: options of its loss}."""
    runs = runs_of([METHODS["untrained"]], params)
    for setting, options in levels.items():
        runs += runs_of([METHODS["PFML"]], params, setting=setting, loss_options={"alpha": params.alpha, **options})
    return runs


def _exponents(params: Any) -> list[RunSpec]:
    """Fig. 3(c): the decay exponent. 0 is run as the logarithmic limit, and as printed, which exerts no force."""
    literal = {LITERAL: {"alpha": 0.0, "alpha_zero": "literal"}} if 0 in params.alphas else {}
    return _levels(params, literal | {f"alpha={alpha:g}": {"alpha": alpha} for alpha in params.alphas})


def _radii(params: Any) -> list[RunSpec]:
    """Fig. 3(d): repulsion reaches farther than the radius delta inside which a class does not attract itself. Delta is
    the parameter at all levels, whatever a search has found."""
    beyond = {radius: {} if radius == params.delta else {"delta_rep": radius} for radius in params.radii}
    levels = {f"delta_rep={radius:g}": {"delta": params.delta} | option for radius, option in beyond.items()}
    return _levels(params, levels)


@measurement("pfml.class_spread")
def spread(run: RunResult) -> dict[str, float]:
    """How far the test embeddings of a class lie apart."""
    return class_distances(run.embeddings, evaluated_labels(run)[0])


Proxies = pfml_study(
    "13_pfml_ablation_proxies",
    # Fig. 3(a); 0 leaves the samples of the batch alone, so that all batches have several images of a class
    parameters(FieldOptions, numbers=tuple[Whole, ...]),
    lambda params: _levels(params, {f"M={number}": {"proxies_per_class": number} for number in params.numbers}),
    profiles={
        "*": {"numbers": (0, 1, 2, 5, 15, 30)},
        "quick": {"numbers": (0, 1, 15)},
        "paper": {"samples_per_class": 4},
    },
    references={"numbers": (15,)},
)
Delta = pfml_study(
    "14_pfml_ablation_delta",
    parameters(FieldOptions, deltas=tuple[Number, ...]),  # Fig. 3(b): the radius of the field
    lambda params: _levels(params, {f"delta={delta:g}": {"delta": delta} for delta in params.deltas}),
    profiles={"*": {"deltas": (0.1, 0.15, 0.2, 0.25, 0.3, 0.35)}, "quick": {"deltas": (0.1, 0.2, 0.3)}},
    references={"deltas": (0.2,)},
)
Alpha = pfml_study(
    "15_pfml_ablation_alpha",
    parameters(FieldOptions, alphas=tuple[Number, ...]),
    _exponents,
    profiles={"*": {"alphas": (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)}, "quick": {"alphas": (0.0, 1.0, 3.0)}},
    references={"alphas": (3.0,)},
)
Repulsion = pfml_study(
    "16_pfml_ablation_repulsion_radius",
    parameters(FieldOptions, radii=tuple[Number, ...]),
    _radii,
    profiles={"*": {"radii": (0.2, 0.22, 0.25, 0.3, 0.35, 0.4, 0.45)}, "quick": {"radii": (0.2, 0.3, 0.4)}},
    references={"radii": (0.2,)},
    measures=lambda run, params: [measured(run, spread)],
)
