"""What 00_tour trains: one loss on the embedded glyphs, and the network as it begins."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from experiments.analysis import results
from experiments.analysis.claims import START
from experiments.analysis.comparing import UNTRAINED
from experiments.analysis.stored import Numbers
from experiments.methods import pick, runs_of
from experiments.pfml.methods import METHODS, FieldParams
from experiments.pfml.methods import NAMES as NAMES
from experiments.profiles import at
from experiments.studies import with_histories
from experiments.study import Study
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec


@dataclass(frozen=True)
class TourParams(FieldParams):
    """The parameters of notebook 00."""

    notebook = "00_tour"
    overrides: ClassVar = at("quick", "small", "paper", seeds=1)

    method: str = "PFML"


def tour(params: TourParams) -> list[RunSpec]:
    """The network as it begins and the trained one; at every profile both are runs of notebook 10 too."""
    return with_histories(runs_of(pick(METHODS, ["untrained", params.method]), params))


def tour_table(finished: Iterable[RunResult], params: TourParams) -> pd.DataFrame:
    """The rows of the runs at the end of training."""
    rows = results.tidy(finished, params)
    return rows[rows["selection"] == "last"]


def _after_training(numbers: Numbers) -> str:
    (method,) = numbers.ranked([name for name in numbers.methods if name not in UNTRAINED], least=1)[:1]
    return (
        f"On classes that {method} never saw in training: {numbers.against(method, START)} of the network that it "
        f"began with; without its head that has {numbers.mean('untrained'):.1f}."
    )


Tour = Study(TourParams, tour, tour_table, findings=(_after_training,))
