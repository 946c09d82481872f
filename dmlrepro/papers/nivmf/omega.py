"""Notebook 21: how much ProxyAnchor beside EL-nivMF (Fig. 4)."""

from dataclasses import dataclass
from typing import ClassVar

from dmlrepro.evidence.stored import Numbers, agrees, brings
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.methods import pick, runs_of
from dmlrepro.papers.nivmf.methods import JOINT, METHODS, NivmfHeadParams
from dmlrepro.training.spec import RunSpec


@dataclass(frozen=True)
class OmegaParams(NivmfHeadParams):
    """The parameters of notebook 21."""

    notebook = "21_nivmf_ablation_omega"
    references: ClassVar = {"omegas": (0.0,)}

    omegas: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def ablation_omega(params: OmegaParams) -> list[RunSpec]:
    """The joint loss at every omega, 0 being EL-nivMF alone; ProxyAnchor alone; and the untrained network."""
    found = runs_of(pick(METHODS, ["untrained", "ProxyAnchor"]), params)
    for omega in params.omegas:
        found += runs_of([METHODS[JOINT]], params, setting=f"omega={omega:g}", loss_options={"omega": omega})
    return found


# --- what was found ---------------------------------------------------------------------------------------------------


RELEASED = f"{JOINT};omega=0.1..10"  # where the released weights lie; their mean, so that none is chosen by its result


def _best(numbers: Numbers) -> str:
    levels = numbers.levels(JOINT, "omega")
    best = max(levels, key=levels.get)
    return (
        f"R@1 is highest at omega = {best:g}, {agrees(0 < best < 100)}, whose best weight is neither zero nor large: "
        f"weights from 0.1 to 10 give {numbers.against(RELEASED, f'{JOINT};omega=0')} of omega = 0, EL-nivMF alone."
    )


def _regulariser(numbers: Numbers) -> str:
    alone = f"{JOINT};omega=1000"
    return (
        f"EL-nivMF beside ProxyAnchor brings {brings(numbers.effects(RELEASED, alone))}: the same weights give "
        f"{numbers.against(RELEASED, alone)} of omega = 1000, nearly ProxyAnchor alone, and "
        f"{numbers.against(RELEASED, 'ProxyAnchor')} of ProxyAnchor with its own rates."
    )


FINDINGS = (_best, _regulariser)
NOTEBOOKS = [Notebook(OmegaParams, ablation_omega, findings=FINDINGS)]
