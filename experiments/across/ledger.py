"""Notebook 92: what the tests of all claims say of results/, and what is not tested.

Nothing is trained here. The tables are those of results/, so the workflow executes the notebook after it has published
those of the other notebooks.
"""

from collections.abc import Collection
from html import escape

import numpy as np
import pandas as pd
from IPython.display import Markdown
from matplotlib.figure import Figure

from experiments.analysis import claims, tables, verdict_tables
from experiments.analysis import ledger as evidence
from experiments.analysis.judging import DECIDED, Verdict
from experiments.analysis.ledger import Ledger, count_words
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
        index=list(dict.fromkeys(papers)), columns=[str(name) for name in SHADES if name in set(verdicts)]
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


def judged_table(ledger: Ledger) -> Markdown:
    """A row per line of the ledger that decides, and per line of further data: both verdicts of every claim."""
    lines = [
        "| claim | the paper says | verdict | on | ours | detectable | tuned | mixes | it rests on | notebook |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    deciding = ledger.lines[ledger.lines["decides"] == "yes"]
    by_claim = dict(list(deciding.groupby("claim_id")))
    for claim_id in [claim_id for claim_id in claims.stated() if claim_id in by_claim]:
        rows = by_claim[claim_id]
        ours = verdict_tables.verdict_table(verdict_tables.Judged(rows, rows))["ours"]
        for row, effect in zip(rows.itertuples(), ours):
            verdict = f"**{verdict_tables.in_words(row)}**"
            where = "; ".join(filter(None, (row.plain_label, f"n = {row.seeds}" if row.seeds else "", row.device)))
            on = "no images" if row.dataset == tables.SYNTHETIC else f"{row.dataset} ({row.role})"
            least = "" if np.isnan(row.detectable) else f"{row.detectable:.2g}{row.unit}"
            cells = (claim_id, _cell(claims.statement(claim_id)), verdict, on, _cell(effect), least, row.tuned)
            lines.append(f"| {' | '.join((*cells, row.mixes, where))} | [{row.notebook[:2]}]({row.notebook}.ipynb) |")
    return Markdown("\n".join(lines))


def open_table(ledger: Ledger) -> Markdown:
    """A row per claim that is not run here, or cannot be, with the reason."""
    lines = ["| claim | the paper says | here | why |", "|---|---|---|---|"]
    lines += [
        f"| {claim_id} | {_cell(claims.statement(claim_id))} | {word} | {_cell(ledger.without_verdict[claim_id])} |"
        for claim_id, word in ledger.here.items()
        if word in (Verdict.NOT_RUN, Verdict.NOT_TESTABLE)
    ]
    return Markdown("\n".join(lines))


def disagreeing(ledger: Ledger) -> list[str]:
    """The claims whose deciding lines on different data sets have different outcomes."""
    lines = ledger.lines
    lines = lines[(lines["decides"] == "yes") & lines["verdict"].isin(DECIDED)]
    return [claim_id for claim_id, rows in lines.groupby("claim_id") if rows["verdict"].nunique() > 1]


def _cell(text: str) -> str:
    """A text that Markdown shows in a cell of a table as it is."""
    return "".join(f"\\{letter}" if letter in r"\|*_$[]`~" else letter for letter in escape(text, quote=False))


# --- findings ---------------------------------------------------------------------------------------------------------


def counted(ledger: Ledger) -> str:
    return f"{len(ledger.here)} claims: {count_words(ledger.here.values())}."


def decided(ledger: Ledger) -> str:
    by_verdict: dict[str, list[str]] = {}
    for claim_id, verdict in ledger.here.items():
        by_verdict.setdefault(str(verdict), []).append(claim_id)
    closed = (*DECIDED, Verdict.BY_DEFINITION, Verdict.MEASURED)
    return "; ".join(f"**{word}**: {', '.join(by_verdict[word])}" for word in closed if word in by_verdict)


def data_sets(ledger: Ledger) -> str:
    """The claims of which two data sets say different things."""
    return f"Different verdicts on two data sets: {', '.join(disagreeing(ledger)) or 'none'}."


Claims = Study("92_claims", LedgerParams, findings=(counted, decided, data_sets), saves=False)
