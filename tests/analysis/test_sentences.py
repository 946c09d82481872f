"""Words follow intervals: made comparisons whose words are known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_for_claims import rows

from experiments.analysis import judging, sentences
from experiments.analysis.claims import START, ClaimTest, at_most, cheaper, flat, higher, lower, rising


def spread(mean, seeds=5, sd=0.1, seed=0):
    values = np.random.default_rng(seed).standard_normal(seeds)
    return mean + sd * (values - values.mean()) / values.std(ddof=1)


def judged(*parts, cells, seeds=5, tuned=24):
    """Judged parts of a claim over {cell: mean R@1}."""
    base = spread(0.0, sd=1.0, seed=9)
    data = rows(START, [10.0] * 5)
    for index, (cell, mean) in enumerate(cells.items()):
        method, _, setting = cell.partition(";")
        data += rows(method, base + spread(mean, seed=index), setting)
    data = pd.DataFrame(data)
    test = ClaimTest("pfml-02", "x", parts, "")
    return judging.judge(data[data["seed"] < seeds], {"pfml-02": test}, trials=dict.fromkeys("ABC", tuned))


def said(*parts, **how) -> str:
    (sentence,) = sentences.of_claims(judged(*parts, **how))
    return sentence


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        (3.0, "pfml-02, as claimed: R@1 of A is higher than that of B (+3.0, 95 % +2.8 to +3.2, n = 5)."),
        (-3.0, "pfml-02, the other way: R@1 of A is lower than that of B (-3.0, 95 % -3.2 to -2.8, n = 5)."),
        (0.1, "pfml-02, no difference: R@1 of A is within 0.5 of B (+0.1, 95 % -0.1 to +0.3, n = 5)."),
    ],
)
def test_a_difference_is_told_by_its_interval(gap, words):
    assert said(higher("A", "B"), cells={"A": 70 + gap, "B": 70}) == words


def test_an_interval_over_zero_tells_nothing_apart_and_says_how_many_seeds_would():
    words = said(higher("A", "B", by=0.05), cells={"A": 70.1, "B": 70})
    assert "R@1 of A is not told apart from B (+0.1" in words and " seeds would decide): " in words


def test_few_seeds_have_single_values_and_no_side():
    words = said(higher("A", "B"), cells={"A": 73, "B": 70}, seeds=2)
    assert words.startswith("pfml-02, unclear (2 of the 5 seeds needed): R@1 of A against B (+")
    assert words.endswith(", 2 seeds).") and "higher" not in words and "95 %" not in words


def test_baselines_are_grouped_by_what_is_told_of_them():
    words = said(higher("A", "B", "C"), cells={"A": 73, "B": 70, "C": 76})
    assert "is higher than that of B (" in words and "is lower than that of C (" in words
    assert ", the other way (1 of 2 point as claimed): R@1 of A is" in words


def test_the_reading_that_decides_comes_first():
    other = replace(higher("A", "C"), reading="another")
    words = said(replace(higher("A", "B"), reading="the first"), other, cells={"A": 73, "B": 70, "C": 76})
    assert "R@1 of A is higher than that of B (" in words.partition("read as “another” R@1 of A is lower")[0]


def test_a_value_has_as_many_digits_as_its_interval_asks_for():
    timed = {"dataset": "synthetic", "backbone": "", "metric": "seconds_ratio", "profile": "quick"}
    data = pd.DataFrame(rows("A", spread(1.0152, sd=0.0005), **timed))
    test = {"pfml-02": ClaimTest("pfml-02", "x", (cheaper("A", "1.1"),), "")}
    (words,) = sentences.of_claims(judging.judge(data, test))
    assert "(1.01" in words and ", 95 % 1.01" in words
    data["dataset"], data["profile"] = "omniglot", "small"
    (words,) = sentences.of_claims(judging.judge(data, test))
    assert words.startswith("pfml-02 (data that the claim does not name)")


def test_levels_are_spoken_of_by_the_farthest():
    cells = {"A;M=1": 70.0, "A;M=2": 70.1, "A;M=5": 70.4}
    words = said(flat("A;M=1..5", "A;M=1", within=1.5), cells=cells)
    assert "R@1 of A stays within 1.5, farthest at M = 5 against M = 1: +0.4" in words
    words = said(flat("A;M=1..5", "A;M=1", within=0.1), cells=cells)
    assert "R@1 of A does not stay within 0.1, farthest at M = 5" in words
    words = said(flat("A", "B", within=1.5), cells={"A": 70.4, "B": 70})
    assert "R@1 of A stays within 1.5 of B: +0.4" in words


@pytest.mark.parametrize(
    ("change", "word"), [(3, "rises over"), (-3, "falls over"), (0.01, "changes less than 0.5 over")]
)
def test_a_trend_rises_or_falls_where_its_interval_says_so(change, word):
    words = said(rising("A;M=0..1", by=0.5), cells={"A;M=0": 70, "A;M=1": 70 + change})
    assert f"R@1 of A at M = 0 to 1 {word} the range (" in words


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (higher("A;M=2", "A;M=1"), "A: M = 2 vs M = 1"),
        (higher("A;M=2", "B"), "A at M = 2 vs B"),
        (higher("A", "B"), "A vs B"),
        (rising("A;M=1..2", by=0.5), "trend of A at M = 1 to 2"),
    ],
)
def test_what_is_compared_is_said_in_words(part, words):
    (compared,) = judged(part, cells={"A;M=1": 70.0, "A;M=2": 73.0, "A": 72.0, "B": 71.0}).comparisons["compared"]
    assert compared.said == words


def test_an_exact_statement_and_a_cost_are_told_by_their_range_and_value():
    study = {"dataset": "synthetic", "backbone": "", "metric": "error", "profile": "quick"}
    data = pd.DataFrame(rows("A", [0.25, 0.5], **study))
    test = {"pfml-02": ClaimTest("pfml-02", "x", (at_most("A", "1", "error"),), "")}
    (words,) = sentences.of_claims(judging.judge(data, test))
    assert words == "pfml-02, as claimed: error of A lies in 0.25 to 0.5, required: every row at most 1."
    assert sentences.numbers(judging.judge(data, test).verdicts["compared"][0]) == "0.5, range 0.25 to 0.5, n = 2"
    timed = pd.DataFrame(rows("A", spread(1.05, sd=0.01), **study | {"metric": "seconds_ratio"}))
    test = {"pfml-02": ClaimTest("pfml-02", "x", (cheaper("A", "1.1"),), "")}
    (words,) = sentences.of_claims(judging.judge(timed, test))
    assert words.startswith(
        "pfml-02, cost on this device (as claimed): seconds_ratio of A is below 1.1 (1.050, 95 % 1.0"
    )


def test_of_a_dozen_comparisons_the_first_are_told_and_the_others_counted():
    parts = [higher("A", "B", metric="R@1", by=0.1 * i) for i in range(1, 7)]
    names = [f"B;x={i}" for i in range(6)]
    words = said(higher("A", *names), *parts, cells={"A": 73, "B": 70} | dict.fromkeys(names, 70))
    assert "and 3 more" in words or "more." in words


def test_the_tables_tell_what_was_said_required_and_found():
    judgement = judged(higher("A", "B"), cells={"A": 73, "B": 70})
    row = sentences.verdict_table(judgement).loc["pfml-02"]
    assert row["the paper says"].startswith("Beats CPML") and row["required"] == "higher by at least 0.5"
    assert row["ours"].startswith("A vs B: R@1 +3 (95 % +2.8") and row["verdict"] == "as claimed"
    assert (row["n"], row["data"], row["network"], row["tuned"]) == (5, "small, cub-subset", "conv4", "yes")
    assert list(sentences.verdict_table(judgement)).index("verdict") == 1, "where it is seen"
    html = judgement._repr_html_()
    assert html.count("Holm: p adjusted") == 1 and "Every comparison" in html
    assert repr(judgement) == "pfml-02  as claimed"


def test_single_values_are_shown_in_place_of_an_interval():
    judgement = judged(lower("A", "B"), cells={"A": 73, "B": 70}, seeds=2)
    ours = sentences.verdict_table(judgement).loc["pfml-02", "ours"]
    assert ours.count("+") == 2 and " and " in ours and "95 %" not in ours


def test_a_line_of_text_begins_with_the_claims_name_however_long():
    """The summary of a build counts these lines."""
    names = ["pfml-01", "meanfield-01"]
    lines = [dict.fromkeys(judging._LINE, "") | {"claim_id": name, "verdict": "unclear"} for name in names]
    judgement = judging.Judged(pd.DataFrame(lines), pd.DataFrame())
    assert [line.split() for line in repr(judgement).splitlines()] == [[name, "unclear"] for name in names]
