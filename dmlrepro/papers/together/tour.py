"""What 00_tour trains: one loss on the embedded glyphs, and the same network untrained."""

from dataclasses import dataclass, replace

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


NOTEBOOKS = [Notebook(TourParams, tour)]
