"""Notebooks 13 to 16: the four ablations of PFML (Fig. 3).

Every run is PFML at the paper's setting (M = 15, or 2 where classes are many, alpha = 3, delta = 0.2) with one thing
varied. The default point of all four is one spec, but for the profile paper, where notebook 13 has batches of its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dmlrepro.evidence import tables
from dmlrepro.evidence.stored import Numbers, agrees, brings, direction
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.methods import runs_of
from dmlrepro.papers.params import HEADS, HeadParams
from dmlrepro.papers.pfml.alignment import class_distances
from dmlrepro.papers.pfml.methods import METHODS, FieldParams
from dmlrepro.papers.studies import evaluated_labels, measured, with_measured
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class AblationParams(HeadParams, FieldParams):
    """What the ablations share: the default point, and that heads will do."""


@dataclass(frozen=True)
class ProxiesParams(AblationParams):
    """The parameters of notebook 13; all batches have several images of a class, as they must without proxies."""

    notebook = "13_pfml_ablation_proxies"
    references: ClassVar = {"numbers": (15,)}
    overrides: ClassVar = HEADS | {"paper": HEADS["paper"] | {"samples_per_class": 4}}

    numbers: tuple[int, ...] = (0, 1, 2, 5, 15, 30)


@dataclass(frozen=True)
class DeltaParams(AblationParams):
    """The parameters of notebook 14."""

    notebook = "14_pfml_ablation_delta"
    references: ClassVar = {"deltas": (0.2,)}

    deltas: tuple[float, ...] = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35)


@dataclass(frozen=True)
class AlphaParams(AblationParams):
    """The parameters of notebook 15."""

    notebook = "15_pfml_ablation_alpha"
    references: ClassVar = {"alphas": (3.0,)}

    alphas: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


@dataclass(frozen=True)
class RepulsionParams(AblationParams):
    """The parameters of notebook 16."""

    notebook = "16_pfml_ablation_repulsion_radius"
    references: ClassVar = {"radii": (0.2,)}

    radii: tuple[float, ...] = (0.2, 0.22, 0.25, 0.3, 0.35, 0.4, 0.45)


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
    """Fig. 3(d): repulsion reaches farther than the radius delta inside which a class does not attract itself."""
    return _ablation(
        params,
        {
            f"delta_rep={radius:g}": {} if radius == params.delta else {"delta_rep": radius}  # the default is delta
            for radius in params.radii
        },
    )


def _ablation(params: AblationParams, settings: Mapping[str, dict]) -> list[RunSpec]:
    """The untrained network for comparison, then PFML at every setting."""
    found = runs_of([METHODS["untrained"]], params)
    for setting, options in settings.items():
        found += runs_of([METHODS["PFML"]], params, setting=setting, loss_options=options)
    return found


def spread_table(finished: Iterable, params: AblationParams) -> "pd.DataFrame":
    """The rows of finished runs, and how far the test embeddings of a class lie apart."""
    finished = list(finished)
    spreads = [measured(run, class_distances(run.embeddings, evaluated_labels(run)[0])) for run in finished]
    return with_measured(finished, spreads, params)


# --- what was found ---------------------------------------------------------------------------------------------------


STABLE = 1.5  # points of R@1, as in the tests of pfml-09 and pfml-10


def _proxies_help(numbers: Numbers) -> str:
    some, none = f"PFML;M=1..{max(numbers.levels('PFML', 'M')):g}", "PFML;M=0"
    return (
        f"Proxies bring {brings(numbers.effects(some, none))}: over all M from 1 on PFML has on average "
        f"{numbers.against(some, none)} without proxies."
    )


def _few_proxies(numbers: Numbers) -> str:
    few, default = "PFML;M=1..2", "PFML;M=15"
    found = brings(numbers.effects(few, default), loss="a slight fall", expected=-1)
    return f"One or two proxies bring {found}: {numbers.against(few, default)} at M = 15."


def _many_proxies(numbers: Numbers) -> str:
    return _steady(numbers, "M", 15, least=5)


def _radius(numbers: Numbers) -> str:
    return _steady(numbers, "delta", 0.2)


def _steady(numbers: Numbers, name: str, default: float, least: float = 0.0) -> str:
    """Whether R@1 stays at that of the default, from a least level on, as the paper says of M and delta."""
    levels = {level: value for level, value in numbers.levels("PFML", name).items() if level >= least}
    if default not in levels or len(levels) < 2:
        raise tables.MissingRows(f"PFML;{name}={default:g} and another level")
    far = max(levels, key=lambda level: abs(levels[level] - levels[default]))
    steady = abs(levels[far] - levels[default]) <= STABLE
    return (
        f"From {name} = {min(levels):g} to {max(levels):g} R@1 is {'' if steady else 'not '}stable within {STABLE:g} "
        f"points of {name} = {default:g}, {agrees(steady)}, which calls it stable: {name} = {far:g} has "
        f"{numbers.against(f'PFML;{name}={far:g}', f'PFML;{name}={default:g}')}."
    )


def _best_radius(numbers: Numbers) -> str:
    levels = numbers.levels("PFML", "delta")
    best = max(levels, key=levels.get)
    if best == 0.2:
        return "R@1 is highest at the paper's own delta = 0.2."
    against = numbers.against(f"PFML;delta={best:g}", "PFML;delta=0.2")
    return f"R@1 is highest at delta = {best:g}, not at the paper's own 0.2: {against}."


def _best_alpha(numbers: Numbers) -> str:
    levels = numbers.levels("PFML", "alpha")
    if not {0, 1, 3} <= levels.keys():
        raise tables.MissingRows("PFML without, with mild and with strong decay")
    best, worst = max(levels, key=levels.get), min(levels, key=levels.get)
    return (
        f"R@1 is highest at alpha = {best:g} and lowest at {worst:g}, {agrees(best >= 3 and worst == 0)}, which has 3 "
        f"to 6 best and 0 worst: {numbers.against(f'PFML;alpha={best:g}', f'PFML;alpha={worst:g}')}."
    )


def _no_decay(numbers: Numbers) -> str:
    decay, none = "PFML;alpha=3", "PFML;alpha=0"
    return (
        f"Decay at alpha = 3 brings {brings(numbers.effects(decay, none))} (5 to 6 points in Fig. 3(c)): "
        f"{numbers.against(decay, none)} of the logarithmic potential that alpha = 0 is in the limit."
    )


def _strong_decay(numbers: Numbers) -> str:
    top = max(numbers.levels("PFML", "alpha"))
    strong, mild = f"PFML;alpha=3..{top:g}", "PFML;alpha=1..2"
    return (
        f"Strong decay, alpha = 3 to {top:g}, brings {brings(numbers.effects(strong, mild))}, over mild, 1 to 2: "
        f"{numbers.against(strong, mild)}; alpha = {top:g} alone is "
        f"{numbers.gap(f'PFML;alpha={top:g}', 'PFML;alpha=3')} from alpha = 3."
    )


def _as_printed(numbers: Numbers) -> str:
    printed = numbers.mean(f"PFML;{LITERAL}")
    learns = printed > numbers.mean("untrained")
    return (
        f"As printed alpha = 0 exerts no force: {printed:.1f} R@1, {'above' if learns else 'below'} the untrained "
        f"network's {numbers.mean('untrained'):.1f}, so the paper's 68.2 and 86.7 there need another definition."
    )


def _farther_repulsion(numbers: Numbers) -> str:
    levels = numbers.levels("PFML", "delta_rep")
    near, far, best = min(levels), max(levels), max(levels, key=levels.get)
    shown = far if best == near else best
    return (
        f"R@1 is highest at delta_rep = {best:g}, {agrees(best == near)}, where every radius beyond {near:g} loses: "
        f"delta_rep = {shown:g} has {numbers.against(_radius_of(shown), _radius_of(near))} at {near:g}."
    )


def _farthest_repulsion(numbers: Numbers) -> str:
    near, far = _ends(numbers)
    side = direction(numbers.effects(far, near))
    said = "does not clearly change" if not side else "falls" if side < 0 else "rises"
    return (
        f"Over the whole range R@1 {said}, {agrees(side < 0) if side else 'which decides nothing'}; the paper loses "
        f"6.8 (CUB) and 9.5 points (Cars) up to 0.45: {_shown(far)} has {numbers.gap(far, near)}."
    )


def _compressed(numbers: Numbers) -> str:
    within, between = "intra_class_distance", "class_mean_distance"
    near, far = _ends(numbers)
    shrinks = numbers.mean(far, within) < numbers.mean(near, within)
    over = [numbers.mean(cell, f"{within} / {between}") for cell in (near, far)]
    return (
        f"The mean distance within a class {'falls' if shrinks else 'does not fall'}, {agrees(shrinks)}, which "
        f"explains the loss by compressed classes: {numbers.mean(far, within):.3f} at {_shown(far)}, "
        f"{numbers.mean(near, within):.3f} at {_shown(near)} ({numbers.gap(far, near, within)}); over the distance "
        f"between class means it goes from {over[0]:.2f} to {over[1]:.2f}."
    )


def _ends(numbers: Numbers) -> tuple[str, str]:
    """The cells of the least and the largest radius of the repulsion."""
    levels = numbers.levels("PFML", "delta_rep")
    return _radius_of(min(levels)), _radius_of(max(levels))


def _radius_of(level: float) -> str:
    return f"PFML;delta_rep={level:g}"


def _shown(cell: str) -> str:
    return cell.partition(";")[2].replace("=", " = ")


NOTEBOOKS = [
    Notebook(ProxiesParams, ablation_proxies, findings=(_proxies_help, _many_proxies, _few_proxies)),
    Notebook(DeltaParams, ablation_delta, findings=(_radius, _best_radius)),
    Notebook(AlphaParams, ablation_alpha, findings=(_best_alpha, _no_decay, _strong_decay, _as_printed)),
    Notebook(
        RepulsionParams,
        ablation_repulsion_radius,
        spread_table,
        findings=(_farther_repulsion, _farthest_repulsion, _compressed),
    ),
]
