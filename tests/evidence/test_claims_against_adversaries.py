"""No stated test, of any paper, says "supported" of a table for which its claim is false."""

import pytest
from made_for_claims import adversaries, ends_of_ranges, fulfilling

from dmlrepro.evidence import claims, results
from dmlrepro.evidence.claims import ClaimTest, at_most, flat, higher
from dmlrepro.papers import catalogue

TESTS = catalogue.claims()


def verdict(table, test, **options):
    family = {claim_id: each for claim_id, each in TESTS.items() if claim_id[:-3] == test.claim_id[:-3]}
    line = claims.judge(table, family | {test.claim_id: test}, [test.claim_id], **options).verdicts.iloc[0]
    return line["verdict"], line["reason"]


@pytest.mark.parametrize("claim_id", TESTS)
def test_every_stated_test_can_be_supported(claim_id):
    """A table made to fulfil the claim, with every cell it names: no test is impossible to pass."""
    test = TESTS[claim_id]
    assert verdict(fulfilling(test), test, search_trials=1) == ("supported", verdict_reason(test))


def verdict_reason(test) -> str:
    readings = dict.fromkeys(part.reading for part in test.parts if part.reading)
    return "; ".join(f"{reading}: supported" for reading in readings)


@pytest.mark.parametrize("claim_id", TESTS)
def test_no_stated_test_is_supported_where_its_claim_is_false(claim_id):
    test = TESTS[claim_id]
    for wrong, table in adversaries(test).items():
        found, reason = verdict(table, test, search_trials=1)
        assert found != "supported", wrong
        # a table that merely lacks rows would prove nothing; one without an end of a range may lack a cell
        assert found != "not run" or "without" in wrong, (wrong, reason)


@pytest.mark.parametrize("claim_id", [claim_id for claim_id, test in TESTS.items() if test.trials])
def test_more_trials_of_the_subject_support_nothing(claim_id):
    test = TESTS[claim_id]
    compared = [
        (test.trials.get(part.subject.partition(";")[0], 0), test.trials.get(baseline.partition(";")[0], 0))
        for part in test.parts
        for baseline in part.baselines
        if part.kind != "exact"
    ]
    found, reason = verdict(fulfilling(test), test)
    if all(ours <= theirs for ours, theirs in compared):
        assert found == "supported"
    else:
        assert found == "inconclusive" and "tuned unequally" in reason


@pytest.mark.parametrize(
    ("trials", "higher_is", "lower_is"),
    [
        ({}, "supported", "contradicted"),
        ({"A": 5, "B": 5}, "supported", "contradicted"),
        ({"A": 5}, "inconclusive", "contradicted"),  # who had more trials and still loses does so all the more
        ({"B": 5}, "supported", "inconclusive"),
    ],
)
def test_the_side_that_had_more_trials_cannot_win(trials, higher_is, lower_is):
    values = {"A": [70.0, 71.0, 72.0, 73.0, 74.0], "B": [60.0, 62.0, 64.0, 66.0, 68.0]}
    where = {"paper": "pfml", "experiment": "x", "profile": "small", "dataset": "cub", "metric": "R@1"}
    rows = [where | {"method": m, "seed": i, "value": v} for m, each in values.items() for i, v in enumerate(each)]
    for method, baseline, expected in (("A", "B", higher_is), ("B", "A", lower_is)):
        swapped = trials if method == "A" else {{"A": "B", "B": "A"}[name]: count for name, count in trials.items()}
        test = ClaimTest("pfml-01", "x", (higher(method, baseline),), "", trials=swapped)
        found = claims.judge(results.frame(rows), {"pfml-01": test}).verdicts["verdict"].tolist()
        assert found == [expected]


def naive(*parts) -> ClaimTest:
    return ClaimTest("pfml-01", "x", parts, "")


@pytest.mark.parametrize(
    ("test", "wrong"),
    [
        (naive(flat("A;delta=0.1..0.3", "A;delta=0.2", within=1.0)), "all at a floor"),
        (naive(claims.lower("A - A;noise=1", "B - B;noise=1")), "A at a floor"),
        (naive(claims.lower("A", "B", by=10.0, metric="W2", relative=True)), "A collapsed"),
    ],
)
def test_the_adversaries_catch_a_test_that_forgets_a_premise(test, wrong):
    assert verdict(fulfilling(test), test)[0] == "supported"
    assert verdict(adversaries(test)[wrong], test)[0] == "supported"


def test_the_adversaries_reverse_and_cut_what_a_test_names():
    test = naive(higher("A;alpha=1..6", "A;alpha=0"), at_most("A;M=1..10", "1", "error"))
    assert set(ends_of_ranges(test)) == {("A", "alpha=1"), ("A", "alpha=6"), ("A", "M=1"), ("A", "M=10")}
    found = {wrong: verdict(table, test)[0] for wrong, table in adversaries(test).items()}
    assert found.pop("A without alpha=1") == found.pop("A without M=10") == "inconclusive"
    assert found["part 0 reversed"] == found["part 1 reversed"] == found["everything reversed"] == "contradicted"
    assert "supported" not in found.values()
