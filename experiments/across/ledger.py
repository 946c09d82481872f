"""Notebook 92: what the tests of all claims say of results/, and what is not tested. The workflow executes it after it
has published the tables of the other notebooks."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import claims
from experiments.figures import comparisons
from experiments.params import Params
from experiments.study import Study


def squares(lines: pd.DataFrame, here: Mapping[str, str]) -> Figure:
    """The verdict of every claim here at a glance, with k of n; lines: as `judging.ordered` has them."""
    deciding = lines[(lines["decides"] == "yes") & (lines["role"] == "named")].drop_duplicates("claim_id")
    rows = pd.DataFrame({"verdict": here}).join(deciding.set_index("claim_id")[["k", "n"]]).fillna({"k": 0, "n": 0})
    papers, numbers = zip(*(claim_id.split("-") for claim_id in here))
    return comparisons.verdict_squares(rows.assign(paper=[*map(claims.name_of, papers)], number=[*map(int, numbers)]))


Claims = Study("92_claims", Params, saves=False)  # whatever its parameters, it reads the same tables
