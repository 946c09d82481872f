"""The one judge: what numbers allow to be said of a claim, once per context (profile, data set, network, dimension,
protocol), and which of these lines decides. Tables, pages and the ledger are made from it.

A claim's verdict here is that on the first data set it names of which we have runs, or of mathematics or costs without
images.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import claims, comparing, tables
from experiments.analysis.claims import ClaimTest
from experiments.analysis.comparing import ClaimResult, Comparison, Environments, Reason, compared_everywhere
from experiments.analysis.statistics import CONTRADICTED, EQUIVALENT, LEVEL, OPEN, SUPPORTED, detectable_effect, holm
from experiments.analysis.summaries import Judged
from experiments.analysis.tables import FEATURES, START


class Verdict(StrEnum):
    SUPPORTED = SUPPORTED
    IN_PART = "supported in part"
    MIXED = "mixed"
    EQUIVALENT = EQUIVALENT
    CONTRADICTED = CONTRADICTED
    INCONCLUSIVE = "inconclusive"
    NOT_INTERPRETABLE = "not interpretable"
    BY_DEFINITION = "true by definition"
    MEASURED = "measured"
    NOT_TESTABLE = "not testable"
    NOT_RUN = "not run"


NOT_RUN = (Reason.ROWS, Reason.SEEDS, Reason.RANGE, Reason.NETWORK)  # a claim of such a comparison is not run
NOT_INTERPRETABLE = (Reason.BELOW, Reason.UNLEARNED)
NO_IMAGES = ("", tables.SYNTHETIC)  # data sets of mathematics and costs
DECIDED = (Verdict.SUPPORTED, Verdict.IN_PART, Verdict.MIXED, Verdict.EQUIVALENT, Verdict.CONTRADICTED)

_NUMBERS = ("effect", "low", "high", "zero", "class_low", "class_high", "detectable", "p")
_SHOWN = ("comparison", "metric", "interval", "unit", "values", "required", "tuned", "mixes", "compared", "seeds")
_OF_TEST = ("claim_id", "notebook", "universal", "ingredient", "revised", "untested_parts")
_LINE = (*_OF_TEST, "verdict", "k", "n", "reason", "detail", "role", "p_holm", *_NUMBERS, *_SHOWN, *tables.CONTEXT)
_ROW = ("claim_id", "outcome", "reason", "decides", "interpretation", *_NUMBERS, *_SHOWN, *tables.CONTEXT)


def judge(
    table: pd.DataFrame,
    tests: Mapping[str, ClaimTest],
    claim_ids: Iterable[str] | None = None,
    *,
    hits: pd.DataFrame | None = None,
    trials: Mapping[str, int] | None = None,
    device: str = "",
    pretrained: bool = True,
    environments: Environments | None = None,
) -> Judged:
    """Judge claims of one paper; ValueError: the table holds two values for one run.

    Comparisons are of per-seed effects, paired by seed; the outcome of each is that of its kind, see `statistics`, or
    open, see `comparing.Reason`. *Supported* and *contradicted* need p < 5 % after Holm's adjustment of their own over
    all claims of the paper on a data set and network, those not in this call counting as 1.

    Args:
        table: tidy results; several experiments, data sets or profiles give a line each.
        tests: all tests of one paper by claim id.
        claim_ids: which of them are judged; None: all.
        hits: see `results.hits`: comparisons on R@1 or P@1 then also have an interval over resampled test classes
            (class_low, class_high), which decides nothing.
        trials: by method, how many trials of the search chose its settings; methods not named: none.
        device: on what the runs were trained and timed, for the tables only.
        pretrained: whether the networks were; if not, the initial network takes the place of the pretrained features.
        environments: of the lines of the runs; comparisons that mix devices or fingerprints are marked.
    """
    claim_ids = list(tests if claim_ids is None else claim_ids)
    rows, of_contexts = tables.final_rows(table), () if hits is None else hits.groupby(tables.CONTEXT)
    resampled = {context: tables.resampled_cells(group) for context, group in of_contexts}
    how: dict[str, Any] = {"trials": trials or {}, "environments": environments or {}}
    how["floor"] = FEATURES if pretrained else START

    @functools.cache
    def contexts(protocol: str, without_images: bool) -> list[comparing.Context]:
        return list(comparing.contexts_of(rows, protocol, without_images, resampled, **how))

    results: list[ClaimResult] = []
    for test in map(tests.__getitem__, claim_ids):
        without_images = all(part.about == "study" for part in test.parts)
        results += compared_everywhere(test, contexts(test.protocol, without_images))
    family = sum(any(not part.by_rows for part in test.deciding) for test in tests.values())
    lines = [_line(result, p, family) for result, p in zip(results, adjusted(results, family))]
    compared = [_row(result, comparison, family) for result in results for comparison in result.comparisons]
    verdicts, comparisons = pd.DataFrame(lines, columns=[*_LINE]), pd.DataFrame(compared, columns=[*_ROW])
    return Judged(verdicts.assign(device=device), comparisons.assign(device=device))


def adjusted(results: Sequence[ClaimResult], family: int) -> list[dict[str, float]]:
    """Outcome -> p after Holm, of every claim and context, adjusted over those of one data set and network; family: how
    many claims of the paper have a p."""
    places: dict[tuple, list[int]] = {}
    for i, result in enumerate(results):
        places.setdefault(tuple(result.context.get(name, "") for name in tables.CONTEXT[1:]), []).append(i)
    after: list[dict[str, float]] = [{} for _ in results]
    for together, outcome in itertools.product(places.values(), (SUPPORTED, CONTRADICTED)):
        p_values = holm([results[i].p[outcome] for i in together], max(family, len(together)))
        for i, p in zip(together, p_values):
            after[i][outcome] = float(p)
    return after


def decided(outcomes: np.ndarray, p_supported: np.ndarray, p_contradicted: np.ndarray, universal: bool) -> np.ndarray:
    """The verdict (...) of a claim from the outcomes (..., n) of its comparisons and its p (...) after Holm; NaN where
    nothing was adjusted. Rules 3 to 5 of design.md, the first that fits."""
    k, contradicted, equivalent = ((outcomes == word).sum(-1) for word in (SUPPORTED, CONTRADICTED, EQUIVALENT))
    n = outcomes.shape[-1]
    refuted = (contradicted > 0) & ((k == 0) | universal)
    rules = (
        ((k == n) & ~(p_supported >= LEVEL), Verdict.SUPPORTED),
        (refuted & ~(p_contradicted >= LEVEL), Verdict.CONTRADICTED),
        ((k == n) | refuted, Verdict.INCONCLUSIVE),  # not after Holm
        ((k > 0) & (contradicted + equivalent > 0), Verdict.MIXED),
        (k > 0, Verdict.IN_PART),
        (2 * equivalent >= n, Verdict.EQUIVALENT),
    )
    return np.select([so for so, _ in rules], [str(word) for _, word in rules], str(Verdict.INCONCLUSIVE))


def verdict(result: ClaimResult, p: Mapping[str, float]) -> tuple[Verdict, Reason | str, list[Comparison]]:
    """(the verdict, its reason, the comparisons that the reason is about) of a claim in a context; p: outcome -> p
    after Holm. The first rule that fits decides."""
    test, deciding, supported = result.test, result.deciding, result.supported == len(result.deciding)
    if test.not_testable or not test.deciding:
        return Verdict.NOT_TESTABLE, "", []
    if result.missing or not deciding:
        return Verdict.NOT_RUN, Reason.ROWS, []
    if not_run := [one for one in deciding if one.reason in NOT_RUN]:
        return Verdict.NOT_RUN, not_run[0].reason, not_run
    if all(one.part.about == "cost" for one in deciding):
        return Verdict.MEASURED, "", []
    if supported and all(one.part.identity for one in deciding):
        return Verdict.BY_DEFINITION, "", []
    if unmet := [one for one in result.comparisons if one.part.precondition and one.outcome != SUPPORTED]:
        return Verdict.NOT_INTERPRETABLE, Reason.PRECONDITION, unmet
    if unclear := [one for one in deciding if one.reason in NOT_INTERPRETABLE]:
        return Verdict.NOT_INTERPRETABLE, unclear[0].reason, unclear
    outcomes = np.array([one.outcome for one in deciding])
    word = Verdict(str(decided(outcomes, np.array(p[SUPPORTED]), np.array(p[CONTRADICTED]), test.universal)))
    if word != Verdict.INCONCLUSIVE:
        return word, "", [one for one in deciding if one.outcome == word]
    if stopped := [one for one in deciding if one.reason]:
        return word, stopped[0].reason, stopped
    settled = supported or CONTRADICTED in outcomes
    return word, Reason.HOLM if settled else "", [one for one in deciding if one.outcome == OPEN]


def _line(result: ClaimResult, p: Mapping[str, float], family: int) -> dict[str, Any]:
    test, deciding, dataset = result.test, result.deciding, result.context.get("dataset", "")
    word, reason, about = verdict(result, p)
    line: dict[str, Any] = dict.fromkeys(_LINE, "") | dict.fromkeys((*_NUMBERS, "p_holm"), math.nan) | {"seeds": 0}
    line |= result.context
    if shown := deciding or result.comparisons:
        order = (CONTRADICTED, EQUIVALENT, OPEN, SUPPORTED)  # what speaks most against the claim first
        least = min(shown, key=lambda one: (order.index(one.outcome), one.p[CONTRADICTED], -one.p[SUPPORTED]))
        line |= _row(result, least, family)
        if any(comparison.context != shown[0].context for comparison in shown):
            line |= result.context
        # "no" where one was not tuned, "devices" where one mixes them
        line |= {name: min({getattr(one, name) for one in shown} - {""}, default="") for name in ("tuned", "mixes")}
        outcome = CONTRADICTED if word == Verdict.CONTRADICTED else SUPPORTED
        line |= {"p": result.p[outcome], "p_holm": p[outcome]}
    named = dataset in NO_IMAGES or claims.short_name(dataset) in claims.named(test.claim_id)
    detail = result.missing if reason == Reason.ROWS else dict.fromkeys(comparison.name for comparison in about)
    line |= {name: getattr(test, name) for name in _OF_TEST} | {"verdict": str(word), "reason": str(reason)}
    line |= {"k": result.supported, "n": len(deciding), "role": "named" if named else "out of scope"}
    return line | {"detail": "; ".join(detail)}


def _row(result: ClaimResult, comparison: Comparison, family: int) -> dict[str, Any]:
    """A comparison; what n seeds can detect is after Holm."""
    part, effects, outcome = comparison.part, comparison.effects, comparison.outcome
    numbers = (*comparison.estimate, comparison.baseline.zero, *comparison.classes, math.nan)
    row = result.context | dict(comparison.context) | dict(zip(_NUMBERS, numbers))
    row |= {"decides": "yes" if part.decides else "control" if part.control else "precondition", "values": ""}
    row |= {"comparison": comparison.name, "compared": comparison, "seeds": len(effects), "outcome": outcome}
    row |= {"claim_id": result.test.claim_id, "reason": str(comparison.reason)}
    row |= {name: getattr(part, name) for name in ("metric", "unit", "required", "interpretation")}
    row |= {"tuned": comparison.tuned, "mixes": comparison.mixes}
    row["interval"] = {"bound": "range", "equivalence": "90 %"}.get(part.kind, "95 %")
    row["p"] = comparison.p.get(outcome, comparison.p[SUPPORTED])
    if comparison.few:  # single values have no interval
        values = (f"{value:+.3g}" for value in comparison.in_unit(effects))
        row |= {"low": math.nan, "high": math.nan, "values": " and ".join(values)}
    elif part.kind in ("superiority", "trend"):
        sd = effects.std(ddof=1)  # of logarithms where relative
        detectable = detectable_effect(len(effects), sd, LEVEL / max(family, 1), part.sesoi)
        row["detectable"] = 100 * abs(math.expm1(part.sign * detectable)) if part.relative else detectable
    return row


def ordered(lines: pd.DataFrame, tests: Mapping[str, ClaimTest]) -> pd.DataFrame:
    """Lines with `scale` and `decides` ("yes" or empty), by claim, what the claim names and what decides first.

    On a data set the line decides that is run, whose protocol is the stated one, whose network was trained nearest to
    the paper's regime (`regime`: whole, its last blocks, a head alone), whose methods had an equal tuning budget, which
    trained for longest (`budget`, in steps), of most seeds; never for its verdict. Quick decides nothing on images.
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


def verdict_here(line: Any, test: ClaimTest) -> str:
    """One claim's verdict here, of the line that is `deciding`."""
    if test.not_testable or not test.deciding:
        return Verdict.NOT_TESTABLE
    return Verdict.NOT_RUN if line is None else line.verdict
