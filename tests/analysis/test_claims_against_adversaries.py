"""No stated test, of any paper, says "supported" of a table for which its claim is false."""

import dataclasses

import numpy as np
import pytest
from made_for_claims import adversaries, everywhere, fulfilling, tuned

from experiments.analysis import claims, judging
from experiments.analysis.claims import ClaimTest, higher, lower
from experiments.analysis.comparing import Reason
from experiments.analysis.judging import Verdict
from experiments.report import catalogue

TESTS = catalogue.claims()


def judged(table, test, **options):
    family = {claim_id: member for claim_id, member in TESTS.items() if claim_id[:-3] == test.claim_id[:-3]}
    options = {"trials": tuned(test)} | options
    return judging.judge(table, family | {test.claim_id: test}, [test.claim_id], **options)


def passes(table, test, **options) -> bool:
    """Whether all lines of a claim are supported, true by definition, or costs as claimed."""
    lines = judged(table, test, **options).verdicts
    whole = (lines["verdict"] == Verdict.MEASURED) & (lines["k"] == lines["n"])
    return bool((whole | lines["verdict"].isin([Verdict.SUPPORTED, Verdict.BY_DEFINITION])).all())


def verdicts(table, test, **options) -> list[str]:
    return judged(table, test, **options).verdicts["verdict"].tolist()


def naive(*parts) -> ClaimTest:
    return ClaimTest("pfml-01", "x", parts, "")


@pytest.mark.parametrize("claim_id", TESTS)
def test_every_stated_test_can_be_passed_but_what_is_not_testable(claim_id):
    """A table made to fulfil the claim, with every cell it names, on every data set on which it says something of its
    own: no test is impossible to pass."""
    test = TESTS[claim_id]
    if test.not_testable:
        assert verdicts(fulfilling(test), test) == [Verdict.NOT_TESTABLE]
        return
    for dataset in everywhere(test):
        assert passes(fulfilling(test, dataset=dataset), test), dataset


@pytest.mark.parametrize("claim_id", TESTS)
def test_no_stated_test_is_passed_where_its_claim_is_false(claim_id):
    test = TESTS[claim_id]
    for wrong, table in adversaries(test).items():
        assert not passes(table, test), wrong
        # a table that merely lacks rows would prove nothing; one without an end of a range may lack a cell
        lacks = any(word in wrong for word in ("without", "four seeds", "another network"))
        assert Verdict.NOT_RUN not in verdicts(table, test) or lacks, wrong


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ({}, Verdict.INCONCLUSIVE),
        ({"A": 1, "B": 1}, Verdict.INCONCLUSIVE),
        ({"A": 11, "B": 11}, Verdict.INCONCLUSIVE),
        ({"A": 12, "B": 24}, Verdict.INCONCLUSIVE),
        ({"A": 12}, Verdict.INCONCLUSIVE),
        ({"A": 12, "B": 12}, Verdict.SUPPORTED),
    ],
)
def test_two_methods_are_compared_when_equally_many_and_enough_trials_chose_their_settings(trials, expected):
    test, levels = naive(higher("A", "B")), naive(higher("A", "A;alpha=1"))
    table = fulfilling(test)
    comparisons = judged(table, test, trials=trials).comparisons
    assert verdicts(table, test, trials=trials) == [expected]
    assert comparisons["reason"].tolist() == ["" if expected == Verdict.SUPPORTED else Reason.TUNING]
    alone = fulfilling(levels)
    assert verdicts(alone, levels, trials={}) == [Verdict.SUPPORTED], "levels share their method's settings"


def test_the_adversaries_catch_a_test_that_forgets_a_precondition():
    test = naive(lower("A - A;noise=1", "B - B;noise=1", may_fail=True))
    wrong = adversaries(test)["A at a floor"]
    assert passes(fulfilling(test), test) and passes(wrong, test)
    guarded = dataclasses.replace(test, parts=(*test.parts, claims.on_a_par("A", "B", within=10.0)))
    assert not passes(wrong, guarded)


def test_a_control_shows_a_collapse_that_the_claim_itself_does_not_exclude():
    test = TESTS["pfml-06"]
    good = fulfilling(test)
    of_subject = (good["method"] == "PFML") & good["metric"].isin(["W2", "intra_class_distance"])
    shrunk = good["value"] / np.where(good["metric"] == "W2", 50, 100)
    collapsed = judged(good.assign(value=good["value"].where(~of_subject, shrunk)), test)
    assert collapsed.verdicts["verdict"].tolist() == [Verdict.SUPPORTED]
    controls = collapsed.comparisons[collapsed.comparisons["decides"] == "control"]
    assert set(controls["outcome"]) == {"contradicted"}
