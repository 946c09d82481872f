"""What 00_tour trains: one loss on the embedded glyphs, and the same network untrained."""

from dataclasses import dataclass

from dmlrepro.papers.params import Params
from dmlrepro.papers.pfml import methods as pfml
from dmlrepro.training.spec import RunSpec


@dataclass(frozen=True)
class TourParams(Params):
    """00_tour."""

    notebook = "00_tour"
    paper = "pfml"

    method: str = "PFML"


def tour(params: TourParams) -> list[RunSpec]:
    """The untrained network and the trained one, seed 0; at quick both are runs of notebook 10 too."""
    options = {
        "PFML": {"proxies_per_class": 15, "alpha": 3.0, "delta": 0.2},
        "CPML": {"proxies_per_class": 15, "delta": 0.2},
    }
    return [
        pfml.spec("untrained", params, 0),
        pfml.spec(params.method, params, 0, loss_options=options.get(params.method)),
    ]


NOTEBOOKS = {TourParams.notebook: (TourParams, tour)}
