"""From the lines that the judge gives each table to a verdict for each claim: at the paper's scale, and here.

A line is a claim in one context of one table, a row of `judging.Judged.verdicts` with the table's `stem`. Here a
claim's verdict is that on the first data set it names of which we have runs, or of mathematics or costs without images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.analysis import claims, tables
from experiments.analysis.claims import ClaimTest
from experiments.analysis.judging import Verdict

NO_IMAGES = ("", tables.SYNTHETIC)  # data sets of mathematics and costs


def ordered(lines: pd.DataFrame, tests: Mapping[str, ClaimTest]) -> pd.DataFrame:
    """Lines with `scale` and `decides` ("yes" or empty), by claim, what the claim names and what decides first.

    On a data set the line decides that is run, whose protocol is the stated one, whose network was trained nearest to
    the paper's regime (`regime`: whole, its last blocks, a head alone), whose methods had an equal tuning budget, which
    trained for longest (`budget`, in steps), of most seeds; never for its verdict. Profile quick decides nothing about
    images.
    """

    def place(claim_id: str, dataset: str) -> int:
        """Among the data sets that a claim names; behind them all others, what needs none first of all."""
        named, short = claims.named(claim_id), claims.short_name(dataset)
        return -1 if dataset in NO_IMAGES else named.index(short) if short in named else len(named)

    protocols = zip(lines["claim_id"], lines["protocol"].str.lower())
    order = lines.assign(
        scale=(lines["profile"] == "paper").map({True: "paper", False: "here"}),
        _uncounted=(lines["profile"] == "quick") & ~lines["dataset"].isin(NO_IMAGES),
        _named=[*map(place, lines["claim_id"], lines["dataset"])],
        _run=lines["verdict"] == Verdict.NOT_RUN,
        _stated=[tests[claim_id].decides.replace("all", "") not in protocol for claim_id, protocol in protocols],
        _budget=-lines["budget"],
        _tuned=lines["tuned"] != "yes",
        _seeds=-lines["seeds"],
    )
    keys = ["claim_id", "scale", "_uncounted", "_named", "dataset", "_run", "_stated", "regime"]
    order = order.sort_values([*keys, "_tuned", "_budget", "_seeds", "stem"], kind="stable", ignore_index=True)
    first = ~order.duplicated(["claim_id", "scale", "dataset"]) & ~order["_uncounted"]
    order["decides"] = first.map({True: "yes", False: ""})
    return order[[name for name in order if not name.startswith("_")]]


def deciding(lines: pd.DataFrame, test: ClaimTest) -> Any:
    """The line that a claim's verdict here rests on: of mathematics or costs, or of the first data set it names; None
    where there is none."""
    own = lines[(lines["scale"] == "here") & (lines["decides"] == "yes") & (lines["role"] == "named")]
    of_images = any(part.about in ("training", "features") for part in test.deciding)
    return next(own[own["dataset"].isin(NO_IMAGES) != of_images].itertuples(), None)


def verdict(line: Any, test: ClaimTest) -> str:
    """One claim's verdict here, of the line that is `deciding`."""
    if test.not_testable or not test.deciding:
        return Verdict.NOT_TESTABLE
    return Verdict.NOT_RUN if line is None else line.verdict
