"""Notebook 91: the main methods of the five papers under one protocol, and combinations that no paper tried.

At small and paper the main methods are trained, each as the notebook of its paper trains it, so that their runs are one
run: conventional protocol, one network and data set, about as many images seen. At every profile there are the
combinations that losses and schemes allow by their options alone:

    PFML-CCP, EL-nivMF-CCP        CCP's repeated problems over a field of PFML, and over non-isotropic proxies; beside
                                  each ("-Proxy") the single problem that is never begun anew
    ...+encoder                   losses with labels whose network has PLM's momentum encoder beside it: the average of
                                  its weights is evaluated too (network=teacher)

What else could be combined needs a loss of its own: non-isotropic proxies within PFML's field, mean fields in place of
proxies of CCP or over PLM's similarity.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import pandas as pd

from experiments.analysis.claims import START
from experiments.ccp.ablations import AlternatingParams, course
from experiments.ccp.methods import SCHEME, Variant, ccp_spec, scheme_options
from experiments.ccp.retrieval import CcpConventionalParams
from experiments.ccp.retrieval import conventional as ccp_conventional
from experiments.meanfield.conventional import ConventionalParams, conventional
from experiments.meanfield.methods import METHODS as MEANFIELD
from experiments.methods import every_seed, pick, runs_of, spec_of
from experiments.nivmf.methods import JOINT
from experiments.nivmf.methods import METHODS as NIVMF
from experiments.nivmf.retrieval import NivmfRetrievalParams
from experiments.nivmf.retrieval import retrieval as nivmf_retrieval
from experiments.params import Params
from experiments.pfml.methods import METHODS as PFML
from experiments.pfml.retrieval import PfmlRetrievalParams
from experiments.pfml.retrieval import retrieval as pfml_retrieval
from experiments.plm.retrieval import PlmRetrievalParams
from experiments.plm.retrieval import retrieval as plm_retrieval
from experiments.studies import histories_apart, measured, with_measures
from experiments.study import Study
from experiments.training.protocols import Scored
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec


class Source(NamedTuple):
    """The notebook that a method's runs are shared with: its parameters, its runs, and what is set otherwise there."""

    params: type[Params]
    runs: Callable[[Any], list[RunSpec]]
    methods: tuple[str, ...]
    changes: Mapping[str, Any] = MappingProxyType({})


SOURCES = (
    Source(
        PfmlRetrievalParams,
        pfml_retrieval,
        ("untrained", "PFML", "ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity"),
        {"protocol": "conventional", "search_trials": 0, "small_dim": 0, "mlrc_steps": 0},
    ),
    Source(
        NivmfRetrievalParams, nivmf_retrieval, ("EL-nivMF", JOINT), {"protocol": "conventional", "search_trials": 0}
    ),
    Source(ConventionalParams, conventional, ("MFCont", "MFCWMS")),
    Source(CcpConventionalParams, ccp_conventional, ("C2", "C2-CCP-L")),
    Source(PlmRetrievalParams, plm_retrieval, ("PLM",)),
)
MAIN = tuple(name for source in SOURCES for name in source.methods)
PROJECTED, ENCODED = {"PFML": PFML, "EL-nivMF": NIVMF}, {"PFML": PFML, "MFCont": MEANFIELD}
COMBINATIONS = (*(f"{name}-CCP" for name in PROJECTED), *(f"{name}+encoder" for name in ENCODED))
TEACHER = "network=teacher"


@dataclass(frozen=True)
class OneProtocolParams(Params):
    """The parameters of notebook 91."""

    notebook = "91_five_methods_one_protocol"
    paper = "together"
    may_be_empty: ClassVar = ("methods", "combinations")
    overrides: ClassVar = {
        # as the short runs of CCP are there: heads, of all combinations alike
        "quick": {"methods": (), "combinations": COMBINATIONS[::2], "steps": 60, "batch_size": 32},
        "small": {"methods": MAIN, "combinations": COMBINATIONS},
        "paper": {"methods": MAIN, "combinations": COMBINATIONS},
    }

    methods: tuple[str, ...] | None = None
    combinations: tuple[str, ...] | None = None

    def _refuse_nonsense(self) -> None:
        super()._refuse_nonsense()
        for name, known in {"methods": MAIN, "combinations": COMBINATIONS}.items():
            if unknown := [choice for choice in getattr(self, name) or () if choice not in known]:
                raise ValueError(f"{name}: unknown {unknown[0]!r}; choose among {', '.join(known)}")
        if not self.methods and not self.combinations:
            raise ValueError("methods and combinations are both empty: name one of either")


def one_protocol(params: OneProtocolParams) -> list[RunSpec]:
    """The network before training, the main methods, and the combinations beside what they are made of."""
    specs = runs_of(pick(PFML, ["untrained"]), params)
    for source in SOURCES:
        asked = tuple(name for name in source.methods if name in params.methods)
        if asked:
            runs = source.runs(_params(source.params, params, methods=asked, **source.changes))
            specs += [run for run in runs if run.method in (*asked, START) and not run.setting]
    specs += projected_runs(params)
    for name in (name for name in ENCODED if f"{name}+encoder" in params.combinations):
        specs += encoded_runs(name, params)
    return [run for place, run in enumerate(specs) if run not in specs[:place]]


def _params(cls: type[Params], params: OneProtocolParams, **changes: object) -> Any:
    """The parameters of another notebook on the same data, with what the reader sets of those that all share."""
    origins = getattr(params, "origins", {})
    given = {f.name: getattr(params, f.name) for f in fields(Params) if origins.get(f.name) == "reader"}
    return cls.from_values(given | {"profile": params.profile, "dataset": params.dataset} | changes)


def projected_runs(params: OneProtocolParams) -> list[RunSpec]:
    """CCP over PFML and over EL-nivMF, and their single problems; those of PFML are runs of notebook 44 too."""
    names = [name for name in PROJECTED if f"{name}-CCP" in params.combinations]
    if not names:
        return []
    ccp = _params(AlternatingParams, params)
    specs = [ccp_spec("untrained", ccp)]
    for name in names:
        for form in ("Proxy", "CCP"):
            specs.append(ccp_spec(f"{name}-{form}", ccp) if name == "PFML" else _projected(name, form, ccp))
    return every_seed(specs, ccp)


def _projected(name: str, form: str, ccp: AlternatingParams) -> RunSpec:
    """CCP over a loss of which the room of CCP has no record. Its first problem starts where the loss starts."""
    variant = Variant(name, form)
    method = dataclasses.replace(
        PROJECTED[name][name], name=variant.name, fields={**PROJECTED[name][name].fields, "scheme": SCHEME}
    )
    looks: dict[str, Any] = {"monitor": "MAP@R"} | ({} if ccp.profile == "paper" else {"eval_every": ccp.eval_every})
    return spec_of(method, ccp, scheme_options=scheme_options(variant, ccp), **looks)


def encoded_runs(name: str, params: OneProtocolParams) -> list[RunSpec]:
    """A loss with labels whose network has PLM's momentum encoder beside it; both are evaluated, and the network learns
    as it would without."""
    momentum = _params(PlmRetrievalParams, params).momentum
    record = ENCODED[name][name]
    method = dataclasses.replace(record, name=f"{name}+encoder", fields={**record.fields, "scheme": "momentum"})
    return runs_of([method], params, scheme_options={"momentum": momentum})


def table_of(finished: Iterable[RunResult], params: OneProtocolParams) -> pd.DataFrame:
    """The rows of the runs, see `studies.histories_apart`, with `steps` and of CCP the number of `problems`."""
    return histories_apart(with_measures(finished, measures, params))


def measures(run: RunResult, params: OneProtocolParams) -> list[Scored]:
    """What `table_of` adds to a run of a combination with CCP."""
    return [measured(run, course)] if run.spec.method.endswith(("-CCP", "-Proxy")) else []


# --- what was found ---------------------------------------------------------------------------------------------------


OneProtocol = Study(OneProtocolParams, one_protocol, table_of, measures)
