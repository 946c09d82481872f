"""Notebooks 00 and 01: what they found has the numbers of the table."""

from made_findings import said


def told(notebook: str, metric: str, values: dict[str, float]) -> list[str]:
    return said(notebook, {method: {metric: value} for method, value in values.items()})


def test_the_trained_network_stands_beside_what_it_began_with():
    (sentence,) = told("00", "R@1", {"untrained": 30, "random head": 25, "PFML": 60})
    assert "60.0 against 25.0 R@1 (+35.0, n = 1)" in sentence and sentence.endswith("has 30.0.")


def test_the_two_largest_means_and_the_features_as_they_are():
    assert told("01", "val MAP@R", {"untrained": 20, "PFML": 30, "Triplet": 10}) == [
        "Of 2 losses PFML and Triplet have the largest means: 30.0 against 10.0 val MAP@R (+20.0, n = 1).",
        "The features as they are have 20.0, the losses 10.0 to 30.0 val MAP@R.",
    ]
    first, features = told("01", "MAP@R", {"untrained": 40, "PFML": 10, "Triplet": 30})
    assert "Triplet and PFML" in first and "have 40.0, the losses 10.0 to 30.0 MAP@R" in features
