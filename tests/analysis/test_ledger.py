"""Which line decides on a data set, and what a claim's verdict is over its lines."""

import pandas as pd
import pytest

from experiments.analysis import judging, ledger
from experiments.analysis.claims import ClaimTest, at_most, higher

BIRDS = {
    "claim_id": "pfml-01",
    "dataset": "cub-subset",
    "profile": "small",
    "role": "named",
    "protocol": "conventional",
}
BIRDS |= {"verdict": "unclear", "tuned": "yes", "n": 5, "stem": "10_some", "direction": "as claimed"}
BIRDS |= {"zero": 0.0, "low": -1.0, "high": 1.0, "reason": ""}
TEST = ClaimTest("pfml-01", "10_some", (higher("A", "B"),), "")


def lines(*changes):
    return ledger.ordered(pd.DataFrame([BIRDS | change for change in changes]), {"pfml-01": TEST})


def test_on_a_data_set_the_stated_protocol_then_tuning_then_seeds_decide_and_never_the_verdict():
    table = lines(
        {"verdict": "as claimed", "tuned": "no", "n": 20},
        {"verdict": "as claimed", "n": 5, "stem": "10_more"},
        {"verdict": "the other way", "n": 10},
        {"verdict": "as claimed", "dataset": "cars-subset"},
    )
    assert table["decides"].tolist() == ["yes", "", "", "yes"]
    assert ledger.verdict(table, TEST) == "the other way"
    stated = ClaimTest("pfml-01", "10_some", TEST.parts, "", decides="separated")
    both = [BIRDS | {"protocol": f"MLRC {name}", "verdict": name} for name in ("concatenated", "separated")]
    assert ledger.ordered(pd.DataFrame(both), {"pfml-01": stated})["verdict"].tolist() == ["separated", "concatenated"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([{"verdict": "as claimed"}], "as claimed"),
        (
            [{"dataset": "cars-subset", "verdict": "as claimed"}, {"verdict": "unclear"}],
            "unclear",
        ),  # birds are named first
        ([{"dataset": "omniglot", "role": "further", "verdict": "as claimed"}], "not run"),
        ([{"dataset": "glyphs", "profile": "quick", "role": "further", "verdict": "unclear"}], "not run"),
        ([{"profile": "paper", "verdict": "as claimed"}], "not run"),
        ([{"dataset": "synthetic", "verdict": "as claimed"}], "not run"),
        ([{"dataset": "synthetic", "verdict": "the other way"}, {"verdict": "as claimed"}], "the other way"),
        ([{"dataset": "synthetic", "verdict": "as claimed"}, {"verdict": "no difference"}], "no difference"),
    ],
)
def test_here_a_claims_verdict_is_on_the_first_data_set_it_names(changes, expected):
    assert ledger.verdict(lines(*changes), TEST) == expected


def test_mathematics_alone_needs_no_images_and_the_papers_scale_is_apart():
    study = ClaimTest("pfml-01", "10_some", (at_most("A", "1", "error"),), "")
    table = lines({"dataset": "synthetic", "verdict": "by construction", "profile": "quick"})
    assert ledger.verdict(table, study) == "by construction"
    table = lines({"profile": "paper", "verdict": "as claimed"}, {})
    assert ledger.verdict(table, TEST, ledger.PAPER_SCALE) == "as claimed"
    assert ledger.verdict(table, ClaimTest("pfml-01", "10_some", (), "")) == judging.UNTESTABLE


def test_counts_are_in_the_order_of_the_verdicts():
    assert ledger.count_words(["unclear", "as claimed", "unclear"]) == "1 as claimed, 2 unclear"
