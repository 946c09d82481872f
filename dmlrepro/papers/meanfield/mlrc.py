"""Notebooks 31 and 38: the protocol of "A Metric Learning Reality Check" (Tables 1, 3 to 7 and 15).

Below the profile paper it is the same protocol, four folds of the training classes and the models of best validation
MAP@R, with fewer steps and without a search, or with one of `search_trials` trials.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dmlrepro.evidence.stored import Numbers, agrees, where_learned
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.meanfield.claims import MEAN_FIELDS, SAME_RATE
from dmlrepro.papers.meanfield.methods import (
    FIELD_LR,
    METHODS,
    PAIRS,
    MeanFieldHeadParams,
    MeanFieldParams,
    compared,
    specs_of,
)
from dmlrepro.papers.methods import every_seed, found_by_search, search_each
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class FoldsParams(MeanFieldHeadParams):
    """What the two share: at paper MLRC's own network, batches, budget and search."""

    overrides: ClassVar = {
        "quick": MeanFieldHeadParams.overrides["quick"] | {"protocol": "mlrc"},
        "small": MeanFieldHeadParams.overrides["small"] | {"protocol": "mlrc"},
        "paper": {"protocol": "mlrc", "freeze_trunk": False},
    }

    protocol: str | None = None
    search_trials: int | None = None  # how many a search for each method's hyperparameters has; 0: no search

    def training(self) -> dict:
        if self.profile == "paper" or self.eval_every_epochs:
            return super().training()
        return super().training() | _evaluations(self, 2)


def _evaluations(params: MeanFieldParams, count: int) -> dict:
    """So many evaluations in a run, where the profile decides."""
    if params.steps:
        return {"eval_every": max(params.steps // count, 1), "eval_every_epochs": None}
    return {"eval_every": None, "eval_every_epochs": params.epochs / count}


@dataclass(frozen=True)
class MlrcParams(FoldsParams):
    """The parameters of notebook 31."""

    notebook = "31_meanfield_mlrc"

    methods: tuple[str, ...] = (
        "untrained",
        "ArcFace",
        "CosFace",
        "MultiSimilarity",
        "ProxyNCA++",
        "ProxyAnchor",
        "Cont",
        "MFCont",
        "CWMS",
        "MFCWMS",
    )


@dataclass(frozen=True)
class NcaParams(FoldsParams):
    """The parameters of notebook 38; the effect is as large as the spread, so that there are many seeds."""

    notebook = "38_meanfield_nca"
    overrides: ClassVar = {
        "quick": FoldsParams.overrides["quick"],
        "small": FoldsParams.overrides["small"] | {"seeds": 20},
        "paper": FoldsParams.overrides["paper"] | {"seeds": 20},
    }


def mlrc(params: MlrcParams) -> list[RunSpec]:
    """Tables 1 and 3 to 5: every method on every fold, its hyperparameters searched first where there are trials."""
    specs = specs_of(params.methods, params)
    return every_seed([spec for spec, _ in search_each(specs, METHODS, params)], params)


def nca(params: NcaParams) -> list[RunSpec]:
    """Table 15: ProxyNCA++, MFNCA, and ProxyNCA++ that starts in MFNCA's directions and turns as fast: its proxies are
    an eighth as long, and so is their rate."""
    searched = specs_of(("untrained", "ProxyNCA++", "MFNCA"), params)
    alike = specs_of(["ProxyNCA++"], params, setting=SAME_RATE, loss_lr={"*": FIELD_LR / 8})
    return every_seed([spec for spec, _ in search_each(searched, METHODS, params)] + alike, params)


def tuned(params: MlrcParams) -> "pd.DataFrame | None":
    """The hyperparameters that the search of `mlrc` found, see `methods.found_by_search`; None without one."""
    return found_by_search(specs_of(params.methods, params), METHODS, params)


def welch(table: "pd.DataFrame", baselines: Sequence[str] = ("ArcFace", "ProxyAnchor")) -> "pd.DataFrame":
    """Tables 6 and 7: MAP@R of the mean field losses less a baseline's, and Welch's two-sided p, unadjusted.

    A row per protocol, baseline and loss, of the models of best validation MAP@R.
    """
    import pandas as pd
    from scipy import stats

    rows = table[(table["metric"] == "MAP@R") & (table["selection"] == "val_best") & (table["setting"] == "")]
    scores = {key: group["value"] for key, group in rows.groupby(["protocol", "method"])}
    found = []
    for protocol in rows["protocol"].unique():
        for baseline in baselines:
            for name in MEAN_FIELDS:
                ours, other = scores.get((protocol, name)), scores.get((protocol, baseline))
                if ours is not None and other is not None:
                    p = stats.ttest_ind(ours, other, equal_var=False).pvalue
                    row = {"protocol": protocol, "baseline": baseline, "method": name, "n": len(ours)}
                    found.append(row | {"difference": ours.mean() - other.mean(), "p": p})
    return pd.DataFrame(found)


# --- what was found ---------------------------------------------------------------------------------------------------

BASELINES = ("ArcFace", "CosFace", "MultiSimilarity", "ProxyNCA++", "ProxyAnchor")


def _over_pairs(numbers: Numbers) -> str:
    return compared(numbers, PAIRS, "the pair losses they come from", "whose gains on birds are 1.0 and 0.6")


def _over_baselines(numbers: Numbers) -> str:
    best = numbers.ranked(BASELINES, "MAP@R")[0]
    rivals = dict.fromkeys(MEAN_FIELDS, best)
    return compared(numbers, rivals, f"{best}, here the best baseline", "whose margins on birds are 0.3 and 0.4")


def _first_place(numbers: Numbers) -> str:
    ranked = numbers.ranked([name for name in numbers.methods if name != "untrained"], "MAP@R")
    means = ", ".join(f"{name} {numbers.mean(name, 'MAP@R'):.1f}" for name in ranked[:3])
    places = " and ".join(f"{name} place {ranked.index(name) + 1}" for name in MEAN_FIELDS if name in ranked)
    return f"Of {len(ranked)} losses the first three are {means}; {places}."


def _second_term(numbers: Numbers) -> str:
    metrics = ("MAP@R", "P@1", "RP")
    helps = [name for name in metrics if numbers.mean("MFNCA", name) > numbers.mean("ProxyNCA++", name)]
    told = ", ".join(numbers.against("MFNCA", "ProxyNCA++", name) for name in metrics)
    return (
        f"MFNCA beats ProxyNCA++ in {' and '.join(helps) or 'no metric'}, {agrees(len(helps) == 3)}, whose gains on "
        f"birds are 0.2, 0.7 and 0.3: {told}."
    )


def _at_the_same_rate(numbers: Numbers) -> str:
    alike = f"ProxyNCA++;{SAME_RATE}"
    helps = numbers.mean("MFNCA", "MAP@R") > numbers.mean(alike, "MAP@R")
    return (
        f"Beside ProxyNCA++ that starts in the same directions and turns as fast, so that Eq. 21's second term alone "
        f"differs, MFNCA is {'ahead' if helps else 'not ahead'}, {agrees(helps)}: "
        f"{numbers.against('MFNCA', alike, 'MAP@R')}."
    )


NOTEBOOKS = [
    Notebook(MlrcParams, mlrc, findings=where_learned(_over_pairs, _over_baselines, _first_place)),
    Notebook(NcaParams, nca, findings=where_learned(_second_term, _at_the_same_rate)),
]
