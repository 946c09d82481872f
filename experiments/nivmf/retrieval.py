"""Notebooks 20 and 21: retrieval with EL-nivMF, alone and beside ProxyAnchor (Tables 1 and 2), and how much ProxyAnchor
beside it (Fig. 4)."""

from typing import Annotated, Any

from pydantic import Field

from dmlrepro import metrics
from experiments.methods import expand_seeds, pick, runs_of, search_each, spec_of
from experiments.nivmf.methods import JOINT, METHODS, TABLE_2, NivmfOptions, nivmf_study
from experiments.params import MAY_BE_EMPTY, Number, Whole, parameters
from experiments.studies import evaluated_labels, histories_apart, measured, with_histories, with_measures
from experiments.training import protocols
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec


def retrieval(params: Any) -> list[RunSpec]:
    """Table 1, hyperparameters searched first where there are trials. Then Table 2, the joint loss with a step-wise
    learning-rate schedule, where the parameters have one."""
    specs = with_histories(expand_seeds(search_each(specs_of(params), METHODS, params), params))
    if params.lr_drop_epochs and JOINT in params.methods:
        schedule = {"lr_drop_epochs": params.lr_drop_epochs, "lr_drop": params.lr_drop}
        if params.profile == "paper" and params.protocol == "roth":  # the released runs have longer ones than Table 1
            table_1, record = protocols.find("roth").settings, params.published(JOINT, TABLE_2)
            unset = [name for name in ("epochs", "batch_size") if getattr(params, name) == table_1[name]]
            schedule |= {name: record[name].value for name in unset}
        specs += runs_of([METHODS[JOINT]], params, setting=TABLE_2, **schedule)
    return specs


def nmi_of(run: RunResult, params: Any) -> list[protocols.Scored]:
    """Of a run of Table 2 the NMI of its test embeddings; k-means has as many clusters as there are test classes."""
    return [measured(run, _nmi)] if run.spec.setting == TABLE_2 else []


def _nmi(run: RunResult) -> dict[str, float]:
    return {"NMI": metrics.nmi(run.embeddings, evaluated_labels(run)[0])}


def specs_of(params: Any) -> list[RunSpec]:
    return [spec_of(method, params) for method in pick(METHODS, params.methods)]


def ablation_omega(params: Any) -> list[RunSpec]:
    """The joint loss at every omega, 0 being EL-nivMF alone; ProxyAnchor alone; and the untrained network."""
    specs = runs_of(pick(METHODS, ["untrained", "ProxyAnchor"]), params)
    for omega in params.omegas:
        specs += runs_of([METHODS[JOINT]], params, setting=f"omega={omega:g}", loss_options={"omega": omega})
    return specs


Retrieval = nivmf_study(
    "20_nivmf_retrieval",
    parameters(
        NivmfOptions,
        methods=tuple[str, ...],
        omega=Number,  # weight of ProxyAnchor beside EL-nivMF
        search_trials=Whole,
        # of the runs of Table 2; empty: no such runs
        lr_drop_epochs=Annotated[tuple[Annotated[int | float, Field(ge=0)], ...], MAY_BE_EMPTY],
        lr_drop=Number,  # the factor of every learning rate at each of them
    ),
    retrieval,
    lambda finished, params: histories_apart(with_measures(finished, nmi_of, params)),
    nmi_of,
    profiles={
        "*": {"methods": ("untrained", "ProxyNCA++", "EL-nivMF", "ProxyAnchor", JOINT, "MultiSimilarity", "Margin")},
        "quick": {"train_from": "", "methods": ("untrained", "ProxyNCA++", "EL-nivMF", "ProxyAnchor", JOINT)},
    },
)
Omega = nivmf_study(
    "21_nivmf_ablation_omega",
    parameters(NivmfOptions, omegas=tuple[Number, ...]),
    ablation_omega,
    profiles={"*": {"omegas": (0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)}, "quick": {"omegas": (0.0, 1.0, 100.0)}},
    references={"omegas": (0.0,)},
)
