"""Notebook 92: what the tests of all claims say of results/, and what is not tested.

Nothing is trained here. The tables are those of results/, so the workflow executes the notebook after it has published
those of the other notebooks.
"""

from dataclasses import dataclass
from html import escape

import numpy as np
import pandas as pd
from IPython.display import Markdown
from matplotlib.figure import Figure

from dmlrepro.evidence import claims, plots, stored
from dmlrepro.papers import catalogue, pages
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.params import Params

# names of papers in figures; one that is not here has its id
PRINTED = {"pfml": "PFML", "nivmf": "nivMF", "meanfield": "Mean field", "ccp": "CCP", "plm": "PLM"}
SHADES = {  # verdict -> its colour, for colour-blind readers; the order is that of the figure and the counts
    "supported": "#009E73",
    "supported in one setting, contradicted in another": "#F0E442",
    "depends on the reading": "#CC79A7",
    "contradicted": "#D55E00",
    "inconclusive": "#BBBBBB",
    "not testable here": "#FFFFFF",
    "not run": "#FFFFFF",
    "no notebook yet": "#FFFFFF",
}


@dataclass(frozen=True)
class LedgerParams(Params):
    """The parameters of notebook 92; whatever they are, it reads the tables of all profiles."""

    notebook = "92_claims"
    paper = "together"


def verdicts() -> dict[str, str]:
    """The settled verdict of every claim of data/claims.csv; of one that was not judged, what stands in its way."""
    tests = catalogue.claims()
    open_ones = {claim_id: "not run" if claim_id in tests else "no notebook yet" for claim_id in claims.stated()}
    judged = {claim_id: stored.settled(rows) for claim_id, rows in pages.ledger().groupby("claim_id")}
    return open_ones | judged


def counts() -> pd.DataFrame:
    """Claims by paper (rows, in the order of data/claims.csv) and verdict (columns, those that occur, in that of
    SHADES)."""
    found = pd.Series(verdicts())
    papers = [PRINTED.get(paper, paper) for paper in map(_paper, found.index)]
    table = pd.crosstab(np.array(papers), found.to_numpy(), rownames=["paper"], colnames=["verdict"])
    return table.reindex(index=list(dict.fromkeys(papers)), columns=[name for name in SHADES if name in set(found)])


def _paper(claim_id: str) -> str:
    return claim_id.partition("-")[0]


def figure() -> Figure:
    return plots.tallies(counts(), SHADES, "claims")


def judged_table() -> Markdown:
    """A row per judged claim and, where tables of results/ decide otherwise than one another, per verdict."""
    lines = ["| claim | the paper says | verdict | ours | it rests on | notebook |", "|---|---|---|---|---|---|"]
    judged = pages.ledger()[pages.ledger()["verdict"] != "not testable here"]
    by_claim = dict(list(judged.groupby("claim_id")))
    for claim_id in [each for each in claims.stated() if each in by_claim]:
        rows = by_claim[claim_id]
        shown = rows.drop_duplicates("verdict")
        shown = shown[shown["verdict"] != "inconclusive"] if len(shown) > 1 else shown
        ours = claims.verdict_table(claims.Judged(shown, shown))["ours"]
        for row, effect in zip(shown.itertuples(), ours):
            verdict = f"**{row.verdict}**" + (f": {_cell(row.reason)}" if row.reason else "")
            where = "; ".join(filter(None, (row.plain_label, f"n = {row.n}" if row.n else "", row.device)))
            cells = (claim_id, _cell(claims.statement(claim_id)), verdict, _cell(effect), where)
            lines.append(f"| {' | '.join(cells)} | [{row.notebook[:2]}]({row.notebook}.ipynb) |")
    return Markdown("\n".join(lines))


def open_table() -> Markdown:
    """A row per claim without a verdict, with the reason."""
    untestable = pages.ledger()[pages.ledger()["verdict"] == "not testable here"]
    reasons = dict(zip(untestable["claim_id"], untestable["reason"])) | pages.without_verdict()
    lines = ["| claim | the paper says | why it has no verdict |", "|---|---|---|"]
    lines += [
        f"| {each} | {_cell(claims.statement(each))} | {_cell(reasons[each])} |"
        for each in claims.stated()
        if each in reasons
    ]
    return Markdown("\n".join(lines))


def _cell(text: str) -> str:
    """A text that Markdown shows in a cell of a table as it is."""
    return "".join(f"\\{letter}" if letter in r"\|*_$[]`~" else letter for letter in escape(text, quote=False))


def check() -> None:
    """Print whether the ledger made now is that of results/claims.csv; the sentence is the regression test."""
    differing = pages.ledger_differences()
    same = f"no, not for {', '.join(differing)}: python -m dmlrepro pages" if differing else "yes"
    print(f"the ledger made from results/ is results/claims.csv: {same}")


# --- findings ---------------------------------------------------------------------------------------------------------


def counted() -> str:
    found = verdicts()
    stated, tested = set(map(_paper, found)), set(map(_paper, catalogue.claims()))
    judged = pages.ledger()["claim_id"].nunique()
    said = stored.count_words(sorted((found[claim_id] for claim_id in pages.ledger()["claim_id"].unique()), key=_order))
    return f"Of {len(found)} claims of {len(stated)} papers, {judged} of {len(tested)} papers were judged: {said}."


def decided() -> str:
    by_verdict: dict[str, list[str]] = {}
    for claim_id, verdict in verdicts().items():
        if verdict not in ("inconclusive", "not testable here", "not run", "no notebook yet"):
            by_verdict.setdefault(verdict, []).append(claim_id)
    said = (f"{verdict} {', '.join(by_verdict[verdict])}" for verdict in sorted(by_verdict, key=_order))
    return f"Decided: {'; '.join(said) or 'none'}."


def against() -> str:
    """The open claims that every comparison speaks against, of networks that have learned."""
    found = pages.opposing()["claim_id"]
    return f"Undecided, with every comparison against the paper so far: {', '.join(found) or 'none'}."


def _order(verdict: str) -> int:
    return list(SHADES).index(verdict)


NOTEBOOKS = [Notebook(LedgerParams, table=None, findings=(counted, decided, against))]
