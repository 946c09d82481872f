"""What 00_tour trains: one loss on the embedded glyphs, and the same network untrained."""

from dataclasses import dataclass, replace

from dmlrepro.evidence.stored import Numbers
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.methods import pick, runs_of
from dmlrepro.papers.pfml.methods import METHODS, FieldParams
from dmlrepro.training.spec import RunSpec


@dataclass(frozen=True)
class TourParams(FieldParams):
    """The parameters of notebook 00."""

    notebook = "00_tour"

    method: str = "PFML"


def tour(params: TourParams) -> list[RunSpec]:
    """The untrained network and the trained one, seed 0; at every profile both are runs of notebook 10 too."""
    return runs_of(pick(METHODS, ["untrained", params.method]), replace(params, seeds=1))


def _learned(numbers: Numbers) -> str:
    method = next(method for method in numbers.methods if method != "untrained")
    helps = numbers.mean(method) > numbers.mean("untrained")
    return (
        f"Training with {method} {'helps' if helps else 'does not help'} on classes that it never saw: "
        f"{numbers.against(method, 'untrained')} of the untrained network."
    )


NOTEBOOKS = [Notebook(TourParams, tour, findings=(_learned,))]
