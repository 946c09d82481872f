"""Notebook 92: what the tests of all claims say of results/, and what is not tested.

Nothing is trained here. The tables are those of results/, so the workflow executes the notebook after it has published
those of the other notebooks.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import claims
from experiments.analysis.judging import Verdict
from experiments.analysis.ledger import PAPER_SCALE
from experiments.figures import comparisons
from experiments.params import Params
from experiments.study import Study

FURTHER, AT_PAPER_SCALE = "further", "paper scale"
# columns of the matrix, by the short names of data sets
PLACES = {"cub": "CUB subset", "cars": "Cars subset", "omniglot": "Omniglot"}


class Ledger(NamedTuple):
    """The claims: lines as `analysis.ledger.ordered` has them, and by claim the verdict here."""

    lines: pd.DataFrame
    here: Mapping[str, str]


class LedgerParams(Params):
    """The parameters of notebook 92; whatever they are, it reads the tables of all profiles."""


def counts(ledger: Ledger) -> pd.DataFrame:
    """Claims by paper (rows, in the order of data/claims.csv) and verdict here (columns, those that occur, in the order
    of SHADES)."""
    verdicts = pd.Series(ledger.here, dtype=object).map(str)
    papers = pd.Series(verdicts.index, verdicts.index).map(_paper).map(claims.name_of)
    table = pd.crosstab(papers.rename("paper"), verdicts.rename("verdict"))
    return table.reindex(index=papers.unique(), columns=[str(name) for name in comparisons.SHADES if name in {*table}])


def _paper(claim_id: str) -> str:
    return claim_id.partition("-")[0]


def verdicts_by_place(lines: pd.DataFrame) -> pd.DataFrame:
    """The verdict of every claim of data/claims.csv (rows) in every place (columns): on subsets of CUB and Cars, on
    Omniglot, on further data or without images, and at the paper's scale, those where anything was run. Only lines that
    decide count; of several the first that is run."""
    run = lines[(lines["decides"] == "yes") & (lines["verdict"] != Verdict.NOT_RUN)]
    of_data = run["dataset"].map(claims.short_name).map(PLACES).fillna(FURTHER)
    place = of_data.mask(run["scale"] == PAPER_SCALE, AT_PAPER_SCALE)
    words = run.groupby([run["claim_id"], place])["verdict"].first()
    columns = [name for name in (*PLACES.values(), FURTHER, AT_PAPER_SCALE) if name in set(place)]
    wide = words.unstack().reindex(index=[*claims.stated()], columns=columns)
    return wide.fillna(Verdict.NOT_RUN).rename_axis(index="claim", columns=None)


def matrix(ledger: Ledger) -> Figure:
    """Every claim and its verdict in every place at a glance, a block per paper: "01 beats CPML" in a row."""
    table, short = verdicts_by_place(ledger.lines), claims.short_statements()
    blocks = {}
    for paper, own in table.groupby(table.index.map(_paper), sort=False):
        names = [f"{claim_id.partition('-')[2]} {short.get(claim_id, '')}".rstrip() for claim_id in own.index]
        blocks[claims.name_of(str(paper))] = own.set_axis(names)
    return comparisons.verdict_matrix(blocks)


def figure(ledger: Ledger) -> Figure:
    return comparisons.tallies(counts(ledger), comparisons.SHADES, "claims")


Claims = Study("92_claims", LedgerParams, saves=False)
