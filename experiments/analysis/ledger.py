"""From the lines that the judge gives each table to a verdict for each claim: at the paper's scale, and here.

A line is a claim in one context of one table, a row of `judging.Judged.verdicts` with the table's `stem`. On each data
set one line decides; the others are shown. Here a claim's verdict is that on the first data set it names of which we
have runs; a line of mathematics or of costs stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pandas as pd

from experiments.analysis import claims, judging, tables
from experiments.analysis.claims import ClaimTest

PAPER_SCALE, HERE = "paper", "here"
FURTHER, AT_PAPER_SCALE = "further", "paper scale"
PLACES = {"cub": "birds", "cars": "cars", "omniglot": "letters"}  # of the matrix, by the short names of data sets


class Ledger(NamedTuple):
    """All that is said of the claims: lines as `ordered` has them, by claim the verdict here, and why one has none."""

    lines: pd.DataFrame
    here: Mapping[str, str]
    without_verdict: Mapping[str, str]


def ordered(lines: pd.DataFrame, tests: Mapping[str, ClaimTest]) -> pd.DataFrame:
    """Lines with `scale` and `decides` ("yes" or empty), by claim, what the claim names and what decides first.

    On a data set the line decides whose protocol is the stated one, then one whose methods were tuned alike, then that
    of most seeds: none is taken for its verdict. Profile quick decides nothing about images.
    """
    lines = lines.reset_index(drop=True)
    stated = [
        bool(line.claim_id in tests) and tests[line.claim_id].decides in line.protocol.lower()
        for line in lines.itertuples()
    ]
    without_images = lines["dataset"].isin(["", tables.SYNTHETIC])
    counted = (lines["profile"] != "quick") | without_images
    order = lines.assign(
        scale=(lines["profile"] == "paper").map({True: PAPER_SCALE, False: HERE}),
        _images=~without_images,
        _counted=~counted,
        _named=[_place(line.claim_id, line.dataset) for line in lines.itertuples()],
        _stated=[not is_stated for is_stated in stated],
        _tuned=lines["tuned"] != "yes",
        _n=-lines["n"],
    )
    keys = ["claim_id", "scale", "_images", "_counted", "_named", "dataset", "_stated", "_tuned", "_n", "stem"]
    order = order.sort_values(keys, kind="stable").reset_index(drop=True)
    first = ~order.duplicated(["claim_id", "scale", "dataset"]) & ~order["_counted"]
    order["decides"] = first.map({True: "yes", False: ""})
    return order.drop(columns=[name for name in order if name.startswith("_")])


def _place(claim_id: str, dataset: str) -> int:
    """The place of a data set among those that a claim names; behind them all others."""
    named, short = claims.named(claim_id), claims.short_name(dataset)
    return named.index(short) if short in named else len(named)


def verdict(lines: pd.DataFrame, test: ClaimTest, scale: str = HERE) -> str:
    """One claim's verdict at one scale, over its lines."""
    return judging.of_lines(lines_that_decide(lines, test, scale), test)


def lines_that_decide(lines: pd.DataFrame, test: ClaimTest, scale: str = HERE) -> pd.DataFrame:
    """The lines that a claim's verdict rests on: mathematics or costs, and the first data set that it names."""
    own = lines[(lines["scale"] == scale) & (lines["decides"] == "yes")]
    if not test.parts:
        return own
    without_images = own["dataset"].isin(["", tables.SYNTHETIC])
    named = own[~without_images & (own["role"] == "named")].head(1)
    return pd.concat([own[without_images], named])


def places(lines: pd.DataFrame) -> pd.Series:
    """The column of `matrix` to which each line belongs."""
    of_data = lines["dataset"].map(claims.short_name).map(PLACES).fillna(FURTHER)
    return of_data.mask(lines["scale"] == PAPER_SCALE, AT_PAPER_SCALE)


def matrix(lines: pd.DataFrame) -> pd.DataFrame:
    """The verdict of every claim of data/claims.csv (rows) in every place (columns): on parts of birds, cars and
    letters, on further data or without images, and at the paper's scale. Only lines that decide count."""
    deciding = lines[lines["decides"] == "yes"]
    verdicts = {key: set(rows["verdict"]) for key, rows in deciding.groupby([deciding["claim_id"], places(deciding)])}
    columns = [*PLACES.values(), FURTHER, AT_PAPER_SCALE]

    def word(claim_id: str, place: str) -> str:
        here = verdicts.get((claim_id, place), {judging.NOT_RUN})
        return next(candidate for candidate in judging.FIRST if candidate in here)

    stated = claims.stated()
    table = [[word(claim_id, place) for place in columns] for claim_id in stated]
    return pd.DataFrame(table, index=pd.Index(stated, name="claim"), columns=columns)


def count_words(words: Iterable[str]) -> str:
    """ "3 as claimed, 9 unclear", in the order of `judging.VERDICTS`."""
    counts = pd.Series(list(words)).value_counts()
    return ", ".join(f"{counts[word]} {word}" for word in judging.VERDICTS if word in counts)
