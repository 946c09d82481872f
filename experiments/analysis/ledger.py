"""From the lines that the judge gives each table to a verdict for each claim: at the paper's scale, and here.

A line is a claim in one context of one table, a row of `judging.Judged.verdicts` with the table's `stem`. On each data
set one line decides; the others are shown. Here a claim's verdict is that on the first data set it names of which we
have runs, or of mathematics or costs without images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from experiments.analysis import claims, tables
from experiments.analysis.claims import ClaimTest
from experiments.analysis.judging import Verdict

PAPER_SCALE, HERE = "paper", "here"
FURTHER, AT_PAPER_SCALE = "further", "paper scale"
PLACES = {
    "cub": "CUB subset",
    "cars": "Cars subset",
    "omniglot": "Omniglot",
}  # of the matrix, by the short names of data sets


class Ledger(NamedTuple):
    """All that is said of the claims: lines as `ordered` has them, by claim the verdict here, and why one has none."""

    lines: pd.DataFrame
    here: Mapping[str, str]
    without_verdict: Mapping[str, str]


def ordered(lines: pd.DataFrame, tests: Mapping[str, ClaimTest]) -> pd.DataFrame:
    """Lines with `scale` and `decides` ("yes" or empty), by claim, what the claim names and what decides first.

    On a data set the line decides that is run, whose protocol is the stated one, whose network was trained nearest to
    the paper's regime (`regime`: whole, its last blocks, a head alone), whose methods were tuned alike, of most seeds:
    none is taken for its verdict. Profile quick decides nothing about images.
    """
    lines = lines.reset_index(drop=True)
    stated = [
        line.claim_id in tests and tests[line.claim_id].decides.replace("all", "") in line.protocol.lower()
        for line in lines.itertuples()
    ]
    without_images = lines["dataset"].isin(["", tables.SYNTHETIC])
    order = lines.assign(
        scale=(lines["profile"] == "paper").map({True: PAPER_SCALE, False: HERE}),
        _counted=~((lines["profile"] != "quick") | without_images),
        _named=[_place(line.claim_id, line.dataset) for line in lines.itertuples()],
        _run=lines["verdict"] == Verdict.NOT_RUN,
        _stated=[not is_stated for is_stated in stated],
        _tuned=lines["tuned"] != "yes",
        _seeds=-lines["seeds"],
    )
    keys = ["claim_id", "scale", "_counted", "_named", "dataset", "_run", "_stated", "regime", "_tuned", "_seeds"]
    order = order.sort_values([*keys, "stem"], kind="stable").reset_index(drop=True)
    first = ~order.duplicated(["claim_id", "scale", "dataset"]) & ~order["_counted"]
    order["decides"] = first.map({True: "yes", False: ""})
    return order.drop(columns=[name for name in order if name.startswith("_")])


def _place(claim_id: str, dataset: str) -> int:
    """The place of a data set among those that a claim names; behind them all others, what needs none first of all."""
    named, short = claims.named(claim_id), claims.short_name(dataset)
    return -1 if dataset in ("", tables.SYNTHETIC) else named.index(short) if short in named else len(named)


def verdict(lines: pd.DataFrame, test: ClaimTest, scale: str = HERE) -> str:
    """One claim's verdict at one scale, over its lines."""
    if test.not_testable or not test.deciding:
        return Verdict.NOT_TESTABLE
    return next(iter(lines_that_decide(lines, test, scale)["verdict"]), Verdict.NOT_RUN)


def lines_that_decide(lines: pd.DataFrame, test: ClaimTest, scale: str = HERE) -> pd.DataFrame:
    """The line that a claim's verdict rests on, if any: of mathematics or costs, or of the first data set it names."""
    own = lines[(lines["scale"] == scale) & (lines["decides"] == "yes") & (lines["role"] == "named")]
    of_images = any(part.about in ("training", "features") for part in test.deciding)
    return own[own["dataset"].isin(["", tables.SYNTHETIC]) != of_images].head(1)


def places(lines: pd.DataFrame) -> pd.Series:
    """The column of `matrix` to which each line belongs."""
    of_data = lines["dataset"].map(claims.short_name).map(PLACES).fillna(FURTHER)
    return of_data.mask(lines["scale"] == PAPER_SCALE, AT_PAPER_SCALE)


def matrix(lines: pd.DataFrame) -> pd.DataFrame:
    """The verdict of every claim of data/claims.csv (rows) in every place (columns): on subsets of CUB and Cars, on
    Omniglot, on further data or without images, and at the paper's scale, those where anything was run. Only lines that
    decide count; of several the first that is run."""
    deciding = lines[lines["decides"] == "yes"]
    words = {}
    for key, rows in deciding.groupby([deciding["claim_id"], places(deciding)]):
        words[key] = next((word for word in rows["verdict"] if word != Verdict.NOT_RUN), Verdict.NOT_RUN)
    columns = [*PLACES.values(), FURTHER, AT_PAPER_SCALE]
    table = [[words.get((claim_id, place), Verdict.NOT_RUN) for place in columns] for claim_id in claims.stated()]
    frame = pd.DataFrame(table, index=pd.Index(claims.stated(), name="claim"), columns=columns, dtype=object)
    return frame.loc[:, (frame != Verdict.NOT_RUN).any()]
