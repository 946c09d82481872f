"""Notebook 20: retrieval with EL-nivMF, alone and beside ProxyAnchor (Tables 1 and 2)."""

from collections.abc import Iterable
from typing import Annotated

import pandas as pd
from pydantic import Field

from dmlrepro import metrics
from experiments.methods import expand_seeds, found_by_search, pick, runs_of, search_each, spec_of
from experiments.nivmf.claims import TESTS
from experiments.nivmf.methods import JOINT, METHODS, TABLE_2, NivmfOptions, nivmf_study
from experiments.params import MAY_BE_EMPTY, Number, Params, Whole
from experiments.studies import evaluated_labels, histories_apart, measured, with_histories, with_measures
from experiments.training import protocols
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec


class NivmfRetrievalParams(NivmfOptions, Params):
    """The parameters of notebook 20."""

    methods: tuple[str, ...]
    omega: Number  # weight of ProxyAnchor beside EL-nivMF
    search_trials: Whole
    lr_drop_epochs: Annotated[
        tuple[Annotated[int | float, Field(ge=0)], ...], MAY_BE_EMPTY
    ]  # of the runs of Table 2; empty: no such runs
    lr_drop: Number  # the factor of every learning rate at each of them


def retrieval(params: NivmfRetrievalParams) -> list[RunSpec]:
    """Table 1: every method, every seed, its hyperparameters searched first where there are trials. Then Table 2, the
    joint loss with a step-wise learning-rate schedule, where the parameters have one."""
    main = expand_seeds([spec for spec, _ in search_each(_specs(params), METHODS, params)], params)
    specs = with_histories(main)
    if params.lr_drop_epochs and JOINT in params.methods:
        schedule = {"lr_drop_epochs": params.lr_drop_epochs, "lr_drop": params.lr_drop} | _longer(params)
        specs += runs_of([METHODS[JOINT]], params, setting=TABLE_2, **schedule)
    return specs


def _longer(params: NivmfRetrievalParams) -> dict:
    """Epochs and batches of the released runs instead of Table 1's, but for what the reader set otherwise."""
    if params.profile != "paper" or params.protocol != "roth":
        return {}
    table_1, record = protocols.find("roth").settings, params.published(JOINT, TABLE_2)
    return {name: record[name].value for name in ("epochs", "batch_size") if getattr(params, name) == table_1[name]}


def retrieval_table(finished: Iterable[RunResult], params: NivmfRetrievalParams) -> pd.DataFrame:
    """The rows of the runs, see `studies.histories_apart`, and the NMI of the test embeddings of Table 2's.

    It is that of the last step; k-means has as many clusters as there are test classes.
    """
    return histories_apart(with_measures(finished, nmi_of, params))


def nmi_of(run: RunResult, params: NivmfRetrievalParams) -> list[protocols.Scored]:
    """What `retrieval_table` adds to a run."""
    return [measured(run, _nmi)] if run.spec.setting == TABLE_2 else []


def _nmi(run: RunResult) -> dict[str, float]:
    return {"NMI": metrics.nmi(run.embeddings, evaluated_labels(run)[0])}


def tuned(params: NivmfRetrievalParams) -> pd.DataFrame | None:
    """The hyperparameters that the search of `retrieval` found, see `methods.found_by_search`; None without one."""
    return found_by_search(_specs(params), METHODS, params)


def _specs(params: NivmfRetrievalParams) -> list[RunSpec]:
    return [spec_of(method, params) for method in pick(METHODS, params.methods)]


Retrieval = nivmf_study(
    "20_nivmf_retrieval",
    NivmfRetrievalParams,
    retrieval,
    retrieval_table,
    nmi_of,
    profiles={
        "*": {"methods": ("untrained", "ProxyNCA++", "EL-nivMF", "ProxyAnchor", JOINT, "MultiSimilarity", "Margin")},
        "quick": {"train_from": "", "methods": ("untrained", "ProxyNCA++", "EL-nivMF", "ProxyAnchor", JOINT)},
    },
    claims=TESTS,
    ranked=("EL-nivMF", JOINT),
)
