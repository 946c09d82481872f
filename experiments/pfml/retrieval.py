"""Notebook 10: retrieval with PFML and its baselines (Tables 1 and 4 to 7)."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from experiments.analysis import results, summaries
from experiments.analysis.claims import START
from experiments.methods import expand_seeds, found_by_search, pick, runs_of, search_each, spec_of
from experiments.params import Params, Whole
from experiments.pfml.claims import TESTS
from experiments.pfml.methods import METHODS, READINGS, FieldOptions, pfml_study, published
from experiments.studies import histories_apart, with_histories
from experiments.training.spec import RunSpec

TABLE_1 = ("untrained", "PFML", "CPML", "ProxyAnchor", "ProxyNCA++")
TABLE_1 += ("SoftTriple", "MultiSimilarity", "Contrastive", "Triplet")


class PfmlRetrievalParams(FieldOptions, Params):
    """The parameters of notebook 10."""

    methods: tuple[str, ...]
    protocol: str
    search_trials: Whole
    small_dim: Whole  # dimension of the small embeddings of Tables 4 and 5; 0: no such runs
    mlrc_steps: Whole  # steps of each fold of Tables 6 and 7; 0: no folds


# Which READINGS a profile has: each costs as much as a method, at paper a week.
READINGS_AT = {"quick": ("delta_rep=0.3",), "small": ("delta_rep=0.3",), "paper": ()}
SMALL_DIM_METHODS = ("PFML", "ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity")
MLRC_METHODS = ("untrained", "PFML", "MultiSimilarity", "ProxyAnchor", "Contrastive")


def retrieval(params: PfmlRetrievalParams) -> list[RunSpec]:
    """Table 1 (Tables 6 and 7 with protocol mlrc): every method, every seed, its hyperparameters searched first where
    there are trials. Then, beside the conventional protocol, the two fields as READINGS has them, small embeddings
    (Tables 4, 5), and the folds of MLRC with a small budget (Tables 6, 7).
    """
    main = expand_seeds([spec for spec, _ in search_each(_specs(params), METHODS, params)], params)
    specs = with_histories(main)
    if params.protocol == "conventional":
        for setting in READINGS_AT[params.profile]:
            method, change = READINGS[setting]
            if method in params.methods:
                specs += runs_of([METHODS[method]], params, setting=setting, **change)
    if params.protocol == "conventional" and params.small_dim:
        dim = params.small_dim
        budget = {"steps": params.steps // 2} if _halved(params) else {}
        small = _specs(params, SMALL_DIM_METHODS, embedding_size=dim, setting=f"dim={dim}", **budget)
        specs += expand_seeds(small, params)
        begins = runs_of(
            [METHODS["untrained"]], params.model_copy(update={"embedding_size": dim}), setting=f"dim={dim}"
        )
        specs += [run for run in begins if run.method == START]
    if params.protocol == "conventional" and params.mlrc_steps:
        steps = params.mlrc_steps
        twice = {"eval_every": max(steps // 2, 1), "eval_every_epochs": None}
        short = _specs(params, MLRC_METHODS, steps=steps, epochs=None, **twice)
        specs += expand_seeds(short, params, "mlrc")
    return specs


def retrieval_table(finished: Iterable, params: PfmlRetrievalParams) -> pd.DataFrame:
    """The rows of the runs; see `studies.histories_apart`."""
    return histories_apart(results.tidy(finished, params))


def readings_summary(table: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """The two fields under the conventional protocol, as everywhere and as READINGS has them; see `summaries.pivot`."""
    shown = (table["protocol"] == "conventional") & table["method"].isin(method for method, _ in READINGS.values())
    rows = summaries.pivot(table[shown & table["setting"].isin(["", *READINGS])], metrics)
    return rows.droplevel("protocol").rename(index={"": "as everywhere"})


def further_summary(table: pd.DataFrame, params: PfmlRetrievalParams, metrics: Sequence[str]) -> pd.DataFrame:
    """Small embeddings and folds, see `summaries.pivot`; rows of another budget than the main comparison say so."""
    main = (table["setting"] == "") & (table["protocol"] == table["protocol"].iloc[0])
    rows = table[~main & ~table["setting"].isin(READINGS)]
    halved = {f"dim={params.small_dim}": f"dim={params.small_dim}, {params.steps // 2} steps"}
    return summaries.pivot(rows, metrics).rename(index=halved if _halved(params) else {})


def printed_further() -> pd.DataFrame:
    """Tables 4 to 7 as printed, of the methods that are ours: at 64 dimensions, and the folds of MLRC."""
    rows = published([f"Table {number} (supp)" for number in (4, 5, 6, 7)], metric=["R@1", "P@1", "RP", "MAP@R"])
    rows = rows[rows["method"].isin(METHODS)].replace({"metric": {"R@1": "P@1"}})  # one measure under two names
    rows = rows.assign(split_or_setting=rows["split_or_setting"].str.replace("standard zero-shot split; ", ""))
    wide = rows.pivot(index=["split_or_setting", "method"], columns=["dataset", "metric"], values="value")
    return wide.sort_index(axis=1, level="dataset", sort_remaining=False).astype(object).fillna("")


def printed_backbones() -> pd.DataFrame:
    """R@1 of Table 1 with networks other than ResNet-50, whose rows stand beside ours."""
    rows = published("Table 1", metric="R@1", backbone=["BN-Inception", "DINO", "ViT"])
    return summaries.readable(rows.pivot(index=["backbone", "method"], columns="dataset", values="value"), 1)


def _halved(params: PfmlRetrievalParams) -> bool:
    """Whether small embeddings have half the steps: quick shows a direction, for which they will do."""
    return params.profile == "quick" and params.steps > 1


def tuned(params: PfmlRetrievalParams):
    """The hyperparameters that the search of `retrieval` found, see `methods.found_by_search`; None without one."""
    return found_by_search(_specs(params), METHODS, params)


def _specs(params: PfmlRetrievalParams, among: Iterable[str] | None = None, **how: Any) -> list[RunSpec]:
    """The parameters' methods, or those of `among` that they have."""
    names = params.methods if among is None else [name for name in among if name in params.methods]
    return [spec_of(method, params, **how) for method in pick(METHODS, names)]


Retrieval = pfml_study(
    "10_pfml_retrieval",
    PfmlRetrievalParams,
    retrieval,
    retrieval_table,
    profiles={
        "quick": {"small_dim": 0, "mlrc_steps": 0, "seeds": 2, "methods": TABLE_1[:5]},
        "small": {"small_dim": 64, "mlrc_steps": 150, "methods": TABLE_1},
        "paper": {"small_dim": 64, "mlrc_steps": 0, "methods": TABLE_1},
    },
    claims=TESTS,
    ranked=("PFML",),
)
