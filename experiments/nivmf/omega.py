"""Notebook 21: how much ProxyAnchor beside EL-nivMF (Fig. 4)."""

from experiments.methods import pick, runs_of
from experiments.nivmf.claims import TESTS
from experiments.nivmf.methods import JOINT, METHODS, NivmfOptions, nivmf_study
from experiments.params import Number, Params
from experiments.training.spec import RunSpec


class OmegaParams(NivmfOptions, Params):
    """The parameters of notebook 21."""

    omegas: tuple[Number, ...]


def ablation_omega(params: OmegaParams) -> list[RunSpec]:
    """The joint loss at every omega, 0 being EL-nivMF alone; ProxyAnchor alone; and the untrained network."""
    specs = runs_of(pick(METHODS, ["untrained", "ProxyAnchor"]), params)
    for omega in params.omegas:
        specs += runs_of([METHODS[JOINT]], params, setting=f"omega={omega:g}", loss_options={"omega": omega})
    return specs


Omega = nivmf_study(
    "21_nivmf_ablation_omega",
    OmegaParams,
    ablation_omega,
    profiles={"*": {"omegas": (0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)}, "quick": {"omegas": (0.0, 1.0, 100.0)}},
    references={"omegas": (0.0,)},
    claims=TESTS,
)
