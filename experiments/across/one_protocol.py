"""Notebook 91: the main methods of the five papers under one protocol.

Each is trained as the notebook of its paper trains it, so that their runs are one run: conventional protocol, one
network and data set, about as many images seen.
"""

from typing import Any

from experiments import papers
from experiments.analysis import results
from experiments.analysis.tables import START
from experiments.ccp import retrieval as ccp_retrieval
from experiments.checks import refuse_unknown
from experiments.meanfield import conventional as meanfield
from experiments.methods import pick, runs_of
from experiments.nivmf import retrieval as nivmf_retrieval
from experiments.nivmf.methods import JOINT
from experiments.params import Params
from experiments.pfml import retrieval as pfml_retrieval
from experiments.plm import retrieval as plm_retrieval
from experiments.studies import histories_apart
from experiments.study import Study
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


class OneProtocolParams(Params):
    """The parameters of notebook 91."""

    methods: tuple[str, ...]


def one_protocol(params: OneProtocolParams) -> list[RunSpec]:
    """The network before training and the main methods."""
    refuse_unknown("unknown method", params.methods, MAIN)
    specs = runs_of(pick(papers.methods(), ["untrained"]), params)
    for study, names, changes in SOURCES:
        if asked := tuple(name for name in names if name in params.methods):
            own = _params(study, params, methods=asked, **changes)
            budget = params.changed.keys() & {"steps", "epochs"}
            if study is meanfield.Conventional and params.profile == "small" and not budget:
                own = own.model_copy(update={"epochs": 4})  # which see about as many images as the steps of the others
            runs = (run for run in study.specs(own) if run.seed < params.seeds and not run.setting)
            specs += [run for run in runs if run.method in (*asked, START)]
    return [run for place, run in enumerate(specs) if run not in specs[:place]]


def _params(study: Study, params: Params, **changes: object) -> Any:
    """The parameters of another notebook on the same data, with what the reader sets of those that all share."""
    given = {name: getattr(params, name) for name in Params.defaults() if params.origins.get(name) == "reader"}
    return study.configured(given | {"profile": params.profile, "dataset": params.dataset} | changes)


OneProtocol = Study(
    "91_five_methods_one_protocol",
    OneProtocolParams,
    one_protocol,
    lambda finished, params: histories_apart(results.tidy(finished, params)),
    profiles={"*": {"methods": MAIN}, "quick": {"methods": ("PFML", "EL-nivMF", "MFCont", "C2-CCP-L", "PLM")}},
)
