"""No stated test, of any paper, says "as claimed" of a table for which its claim is false."""

import pytest
from made_for_claims import adversaries, ends_of_ranges, everywhere, fulfilling, rows, tuned

from experiments.analysis import claims, judging
from experiments.analysis.claims import ClaimTest, Difference, at_most, flat, higher
from experiments.report import catalogue

TESTS = catalogue.claims()
PASSED = (judging.AS_CLAIMED, judging.IDENTITY, judging.COST)


def passes(table, test, **options) -> bool:
    """Whether all lines of a claim are as claimed, by construction, or costs as claimed."""
    family = {claim_id: member for claim_id, member in TESTS.items() if claim_id[:-3] == test.claim_id[:-3]}
    options = {"trials": tuned(test)} | options
    lines = judging.judge(table, family | {test.claim_id: test}, [test.claim_id], **options).verdicts
    costs = lines["verdict"] == judging.COST
    return bool(lines["verdict"].isin(PASSED).all() and lines.loc[costs, "reason"].str.startswith("as claimed").all())


def verdicts(table, test, **options) -> list[str]:
    family = {claim_id: member for claim_id, member in TESTS.items() if claim_id[:-3] == test.claim_id[:-3]}
    options = {"trials": tuned(test)} | options
    return judging.judge(table, family | {test.claim_id: test}, [test.claim_id], **options).verdicts["verdict"].tolist()


@pytest.mark.parametrize("claim_id", TESTS)
def test_every_stated_test_can_be_passed(claim_id):
    """A table made to fulfil the claim, with every cell it names, on every data set on which it says something of its
    own: no test is impossible to pass."""
    test = TESTS[claim_id]
    for dataset in everywhere(test):
        assert passes(fulfilling(test, dataset=dataset), test), dataset


@pytest.mark.parametrize("claim_id", TESTS)
def test_no_stated_test_is_passed_where_its_claim_is_false(claim_id):
    test = TESTS[claim_id]
    for wrong, table in adversaries(test).items():
        assert not passes(table, test) or wrong in _of_other_readings(test), wrong
        # a table that merely lacks rows would prove nothing; one without an end of a range may lack a cell
        assert judging.NOT_RUN not in verdicts(table, test) or "without" in wrong, wrong


def _of_other_readings(test) -> list[str]:
    """Adversaries of the parts that decide nothing: of every reading but the first."""
    first = next((part.reading for part in test.parts if part.reading), "")
    return [f"part {i} reversed" for i, part in enumerate(test.parts) if part.reading not in ("", first)]


@pytest.mark.parametrize("claim_id", [name for name, test in TESTS.items() if len({*tuned(test)}) > 1])
def test_methods_that_no_common_search_tuned_are_not_told_apart(claim_id):
    test = TESTS[claim_id]
    compared = [part for part in test.parts if part.about == "training" and isinstance(part, Difference)]
    names = [set().union(*(expression.methods for expression in (part.subject, *part.baselines))) for part in compared]
    several = any(len(methods) > 1 for methods in names) and "methods" not in set().union(*names)
    some = next(iter(tuned(test)))
    for trials in ({}, {some: 24}, dict.fromkeys(tuned(test), 1), dict.fromkeys(tuned(test), 11)):
        outcomes = verdicts(fulfilling(test), test, trials=trials)
        if several:
            assert judging.UNCLEAR in outcomes, trials


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ({}, "unclear"),
        ({"A": 1, "B": 1}, "unclear"),
        ({"A": 11, "B": 11}, "unclear"),
        ({"A": 12, "B": 24}, "unclear"),
        ({"A": 12}, "unclear"),
        ({"A": 12, "B": 12}, "as claimed"),
    ],
)
def test_two_methods_are_compared_when_equally_many_and_enough_trials_chose_their_settings(trials, expected):
    test = ClaimTest("pfml-01", "x", (higher("A", "B"),), "")
    table = fulfilling(test)
    assert verdicts(table, test, trials=trials) == [expected]
    levels = ClaimTest("pfml-01", "x", (higher("A", "A;alpha=1"),), "")
    assert verdicts(fulfilling(levels), levels, trials={}) == ["as claimed"], "levels share their method's settings"


def naive(*parts) -> ClaimTest:
    return ClaimTest("pfml-01", "x", parts, "")


@pytest.mark.parametrize(
    ("test", "wrong"),
    [
        (naive(claims.lower("A - A;noise=1", "B - B;noise=1", may_fail=True)), "A at a floor"),
        (naive(claims.lower("A", "B", by=10.0, metric="W2", relative=True)), "A collapsed"),
    ],
)
def test_the_adversaries_catch_a_test_that_forgets_a_premise(test, wrong):
    assert passes(fulfilling(test), test) and passes(adversaries(test)[wrong], test)


def test_the_adversaries_reverse_and_cut_what_a_test_names():
    test = naive(higher("A;alpha=1..6", "A;alpha=0"), at_most("A;M=1..10", "1", "error"))
    assert set(ends_of_ranges(test)) == {("A", "alpha=1"), ("A", "alpha=6"), ("A", "M=1"), ("A", "M=10")}
    passed = {wrong: passes(table, test) for wrong, table in adversaries(test).items()}
    assert len(passed) > 6 and not any(passed.values())


def test_the_adversary_at_a_floor_is_what_compares_failures():
    test = naive(flat("A;delta=0.1..0.3", "A;delta=0.2", within=1.0))
    assert verdicts(adversaries(test)["all at a floor"], test) == [judging.FAILURES]
    start = rows(claims.START, [1.0] * 8)
    assert start[0]["method"] == claims.START
