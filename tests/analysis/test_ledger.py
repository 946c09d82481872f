"""Which line decides on a data set, and what a claim's verdict is over its lines."""

import pandas as pd
import pytest

from experiments.analysis import judging
from experiments.analysis.claims import ClaimTest, at_most, higher

BIRDS = {
    "claim_id": "pfml-01",
    "dataset": "cub-subset",
    "profile": "small",
    "role": "named",
    "protocol": "conventional",
}
BIRDS |= {"verdict": "inconclusive", "tuned": "yes", "seeds": 5, "stem": "10_some", "regime": 1, "budget": 150}
BIRDS |= {"zero": 0.0, "low": -1.0, "high": 1.0, "reason": ""}
TEST = ClaimTest("pfml-01", "10_some", (higher("A", "B"),), "")


def verdict(table, test=TEST):
    return judging.verdict_here(judging.deciding(table, test), test)


def lines(*changes):
    return judging.ordered(pd.DataFrame([BIRDS | change for change in changes]), {"pfml-01": TEST})


def test_on_a_data_set_protocol_then_regime_then_tuning_then_budget_then_seeds_decide_and_never_the_verdict():
    table = lines(
        {"verdict": "supported", "tuned": "no", "seeds": 20},
        {"verdict": "supported", "seeds": 5, "stem": "10_more"},
        {"verdict": "contradicted", "seeds": 10},
        {"verdict": "supported", "regime": 2, "seeds": 40},
        {"verdict": "not run", "regime": 0, "seeds": 40},
        {"verdict": "supported", "dataset": "cars-subset"},
    )
    assert table["decides"].tolist() == ["yes", "", "", "", "", "yes"]
    assert verdict(table) == "contradicted"
    longer = lines({"budget": 600, "verdict": "mixed"}, {"seeds": 40, "verdict": "supported"})
    assert verdict(longer) == "mixed", "the longer of two budgets"
    untuned = lines({"budget": 600, "tuned": "no", "verdict": "mixed"}, {"verdict": "supported"})
    assert verdict(untuned) == "supported", "tuned methods before longer ones"
    whole = lines({"regime": 0, "verdict": "equivalent", "tuned": "no"}, {"verdict": "supported"})
    assert verdict(whole) == "equivalent", "the whole network before its last blocks"
    stated = ClaimTest("pfml-01", "10_some", TEST.parts, "", decides="separated")
    both = [BIRDS | {"protocol": f"MLRC {name}", "verdict": name} for name in ("concatenated", "separated")]
    assert judging.ordered(pd.DataFrame(both), {"pfml-01": stated})["verdict"].tolist() == ["separated", "concatenated"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([{"verdict": "supported"}], "supported"),
        ([{"dataset": "cars-subset", "verdict": "supported"}, {"verdict": "mixed"}], "mixed"),  # birds are named first
        ([{"dataset": "omniglot", "role": "out of scope", "verdict": "supported"}], "not run"),
        ([{"dataset": "glyphs", "profile": "quick", "role": "out of scope", "verdict": "mixed"}], "not run"),
        ([{"profile": "paper", "verdict": "supported"}], "not run"),
        ([{"dataset": "synthetic", "verdict": "supported"}], "not run"),
        ([{"dataset": "synthetic", "verdict": "contradicted"}, {"verdict": "supported"}], "supported"),
    ],
)
def test_here_a_claims_verdict_is_on_the_first_data_set_it_names(changes, expected):
    assert verdict(lines(*changes)) == expected


def test_mathematics_alone_needs_no_images_and_the_papers_scale_is_apart():
    study = ClaimTest("pfml-01", "10_some", (at_most("A", "1", "error"),), "")
    table = lines({"dataset": "synthetic", "verdict": "true by definition", "profile": "quick"})
    assert verdict(table, study) == "true by definition"
    table = lines({"profile": "paper", "verdict": "supported"}, {})
    assert table["decides"].tolist() == ["yes", "yes"] and verdict(table) == "inconclusive"
    assert verdict(table, ClaimTest("pfml-01", "10_some", (), "")) == judging.Verdict.NOT_TESTABLE
