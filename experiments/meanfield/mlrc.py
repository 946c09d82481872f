"""Notebooks 31 and 38: the protocol of "A Metric Learning Reality Check" (Tables 1, 3 to 7 and 15).

Below the profile paper it is the same protocol, four folds of the training classes and the models of best validation
MAP@R, with fewer steps and without a search, or with one of `search_trials` trials.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from experiments.meanfield.claims import MEAN_FIELDS, SAME_RATE, TESTS
from experiments.meanfield.methods import FIELD_LR, METHODS, MeanFieldParams, specs_of
from experiments.methods import every_seed, found_by_search, search_each
from experiments.profiles import at, layered
from experiments.study import Study
from experiments.training.spec import RunSpec


@dataclass(frozen=True)
class FoldsParams(MeanFieldParams):
    """What the two share: at paper MLRC's own network, batches, budget and search."""

    overrides: ClassVar = at(protocol="mlrc")

    protocol: str | None = None
    search_trials: int | None = None

    def training(self) -> dict:
        if self.profile == "paper" or self.eval_every_epochs:
            return super().training()
        return super().training() | _evaluations(self, 2)


def _evaluations(params: MeanFieldParams, count: int) -> dict:
    """So many evaluations in a run, where the profile decides."""
    if params.steps:
        return {"eval_every": max(params.steps // count, 1), "eval_every_epochs": None}
    return {"eval_every": None, "eval_every_epochs": params.epochs / count}


PAIRS = ("Cont", "MFCont", "CWMS", "MFCWMS")  # a loss on pairs and its mean field, twice


@dataclass(frozen=True)
class MlrcParams(FoldsParams):
    """The parameters of notebook 31."""

    notebook = "31_meanfield_mlrc"
    overrides: ClassVar = layered(
        FoldsParams.overrides,
        at(methods=("untrained", "ArcFace", "CosFace", "MultiSimilarity", "ProxyNCA++", "ProxyAnchor", *PAIRS)),
        at("quick", methods=("untrained", "ArcFace", "ProxyAnchor", "MFCont", "MFCWMS")),
    )

    methods: tuple[str, ...] | None = None


@dataclass(frozen=True)
class NcaParams(FoldsParams):
    """The parameters of notebook 38; the effect is as large as the spread, so that there are many seeds."""

    notebook = "38_meanfield_nca"
    overrides: ClassVar = layered(FoldsParams.overrides, at("small", "paper", seeds=20))


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


def tuned(params: MlrcParams) -> pd.DataFrame | None:
    """The hyperparameters that the search of `mlrc` found, see `methods.found_by_search`; None without one."""
    return found_by_search(specs_of(params.methods, params), METHODS, params)


def welch(table: pd.DataFrame, baselines: Sequence[str] = ("ArcFace", "ProxyAnchor")) -> pd.DataFrame:
    """Tables 6 and 7: MAP@R of the mean field losses less a baseline's, and Welch's two-sided p, unadjusted.

    A row per protocol, baseline and loss, of the models of best validation MAP@R.
    """
    from scipy import stats

    rows = table[(table["metric"] == "MAP@R") & (table["selection"] == "val_best") & (table["setting"] == "")]
    scores = {key: group["value"] for key, group in rows.groupby(["protocol", "method"])}
    tests = []
    for protocol in rows["protocol"].unique():
        for baseline in baselines:
            for name in MEAN_FIELDS:
                ours, other = scores.get((protocol, name)), scores.get((protocol, baseline))
                if ours is not None and other is not None:
                    p = stats.ttest_ind(ours, other, equal_var=False).pvalue
                    row = {"protocol": protocol, "baseline": baseline, "method": name, "n": len(ours)}
                    tests.append(row | {"difference": ours.mean() - other.mean(), "p": p})
    return pd.DataFrame(tests)


Mlrc = Study(MlrcParams, mlrc, claims=TESTS)
Nca = Study(NcaParams, nca, claims=TESTS)
