"""Notebooks 13 to 16: the four ablations of PFML (Fig. 3).

Every run is PFML at the paper's setting (M = 15, or 2 where classes are many, alpha = 3, delta = 0.2) with one thing
varied. The default point of all four is one spec, but for the profile paper, where notebook 13 has batches of its own.
"""

from collections.abc import Mapping

from experiments.analysis.claims import START
from experiments.analysis.stored import Numbers
from experiments.methods import runs_of
from experiments.params import Number, Params, Whole
from experiments.pfml.alignment import class_distances
from experiments.pfml.claims import TESTS
from experiments.pfml.methods import METHODS, FieldOptions, pfml_study
from experiments.studies import evaluated_labels, measured
from experiments.training.records import measurement
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec


class ProxiesParams(FieldOptions, Params):
    """The parameters of notebook 13; all batches have several images of a class, as they must without proxies."""

    numbers: tuple[Whole, ...]


class DeltaParams(FieldOptions, Params):
    """The parameters of notebook 14."""

    deltas: tuple[Number, ...]


class AlphaParams(FieldOptions, Params):
    """The parameters of notebook 15."""

    alphas: tuple[Number, ...]


class RepulsionParams(FieldOptions, Params):
    """The parameters of notebook 16."""

    radii: tuple[Number, ...]


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


def _ablation(params: Params, settings: Mapping[str, Mapping[str, object]]) -> list[RunSpec]:
    """What training begins with, for comparison, then PFML at every setting."""
    specs = runs_of([METHODS["untrained"]], params)
    for setting, options in settings.items():
        specs += runs_of([METHODS["PFML"]], params, setting=setting, loss_options=options)
    return specs


def spreads_of(run: RunResult, params: Params) -> list:
    """How far the test embeddings of a class lie apart."""
    return [measured(run, spread)]


@measurement("pfml.class_spread")
def spread(run: RunResult) -> dict[str, float]:
    """`class_distances` of a run's test embeddings."""
    return class_distances(run.embeddings, evaluated_labels(run)[0])


# --- what was found ---------------------------------------------------------------------------------------------------


def _as_printed(numbers: Numbers) -> str:
    return (
        f"As printed alpha = 0 exerts no force: {numbers.against(f'PFML;{LITERAL}', START)} of the network that "
        "training begins with; Fig. 3(c) has 68.2 (CUB) and 86.7 (Cars) there."
    )


def _without_decay(numbers: Numbers) -> str:
    """What the decay itself does, the paper's explanation of the lead over CPML."""
    levels = numbers.levels("PFML", "alpha")
    published, most = (f"PFML;alpha={alpha:g}" for alpha in (3, max(levels)))
    return (
        f"Without decay, alpha = 0, {numbers.against('PFML;alpha=0', published)} at 3, the published one, and "
        f"{numbers.against('PFML;alpha=0', most)} at {max(levels):g}."
    )


def _spread(numbers: Numbers) -> str:
    """The paper explains the fall by compressed classes."""
    within, between = "intra_class_distance", "class_mean_distance"
    levels = numbers.levels("PFML", "delta_rep", within)
    near, far = (f"PFML;delta_rep={level:g}" for level in (min(levels), max(levels)))
    over = [numbers.mean(cell, f"{within} / {between}") for cell in (near, far)]
    return (
        f"The mean distance within a class is {numbers.mean(near, within):.3f} at delta_rep = {min(levels):g} and "
        f"{numbers.mean(far, within):.3f} at {max(levels):g} ({numbers.gap(far, near, within)}); over the distance "
        f"between class means it is {over[0]:.2f} and {over[1]:.2f}."
    )


def _ranking(numbers: Numbers) -> str:
    """R@1, which the paper reports, sees the nearest image alone; a class that is less compressed may rank better."""
    levels = numbers.levels("PFML", "delta_rep", "MAP@R")
    near, best = min(levels), max(levels, key=lambda level: levels[level])
    highest = f"MAP@R, which the paper does not report, is highest at delta_rep = {best:g}"
    if best == near:
        return f"{highest}, the radius of attraction."
    return f"{highest}: {numbers.against(f'PFML;delta_rep={best:g}', f'PFML;delta_rep={near:g}', 'MAP@R')} at {near:g}."


Proxies = pfml_study(
    "13_pfml_ablation_proxies",
    ProxiesParams,
    ablation_proxies,
    profiles={
        "*": {"numbers": (0, 1, 2, 5, 15, 30)},
        "quick": {"numbers": (0, 1, 15)},
        "paper": {"samples_per_class": 4},
    },
    references={"numbers": (15,)},
    claims=TESTS,
)
Delta = pfml_study(
    "14_pfml_ablation_delta",
    DeltaParams,
    ablation_delta,
    profiles={"*": {"deltas": (0.1, 0.15, 0.2, 0.25, 0.3, 0.35)}, "quick": {"deltas": (0.1, 0.2, 0.3)}},
    references={"deltas": (0.2,)},
    claims=TESTS,
)
Alpha = pfml_study(
    "15_pfml_ablation_alpha",
    AlphaParams,
    ablation_alpha,
    profiles={"*": {"alphas": (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)}, "quick": {"alphas": (0.0, 1.0, 3.0)}},
    references={"alphas": (3.0,)},
    claims=TESTS,
    findings=(_as_printed, _without_decay),
)
Repulsion = pfml_study(
    "16_pfml_ablation_repulsion_radius",
    RepulsionParams,
    ablation_repulsion_radius,
    profiles={"*": {"radii": (0.2, 0.22, 0.25, 0.3, 0.35, 0.4, 0.45)}, "quick": {"radii": (0.2, 0.3, 0.4)}},
    references={"radii": (0.2,)},
    measures=spreads_of,
    claims=TESTS,
    findings=(_spread, _ranking),
)
