"""Notebook 91: the main methods of the five papers under one protocol, and combinations that no paper tried.

At small and paper the main methods are trained, each as the notebook of its paper trains it, so that their runs are one
run: conventional protocol, one network and data set, about as many images seen. At every profile there are the
combinations that losses and algorithms allow by their options alone:

    PFML-CCP, EL-nivMF-CCP        CCP's repeated problems over a field of PFML, and over non-isotropic proxies; beside
                                  each ("-Proxy") the single problem that is never begun anew
    ...+encoder                   losses with labels whose network has PLM's momentum encoder beside it: the average of
                                  its weights is evaluated too (network=teacher)

What else could be combined needs a loss of its own: non-isotropic proxies within PFML's field, mean fields in place of
proxies of CCP or over PLM's similarity.
"""

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import pandas as pd
from pydantic import model_validator

from experiments.analysis.claims import START
from experiments.ccp import retrieval as ccp_retrieval
from experiments.ccp.ablations import Alternating, course
from experiments.ccp.methods import ALGORITHM, Variant, algorithm_options, ccp_spec
from experiments.meanfield import conventional as meanfield
from experiments.meanfield.methods import METHODS as MEANFIELD
from experiments.methods import expand_seeds, pick, runs_of, spec_of
from experiments.nivmf import retrieval as nivmf_retrieval
from experiments.nivmf.methods import JOINT
from experiments.nivmf.methods import METHODS as NIVMF
from experiments.params import MAY_BE_EMPTY, Params
from experiments.pfml import retrieval as pfml_retrieval
from experiments.pfml.methods import METHODS as PFML
from experiments.plm import retrieval as plm_retrieval
from experiments.studies import histories_apart, measured, with_measures
from experiments.study import Study
from experiments.training.protocols import Scored
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec


class Source(NamedTuple):
    """The notebook that a method's runs are shared with, and what is set otherwise there; epochs_at_small: how many see
    about as many images as the steps of the others."""

    study: Study
    methods: tuple[str, ...]
    changes: Mapping[str, Any] = MappingProxyType({})
    epochs_at_small: int | None = None


SOURCES = (
    Source(
        pfml_retrieval.Retrieval,
        ("untrained", "PFML", "ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity"),
        {"protocol": "conventional", "search_trials": 0, "small_dim": 0, "mlrc_steps": 0},
    ),
    Source(nivmf_retrieval.Retrieval, ("EL-nivMF", JOINT), {"protocol": "conventional", "search_trials": 0}),
    Source(meanfield.Conventional, ("MFCont", "MFCWMS"), epochs_at_small=4),
    Source(ccp_retrieval.Conventional, ("C2", "C2-CCP-L")),
    Source(plm_retrieval.Retrieval, ("PLM",)),
)
MAIN = tuple(name for source in SOURCES for name in source.methods)
PROJECTED, ENCODED = {"PFML": PFML, "EL-nivMF": NIVMF}, {"PFML": PFML, "MFCont": MEANFIELD}
COMBINATIONS = (*(f"{name}-CCP" for name in PROJECTED), *(f"{name}+encoder" for name in ENCODED))


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
    specs = runs_of(pick(PFML, ["untrained"]), params)
    for source in SOURCES:
        asked = tuple(name for name in source.methods if name in params.methods)
        if asked:
            own = _params(source.study, params, methods=asked, **source.changes)
            if source.epochs_at_small and params.profile == "small" and not {"steps", "epochs"} & params.changed.keys():
                own = own.model_copy(update={"epochs": source.epochs_at_small})
            runs = source.study.specs(own)
            specs += [run for run in runs if run.method in (*asked, START) and not run.setting]
    specs += projected_runs(params)
    for name in (name for name in ENCODED if f"{name}+encoder" in params.combinations):
        specs += encoded_runs(name, params)
    return [run for place, run in enumerate(specs) if run not in specs[:place]]


def _params(study: Study, params: Params, **changes: object) -> Any:
    """The parameters of another notebook on the same data, with what the reader sets of those that all share."""
    given = {name: getattr(params, name) for name in Params.defaults() if params.origins.get(name) == "reader"}
    return study.configured(given | {"profile": params.profile, "dataset": params.dataset} | changes)


def projected_runs(params: OneProtocolParams) -> list[RunSpec]:
    """CCP over PFML and over EL-nivMF, and their single problems; those of PFML are runs of notebook 44 too."""
    names = [name for name in PROJECTED if f"{name}-CCP" in params.combinations]
    if not names:
        return []
    ccp = _params(Alternating, params)
    variants = [(name, form) for name in names for form in ("Proxy", "CCP")]
    specs = [ccp_spec("-".join(of), ccp) if of[0] == "PFML" else _projected(*of, ccp) for of in variants]
    return expand_seeds([ccp_spec("untrained", ccp), *specs], ccp)


def _projected(name: str, form: str, ccp: Any) -> RunSpec:
    """CCP over a loss of which the room of CCP has no record. Its first problem starts where the loss starts."""
    variant = Variant(name, form)
    record = PROJECTED[name][name]
    method = dataclasses.replace(record, name=variant.name, fields={**record.fields, "algorithm": ALGORITHM})
    looks: dict[str, Any] = {"monitor": "MAP@R"} | ({} if ccp.profile == "paper" else {"eval_every": ccp.eval_every})
    return spec_of(method, ccp, algorithm_options=algorithm_options(variant, ccp), **looks)


def encoded_runs(name: str, params: OneProtocolParams) -> list[RunSpec]:
    """A loss with labels whose network has PLM's momentum encoder beside it; both are evaluated, and the network learns
    as it would without."""
    momentum = _params(plm_retrieval.Retrieval, params).momentum
    record = ENCODED[name][name]
    method = dataclasses.replace(record, name=f"{name}+encoder", fields={**record.fields, "algorithm": "momentum"})
    return runs_of([method], params, algorithm_options={"momentum": momentum})


def table_of(finished: Iterable[RunResult], params: OneProtocolParams) -> pd.DataFrame:
    """The rows of the runs, see `studies.histories_apart`, with `steps` and of CCP the number of `problems`."""
    return histories_apart(with_measures(finished, measures, params))


def measures(run: RunResult, params: OneProtocolParams) -> list[Scored]:
    """What `table_of` adds to a run of a combination with CCP."""
    return [measured(run, course)] if run.spec.method.endswith(("-CCP", "-Proxy")) else []


OneProtocol = Study(
    "91_five_methods_one_protocol",
    OneProtocolParams,
    one_protocol,
    table_of,
    measures,
    profiles={
        "*": {"methods": MAIN, "combinations": COMBINATIONS},
        "quick": {"methods": (), "combinations": COMBINATIONS[::2], "steps": 60, "batch_size": 32},
    },
)
