"""Notebooks 13 to 16: the four ablations of PFML (Fig. 3).

Every run is PFML at the paper's setting (M = 15, or 2 where classes are many, alpha = 3, delta = 0.2) with one thing
varied. The default point of all four is one spec, but for the profile paper, where notebook 13 has batches of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from experiments.methods import runs_of
from experiments.pfml.alignment import class_distances
from experiments.pfml.claims import TESTS
from experiments.pfml.methods import METHODS, FieldParams
from experiments.profiles import at, layered
from experiments.studies import evaluated_labels, measured
from experiments.study import Study
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec


@dataclass(frozen=True)
class ProxiesParams(FieldParams):
    """The parameters of notebook 13; all batches have several images of a class, as they must without proxies."""

    notebook = "13_pfml_ablation_proxies"
    references: ClassVar = {"numbers": (15,)}
    overrides: ClassVar = layered(
        at(numbers=(0, 1, 2, 5, 15, 30)), at("quick", numbers=(0, 1, 15)), at("paper", samples_per_class=4)
    )

    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class DeltaParams(FieldParams):
    """The parameters of notebook 14."""

    notebook = "14_pfml_ablation_delta"
    references: ClassVar = {"deltas": (0.2,)}
    overrides: ClassVar = layered(at(deltas=(0.1, 0.15, 0.2, 0.25, 0.3, 0.35)), at("quick", deltas=(0.1, 0.2, 0.3)))

    deltas: tuple[float, ...] | None = None


@dataclass(frozen=True)
class AlphaParams(FieldParams):
    """The parameters of notebook 15."""

    notebook = "15_pfml_ablation_alpha"
    references: ClassVar = {"alphas": (3.0,)}
    overrides: ClassVar = layered(at(alphas=(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)), at("quick", alphas=(0.0, 1.0, 3.0)))

    alphas: tuple[float, ...] | None = None


@dataclass(frozen=True)
class RepulsionParams(FieldParams):
    """The parameters of notebook 16."""

    notebook = "16_pfml_ablation_repulsion_radius"
    references: ClassVar = {"radii": (0.2,)}
    overrides: ClassVar = layered(at(radii=(0.2, 0.22, 0.25, 0.3, 0.35, 0.4, 0.45)), at("quick", radii=(0.2, 0.3, 0.4)))

    radii: tuple[float, ...] | None = None


LITERAL = "alpha=0;alpha_zero=literal"


def ablation_proxies(params: ProxiesParams) -> list[RunSpec]:
    """Fig. 3(a): the number of proxies per class; 0 leaves the samples of the batch alone."""
    return _ablation(params, {f"M={number}": {"proxies_per_class": number} for number in params.numbers})


def ablation_delta(params: DeltaParams) -> list[RunSpec]:
    """Fig. 3(b): the radius of the field."""
    return _ablation(params, {f"delta={delta:g}": {"delta": delta} for delta in params.deltas})


def ablation_alpha(params: AlphaParams) -> list[RunSpec]:
    """Fig. 3(c): the decay exponent. 0 is run as the logarithmic limit, and as printed, which exerts no force."""
    literal = {LITERAL: {"alpha": 0.0, "alpha_zero": "literal"}} if 0 in params.alphas else {}
    return _ablation(params, literal | {f"alpha={alpha:g}": {"alpha": alpha} for alpha in params.alphas})


def ablation_repulsion_radius(params: RepulsionParams) -> list[RunSpec]:
    """Fig. 3(d): repulsion reaches farther than the radius delta inside which a class does not attract itself.

    That radius is the parameter's at all levels, whatever a search has found: it is what the levels are compared with.
    """
    beyond = {radius: {} if radius == params.delta else {"delta_rep": radius} for radius in params.radii}
    return _ablation(
        params, {f"delta_rep={radius:g}": {"delta": params.delta} | option for radius, option in beyond.items()}
    )


def _ablation(params: FieldParams, settings: Mapping[str, Mapping[str, object]]) -> list[RunSpec]:
    """What training begins with, for comparison, then PFML at every setting."""
    specs = runs_of([METHODS["untrained"]], params)
    for setting, options in settings.items():
        specs += runs_of([METHODS["PFML"]], params, setting=setting, loss_options=options)
    return specs


def spreads_of(run: RunResult, params: FieldParams) -> list:
    """How far the test embeddings of a class lie apart."""
    return [measured(run, spread)]


@measurement("pfml.class_spread")
def spread(run: RunResult) -> dict[str, float]:
    """`class_distances` of a run's test embeddings."""
    return class_distances(run.embeddings, evaluated_labels(run)[0])


# --- what was found ---------------------------------------------------------------------------------------------------


Proxies = Study(ProxiesParams, ablation_proxies, claims=TESTS)
Delta = Study(DeltaParams, ablation_delta, claims=TESTS)
Alpha = Study(AlphaParams, ablation_alpha, claims=TESTS)
Repulsion = Study(RepulsionParams, ablation_repulsion_radius, measures=spreads_of, claims=TESTS)
