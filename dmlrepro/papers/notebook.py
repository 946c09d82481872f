"""What a notebook computes, so that it can be computed without the notebook: each room states its own."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dmlrepro.evidence import results
from dmlrepro.papers.params import Params


def nothing_to_train(params: Params) -> list:
    return []


def nothing_to_measure(run, params: Params) -> list:
    return []


@dataclass(frozen=True)
class Notebook:
    """The work of one notebook.

    params: the class of its parameters, which names it.
    specs: its parameters -> the RunSpecs it trains, in the order of its tables.
    table: (its finished runs in that order, its parameters) -> the tidy table it saves; None: it saves none and reads
        what others left in results/, so the workflow executes it after these are published.
    measures: (a finished run, its parameters) -> what is measured on its weights alone, rows that the table holds too.
    planned: its parameters -> the same runs without training any; None: `specs` without a search does not train.
    ratios: (the costs it saves, its parameters) -> a tidy table of their ratios, where claims are about costs.
    findings: sentences about what no claim says, the main one first, beside those that the judge makes of its claims;
        `stored.say` leaves out those for which a table has no rows. Those of a notebook without a table take the
        ledger.
    """

    params: type[Params]
    specs: Callable = nothing_to_train
    table: Callable | None = results.tidy
    measures: Callable = nothing_to_measure
    planned: Callable | None = None
    ratios: Callable | None = None
    findings: tuple[Callable[..., str], ...] = ()

    def specs_untrained(self, params: Params) -> list:
        """The runs as `plan` and `show` list them: a search, which would train, is left out."""
        if getattr(params, "search_trials", 0):
            none: dict[str, Any] = {"search_trials": 0}
            params = dataclasses.replace(params, **none)
            object.__setattr__(params, "searches", dict)  # it begins where no committed search has been taken
        return (self.planned or self.specs)(params)
