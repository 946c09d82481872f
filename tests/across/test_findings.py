"""Notebooks 00 and 01: what they found has the numbers of the table."""

from made_findings import said


def told(notebook: str, metric: str, values: dict[str, float]) -> list[str]:
    return said(notebook, {method: {metric: value} for method, value in values.items()})


def test_the_trained_network_stands_beside_what_it_began_with():
    (sentence,) = told("00", "R@1", {"untrained": 30, "random head": 25, "PFML": 60})
    assert "60.0 against 25.0 R@1 (+35.0, n = 1)" in sentence and sentence.endswith("has 30.0.")


def test_the_best_loss_stands_beside_the_best_that_needs_no_training():
    assert told("01", "val MAP@R", {"untrained": 20, "PCA": 10, "PFML;part=head": 30, "Triplet;part=head": 10}) == [
        "On held-out classes the best loss, PFML;part=head: 30.0 against 20.0 val MAP@R (+10.0, n = 1) of untrained."
    ]
