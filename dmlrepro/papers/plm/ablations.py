"""Notebooks 52 to 56: the ablations of PLM (Fig. 3, Table 3, and Sec. 3.1, which gives no figures).

Every run is PLM at the paper's setting (N_rho = 100, m = 3, N_alpha = 4, N_beta = 0.5, delta = 2) with one thing
varied. The default point of all five is one spec, which notebook 50 has too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dmlrepro.evidence import results
from dmlrepro.evidence.stored import Numbers
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.params import HEADS, HeadParams
from dmlrepro.papers.plm.methods import (
    BEFORE,
    PUBLISHED,
    PlmTrainingParams,
    changed,
    learns,
    stable,
    unlabelled_runs,
    weighed,
)
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PlmAblationParams(HeadParams, PlmTrainingParams):
    """What the ablations share: heads will do."""

    overrides: ClassVar = {
        "quick": PlmTrainingParams.overrides["quick"]
        | HEADS["quick"]
        | {"steps": 120, "batch_size": 100, "lr": PUBLISHED["lr"].value},
        "small": PlmTrainingParams.overrides["small"] | HEADS["small"] | {"batch_size": 100, "lr": 1e-4},
        "paper": PlmTrainingParams.overrides["paper"] | HEADS["paper"],
    }


@dataclass(frozen=True)
class PlmProxiesParams(PlmAblationParams):
    """The parameters of notebook 52."""

    notebook = "52_plm_ablation_proxies"
    references: ClassVar = {"numbers": (0, 100)}

    numbers: tuple[int, ...] = (0, 10, 50, 100, 250, 500)


@dataclass(frozen=True)
class PlmDimensionParams(PlmAblationParams):
    """The parameters of notebook 53."""

    notebook = "53_plm_ablation_dimension"
    references: ClassVar = {"dimensions": (3,)}

    dimensions: tuple[int, ...] = (2, 3, 4, 5, 6, 7)


@dataclass(frozen=True)
class PlmDecayParams(PlmAblationParams):
    """The parameters of notebook 54; a pair of decays is written "N_alpha/N_beta"."""

    notebook = "54_plm_ablation_decay"

    pairs: tuple[str, ...] = ("1/0.5", "3/0.5", "6/0.5", "4/0", "4/1", "1/1", "1.5/1.5", "0.5/1.5", "4/0.5")


@dataclass(frozen=True)
class PlmDeltaParams(PlmAblationParams):
    """The parameters of notebook 55."""

    notebook = "55_plm_ablation_delta"
    references: ClassVar = {"deltas": (2.0,)}

    deltas: tuple[float, ...] = (0.2, 0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class PlmSimilarityParams(PlmAblationParams):
    """The parameters of notebook 56."""

    notebook = "56_plm_ablation_similarity"


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


def published_decay() -> "pd.DataFrame":
    """The points of Fig. 3(c) that are known, a row per setting."""
    known = results.published("plm_figures", "Fig. 3(c)").set_index("split_or_setting")
    return known[["value"]].rename(columns={"value": f"published, {known['dataset'].iloc[0]}, R@1"})


def ablation_delta(params: PlmDeltaParams) -> list[RunSpec]:
    """Fig. 3(d): the distance of points without similarity."""
    return _ablation(params, {f"delta={delta:g}": {"delta": delta} for delta in params.deltas})


def ablation_similarity(params: PlmSimilarityParams) -> list[RunSpec]:
    """Table 3: all neighbours for a piece, binary similarity, and both; then what Sec. 3.1 says is needed: batches of
    neighbours and the momentum encoder."""
    every, binary = {"quality": 0.0}, {"similarity": "binary"}
    pieces: dict[str, dict] = {"": {}, "neighbours=all": every, "similarity=binary": binary}
    found = _ablation(params, pieces | {"neighbours=all;similarity=binary": every | binary})
    found += _runs(params, "batches=random", neighbours=None)
    return found + _runs(params, "momentum=0", scheme_options={"momentum": 0.0})


def _ablation(params: PlmAblationParams, settings: Mapping[str, dict]) -> list[RunSpec]:
    """The network before training for comparison, then PLM at every setting with these options of its loss."""
    found = unlabelled_runs(BEFORE, params)
    for setting, options in settings.items():
        found += _runs(params, setting, loss_options=options)
    return found


def _runs(params: PlmAblationParams, setting: str, **how) -> list[RunSpec]:
    frozen = params.freeze_trunk and params.weights != "none"
    return unlabelled_runs(["PLM"], params, setting=setting, freeze_trunk=frozen, **how)


def default_setting(options: Iterable[str]) -> str:
    """The setting of the paper's own point in an ablation over such options, e.g. "N_rho=100"."""
    names = {"N_rho": "num_proxies", "m": "dim", "N_alpha": "n_alpha", "N_beta": "n_beta", "delta": "delta"}
    return ";".join(f"{option}={PUBLISHED[f'loss.{names[option]}'].value:g}" for option in options)


# --- what was found ---------------------------------------------------------------------------------------------------


def _default_learns(options: Iterable[str]):
    """`learns` for the default point of a sweep."""
    return lambda numbers: learns(numbers, f"PLM;{default_setting(options)}")


def _cells(name: str, levels: Iterable[float], more: str = "") -> list[str]:
    return [f"PLM;{name}={level:g}{more}" for level in levels]


def _proxies_help(numbers: Numbers) -> str:
    return changed(numbers, "PLM;N_rho=100", "PLM;N_rho=0", "Having 100 proxies instead of none", expected=1)


def _many_proxies(numbers: Numbers) -> str:
    return f"From 50 to 500 proxies {stable(numbers, _cells('N_rho', (50, 100, 250, 500)), 'PLM;N_rho=100')}"


def _few_proxies(numbers: Numbers) -> str:
    return changed(numbers, "PLM;N_rho=10", "PLM;N_rho=100", "Having ten proxies only")


def _small_dimensions(numbers: Numbers) -> str:
    return f"From m = 2 to 4 {stable(numbers, _cells('m', (2, 3, 4)), 'PLM;m=3')}"


def _large_dimensions(numbers: Numbers) -> str:
    return changed(numbers, "PLM;m=7", "PLM;m=3", "Having pieces of seven dimensions instead of three")


_PUBLISHED_DECAY = "PLM;N_alpha=4;N_beta=0.5"


def _fast_across(numbers: Numbers) -> str:
    cells = _cells("N_alpha", (3, 4, 6), ";N_beta=0.5")
    return f"From N_alpha 3 to 6 at N_beta 0.5 {stable(numbers, cells, _PUBLISHED_DECAY)}"


def _equal_decay(numbers: Numbers) -> str:
    cells = [f"PLM;N_alpha={decay};N_beta={decay}" for decay in ("1", "1.5")]
    one, other = (numbers.mean(cell) - numbers.mean(_PUBLISHED_DECAY) for cell in cells)
    verdict = weighed(numbers, [*cells, _PUBLISHED_DECAY], max(one, other) <= -3)  # as the test of the claim has it
    return (
        f"Equal decay across and along a piece changes R@1 by {one:+.1f} (1 and 1) and {other:+.1f} (1.5 and 1.5), "
        f"where the paper loses about 10, {verdict}."
    )


def _no_decay_along(numbers: Numbers) -> str:
    return changed(numbers, "PLM;N_alpha=4;N_beta=0", _PUBLISHED_DECAY, "No decay along a piece (N_beta 0)")


def _any_delta(numbers: Numbers) -> str:
    return f"From delta 0.2 to 2 {stable(numbers, _cells('delta', (0.2, 0.5, 1, 1.5, 2)), 'PLM;delta=2')}"


def _best_delta(numbers: Numbers) -> str:
    means = numbers.levels("PLM", "delta")
    best = max(means, key=means.get)
    return f"Its best value here is delta {best:g} with {means[best]:.1f} R@1; the paper has 2."


def _without_pieces(numbers: Numbers) -> str:
    return changed(numbers, "PLM;neighbours=all", "PLM", "Taking all neighbours for a piece (3.3 points there)")


def _without_similarity(numbers: Numbers) -> str:
    return changed(numbers, "PLM;similarity=binary", "PLM", "Binary similarity (7.5 points there)")


def _without_both(numbers: Numbers) -> str:
    return changed(numbers, "PLM;neighbours=all;similarity=binary", "PLM", "Doing both (8.6 points there)")


def _needed(numbers: Numbers) -> str:
    cells = [f"PLM;{change}" for change in _NEEDED]
    needed = all(numbers.mean(cell) < numbers.mean("PLM") for cell in cells)
    said = ", ".join(f"{what} {numbers.gap(cell, 'PLM')}" for cell, what in zip(cells, _NEEDED.values()))
    verdict = f"{'is' if needed else 'is not all'} needed, {weighed(numbers, ['PLM', *cells], needed)}"
    return f"What Sec. 3.1 calls necessary {verdict}: {said}."


_NEEDED = {"batches=random": "random batches", "momentum=0": "no momentum encoder"}
NOTEBOOKS = [
    Notebook(
        PlmProxiesParams,
        ablation_proxies,
        findings=(_default_learns(["N_rho"]), _proxies_help, _many_proxies, _few_proxies),
    ),
    Notebook(
        PlmDimensionParams, ablation_dimension, findings=(_default_learns(["m"]), _small_dimensions, _large_dimensions)
    ),
    Notebook(
        PlmDecayParams,
        ablation_decay,
        findings=(_default_learns(["N_alpha", "N_beta"]), _fast_across, _equal_decay, _no_decay_along),
    ),
    Notebook(PlmDeltaParams, ablation_delta, findings=(_default_learns(["delta"]), _any_delta, _best_delta)),
    Notebook(
        PlmSimilarityParams,
        ablation_similarity,
        findings=(learns, _without_pieces, _without_similarity, _without_both, _needed),
    ),
]
