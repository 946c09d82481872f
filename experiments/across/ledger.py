"""Notebook 92: what the tests of all claims say of results/, and what is not tested.

Nothing is trained here. The tables are those of results/, so the workflow executes the notebook after it has published
those of the other notebooks.
"""

from collections.abc import Collection

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import claims
from experiments.analysis import ledger as evidence
from experiments.analysis.ledger import Ledger
from experiments.figures import effects
from experiments.figures.matrix import SHADES, verdict_matrix
from experiments.params import Params
from experiments.study import Study


class LedgerParams(Params):
    """The parameters of notebook 92; whatever they are, it reads the tables of all profiles."""


def counts(ledger: Ledger) -> pd.DataFrame:
    """Claims by paper (rows, in the order of data/claims.csv) and verdict here (columns, those that occur, in the order
    of SHADES)."""
    verdicts = pd.Series(ledger.here, dtype=object).map(str)
    papers = [claims.name_of(_paper(claim_id)) for claim_id in verdicts.index]
    table = pd.crosstab(np.array(papers), verdicts.to_numpy(), rownames=["paper"], colnames=["verdict"])
    return table.reindex(
        index=[*dict.fromkeys(papers)], columns=[str(name) for name in SHADES if name in set(verdicts)]
    )


def _paper(claim_id: str) -> str:
    return claim_id.partition("-")[0]


def matrix_blocks(ledger: Ledger, papers: Collection[str] = ()) -> dict[str, pd.DataFrame]:
    """Paper -> verdicts of its claims (rows, "01 beats CPML") by place (columns), of some papers or of all."""
    table, short = evidence.matrix(ledger.lines), claims.short_statements()
    blocks = {}
    for paper in papers or dict.fromkeys(map(_paper, table.index)):
        own = table[[_paper(claim_id) == paper for claim_id in table.index]]
        blocks[claims.name_of(paper)] = own.set_axis(
            [f"{claim_id.partition('-')[2]} {short.get(claim_id, '')}".rstrip() for claim_id in own.index]
        )
    return blocks


def matrix(ledger: Ledger, papers: Collection[str] = (), columns: int = 3) -> Figure:
    """Every claim and its verdict in every place, at a glance."""
    return verdict_matrix(matrix_blocks(ledger, papers), columns)


def figure(ledger: Ledger) -> Figure:
    return effects.tallies(counts(ledger), SHADES, "claims")


Claims = Study("92_claims", LedgerParams, saves=False)
