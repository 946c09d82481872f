"""Which checks keep a verdict, on effects whose answer is known."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from experiments.analysis import robustness
from experiments.analysis.claims import ClaimTest, at_most, higher
from experiments.analysis.comparing import Comparison
from experiments.analysis.judging import Verdict

PART, BOUND = higher("PFML", "CPML", by=0.5), at_most("PFML", "3", "error")
TEST = ClaimTest("pfml-02", "x", (PART,), "")
STEADY = np.array([1.9, 2.0, 2.1, 2.0, 1.9, 2.1, 2.0, 2.0])
BY_TWO_SEEDS = np.array([1.1, -0.2, 0.5, 1.3, 0.1, 0.4, 1.5, 0.6])  # supported; without two of them below 0.5
NONE = pd.DataFrame({name: [] for name in ("verdict", "profile", "dataset", "protocol", "backbone", "decides")})


def comparison(effects, classes=(np.nan, np.nan), part=PART):
    return Comparison(part, part.subject, part.baselines[0], np.asarray(effects), classes=classes)


def line(verdict=Verdict.SUPPORTED, **other):
    own = {"verdict": str(verdict), "p": 0.001, "p_holm": 0.01, "profile": "small", "dataset": "cub-subset"}
    own |= {"protocol": "conventional", "backbone": "squeezenet1_1", "decides": "yes"}
    return SimpleNamespace(**own | other)


def checks(*compared, of=None, other_metric=None, lines=NONE):
    return robustness.checked(of or line(), compared, TEST, other_metric, lines)


@pytest.mark.parametrize(("effects", "expected"), [(STEADY, "yes"), (BY_TWO_SEEDS, "no"), (STEADY[:3], "")])
def test_any_two_seeds_are_left_out(effects, expected):
    assert comparison(BY_TWO_SEEDS).outcome == "supported"  # with all its seeds
    assert [checks(comparison(effects, part=part))["fewer_seeds"] for part in (PART, BOUND)] == [expected, ""]


def test_one_comparison_that_turns_is_enough_and_holm_counts_as_it_did_for_the_verdict():
    assert checks(comparison(STEADY), comparison(BY_TWO_SEEDS))["fewer_seeds"] == "no"
    effects = [0.9, 1.9, 1.4, 0.6, 2.2, 1.1, 0.4, 1.6]
    assert checks(comparison(effects), of=line(p=0.001, p_holm=0.001))["fewer_seeds"] == "yes"
    assert checks(comparison(effects), of=line(p=0.001, p_holm=0.04))["fewer_seeds"] == "no"


@pytest.mark.parametrize(("classes", "expected"), [((1.8, 2.2), "yes"), ((-0.5, 4.5), "no"), ((np.nan, np.nan), "")])
def test_other_classes_add_to_the_standard_error(classes, expected):
    assert checks(comparison(STEADY, classes))["other_classes"] == expected


def test_the_other_metric_is_that_of_retrieval_alone():
    of_measure = ClaimTest("pfml-06", "x", (higher("PFML", "CPML", metric="W2"),), "")
    deep = ClaimTest("pfml-03", "x", (higher("PFML", "CPML", metric="MAP@R"),), "")
    changed = robustness.with_other_metric({"pfml-02": TEST, "pfml-03": deep, "pfml-06": of_measure})
    assert {name: test.parts[0].metric for name, test in changed.items()} == {"pfml-02": "MAP@R", "pfml-03": "R@1"}
    outcomes = {word: checks(comparison(STEADY), other_metric=word)["other_metric"] for word in map(str, Verdict)}
    assert outcomes.pop("supported") == "yes" and outcomes.pop("not run") == "" and set(outcomes.values()) == {"no"}


def test_other_tables_have_to_agree_all_of_them():
    def kept(*others):
        lines = pd.DataFrame([vars(line()), *(vars(line(*verdict, **other)) for verdict, other in others)])
        return {name: word for name, word in checks(comparison(STEADY), lines=lines).items() if word}

    assert set(kept()) == {"fewer_seeds"}
    mlrc, other_network = {"protocol": "MLRC", "decides": ""}, {"backbone": "mobilenet_v2", "decides": ""}
    assert kept(((), mlrc))["other_protocol"] == "yes"
    assert kept(((), mlrc), ((Verdict.MIXED,), mlrc | {"protocol": "MLRC concatenated"}))["other_protocol"] == "no"
    assert kept(((Verdict.CONTRADICTED,), other_network))["other_network"] == "no"
    letters = {"dataset": "omniglot", "backbone": "conv4"}
    assert kept(((), letters))["other_data"] == "yes" and "other_network" not in kept(((), letters))
    assert "other_data" not in kept(((Verdict.NOT_RUN,), letters))
    assert "other_data" not in kept(((), letters | {"profile": "quick"}))
