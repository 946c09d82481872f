"""What 00_tour trains: one loss on the embedded glyphs, and the same network untrained."""

from dataclasses import dataclass

from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.methods import pick, spec_of
from dmlrepro.papers.params import Params
from dmlrepro.papers.pfml.methods import METHODS
from dmlrepro.training.spec import RunSpec


@dataclass(frozen=True)
class TourParams(Params):
    """The parameters of notebook 00."""

    notebook = "00_tour"
    paper = "pfml"

    method: str = "PFML"


def tour(params: TourParams) -> list[RunSpec]:
    """The untrained network and the trained one, seed 0; at quick both are runs of notebook 10 too."""
    return [spec_of(method, params) for method in pick(METHODS, ["untrained", params.method])]


NOTEBOOKS = [Notebook(TourParams, tour)]
