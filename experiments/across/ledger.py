"""Notebook 92: what the tests of all claims say of results/, and what is not tested.

Nothing is trained here. The tables are those of results/, so the workflow executes the notebook after it has published
those of the other notebooks.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import claims
from experiments.figures import comparisons
from experiments.params import Params
from experiments.study import Study


class Ledger(NamedTuple):
    """The claims: lines as `analysis.ledger.ordered` has them, and by claim the verdict here."""

    lines: pd.DataFrame
    here: Mapping[str, str]


def squares(ledger: Ledger) -> Figure:
    """The verdict of every claim here at a glance, with k of n."""
    rows = []
    for claim_id, word in ledger.here.items():
        paper, _, number = claim_id.partition("-")
        own = ledger.lines[(ledger.lines["claim_id"] == claim_id) & (ledger.lines["decides"] == "yes")]
        k, n = next(own.loc[own["role"] == "named", ["k", "n"]].itertuples(index=False, name=None), (0, 0))
        rows.append({"paper": claims.name_of(paper), "number": int(number), "verdict": word, "k": k, "n": n})
    return comparisons.verdict_squares(pd.DataFrame(rows))


Claims = Study("92_claims", Params, saves=False)  # whatever its parameters, it reads the same tables
