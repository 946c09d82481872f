"""Notebook 21: how much ProxyAnchor beside EL-nivMF (Fig. 4)."""

from dataclasses import dataclass
from typing import ClassVar

from experiments.methods import pick, runs_of
from experiments.nivmf.claims import TESTS
from experiments.nivmf.methods import JOINT, METHODS, NivmfParams
from experiments.profiles import at, layered
from experiments.study import Study
from experiments.training.spec import RunSpec


@dataclass(frozen=True)
class OmegaParams(NivmfParams):
    """The parameters of notebook 21."""

    notebook = "21_nivmf_ablation_omega"
    references: ClassVar = {"omegas": (0.0,)}
    overrides: ClassVar = layered(
        NivmfParams.overrides,
        at(omegas=(0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)),
        at("quick", omegas=(0.0, 1.0, 100.0)),
    )

    omegas: tuple[float, ...] | None = None


def ablation_omega(params: OmegaParams) -> list[RunSpec]:
    """The joint loss at every omega, 0 being EL-nivMF alone; ProxyAnchor alone; and the untrained network."""
    specs = runs_of(pick(METHODS, ["untrained", "ProxyAnchor"]), params)
    for omega in params.omegas:
        specs += runs_of([METHODS[JOINT]], params, setting=f"omega={omega:g}", loss_options={"omega": omega})
    return specs


Omega = Study(OmegaParams, ablation_omega, claims=TESTS)
