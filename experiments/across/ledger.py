"""Notebook 92: what the tests of all claims say of results/, and what is not tested.

Nothing is trained here. The tables are those of results/, so the workflow executes the notebook after it has published
those of the other notebooks.
"""

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import claims
from experiments.figures import comparisons
from experiments.params import Params
from experiments.study import Study


def squares(lines: pd.DataFrame, here: Mapping[str, str]) -> Figure:
    """The verdict of every claim here at a glance, with k of n; lines: as `analysis.ledger.ordered` has them."""
    rows = []
    for claim_id, word in here.items():
        paper, _, number = claim_id.partition("-")
        own = lines[(lines["claim_id"] == claim_id) & (lines["decides"] == "yes") & (lines["role"] == "named")]
        k, n = next(own[["k", "n"]].itertuples(index=False, name=None), (0, 0))
        rows.append({"paper": claims.name_of(paper), "number": int(number), "verdict": word, "k": k, "n": n})
    return comparisons.verdict_squares(pd.DataFrame(rows))


Claims = Study("92_claims", Params, saves=False)  # whatever its parameters, it reads the same tables
