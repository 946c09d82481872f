"""Notebook 91: the main methods of the five papers under one protocol, and combinations that no paper tried.

At small and paper the main methods are trained, each as the notebook of its paper trains it, so that their runs are one
run: conventional protocol, one network and data set, about as many images seen. At every profile there are the
combinations that losses and algorithms allow by their options alone, see `combined_runs`.
"""

import dataclasses
import typing
from typing import Annotated, Any

from pydantic import model_validator

from experiments import papers
from experiments.analysis.tables import START
from experiments.ccp import retrieval as ccp_retrieval
from experiments.ccp.ablations import Alternating, course
from experiments.ccp.methods import ALGORITHM, ccp_spec
from experiments.meanfield import conventional as meanfield
from experiments.methods import expand_seeds, pick, runs_of
from experiments.nivmf import retrieval as nivmf_retrieval
from experiments.nivmf.methods import JOINT
from experiments.params import MAY_BE_EMPTY, Params
from experiments.pfml import retrieval as pfml_retrieval
from experiments.plm import retrieval as plm_retrieval
from experiments.studies import histories_apart, measured, with_measures
from experiments.study import Study
from experiments.training.protocols import Scored
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

# (the notebook that shares its runs, its methods, what is set otherwise there)
SOURCES: tuple[tuple[Study, tuple[str, ...], dict[str, Any]], ...] = (
    (
        pfml_retrieval.Retrieval,
        ("untrained", "PFML", "ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity"),
        {"protocol": "conventional", "search_trials": 0, "small_dim": 0, "mlrc_steps": 0},
    ),
    (nivmf_retrieval.Retrieval, ("EL-nivMF", JOINT), {"protocol": "conventional", "search_trials": 0}),
    (meanfield.Conventional, ("MFCont", "MFCWMS"), {}),
    (ccp_retrieval.Conventional, ("C2", "C2-CCP-L"), {}),
    (plm_retrieval.Retrieval, ("PLM",), {}),
)
MAIN = tuple(name for _, names, _ in SOURCES for name in names)
METHODS = papers.methods()
PROJECTED, ENCODED = ("PFML", "EL-nivMF"), (METHODS["PFML"], METHODS["MFCont"])
COMBINATIONS = (*(f"{name}-CCP" for name in PROJECTED), *(f"{loss.name}+encoder" for loss in ENCODED))


class OneProtocolParams(Params):
    """The parameters of notebook 91."""

    methods: Annotated[tuple[str, ...], MAY_BE_EMPTY]
    combinations: Annotated[tuple[str, ...], MAY_BE_EMPTY]

    @model_validator(mode="after")
    def _known(self) -> typing.Self:
        for name, known in {"methods": MAIN, "combinations": COMBINATIONS}.items():
            if unknown := [choice for choice in getattr(self, name) or () if choice not in known]:
                raise ValueError(f"{name}: unknown {unknown[0]!r}; choose among {', '.join(known)}")
        if not self.methods and not self.combinations:
            raise ValueError("methods and combinations are both empty: name one of either")
        return self


def one_protocol(params: OneProtocolParams) -> list[RunSpec]:
    """The network before training, the main methods, and the combinations beside what they are made of."""
    specs = runs_of(pick(METHODS, ["untrained"]), params)
    for study, names, changes in SOURCES:
        if asked := tuple(name for name in names if name in params.methods):
            own = _params(study, params, methods=asked, **changes)
            budget = params.changed.keys() & {"steps", "epochs"}
            if study is meanfield.Conventional and params.profile == "small" and not budget:
                own = own.model_copy(update={"epochs": 4})  # which see about as many images as the steps of the others
            specs += [run for run in study.specs(own) if run.method in (*asked, START) and not run.setting]
    specs += combined_runs(params)
    return [run for place, run in enumerate(specs) if run not in specs[:place]]


def _params(study: Study, params: Params, **changes: object) -> Any:
    """The parameters of another notebook on the same data, with what the reader sets of those that all share."""
    given = {name: getattr(params, name) for name in Params.defaults() if params.origins.get(name) == "reader"}
    return study.configured(given | {"profile": params.profile, "dataset": params.dataset} | changes)


def combined_runs(params: OneProtocolParams) -> list[RunSpec]:
    """The combinations that are asked for: CCP's repeated problems over PFML and over EL-nivMF, each beside the single
    problem that is never begun anew ("-Proxy"); and losses with labels whose network has PLM's momentum encoder beside
    it ("+encoder"), whose average of the weights is evaluated too (network=teacher). Those of PFML with CCP are runs of
    notebook 44 too; the first problem of EL-nivMF starts where the loss starts."""
    specs = []
    projected = [name for name in PROJECTED if f"{name}-CCP" in params.combinations]
    if names := [f"{name}-{form}" for name in projected for form in ("Proxy", "CCP")]:
        ccp, loss = _params(Alternating, params), METHODS["EL-nivMF"]
        fields = {**loss.fields, "algorithm": ALGORITHM}
        own = {name: dataclasses.replace(loss, name=name, fields=fields) for name in names if name not in METHODS}
        specs += expand_seeds([ccp_spec(name, ccp, METHODS | own) for name in ("untrained", *names)], ccp)
    for loss in ENCODED:
        if (name := f"{loss.name}+encoder") in params.combinations:
            momentum = _params(plm_retrieval.Retrieval, params).momentum
            method = dataclasses.replace(loss, name=name, fields={**loss.fields, "algorithm": "momentum"})
            specs += runs_of([method], params, algorithm_options={"momentum": momentum})
    return specs


def measures(run: RunResult, params: OneProtocolParams) -> list[Scored]:
    """`steps` and the number of `problems` of a combination with CCP."""
    return [measured(run, course)] if run.spec.method.endswith(("-CCP", "-Proxy")) else []


OneProtocol = Study(
    "91_five_methods_one_protocol",
    OneProtocolParams,
    one_protocol,
    lambda finished, params: histories_apart(with_measures(finished, measures, params)),
    measures,
    profiles={
        "*": {"methods": MAIN, "combinations": COMBINATIONS},
        "quick": {"methods": (), "combinations": COMBINATIONS[::2], "steps": 60, "batch_size": 32},
    },
)
