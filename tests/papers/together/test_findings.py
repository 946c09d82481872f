"""Notebooks 00 and 01: what they found turns when the numbers turn."""

from made_findings import said


def told(notebook: str, metric: str, **values: float) -> list[str]:
    return said(notebook, {method: {metric: value} for method, value in values.items()})


def test_training_helps_or_not():
    assert "helps on classes" in told("00", "R@1", untrained=20, PFML=60)[0]
    assert "does not help on classes" in told("00", "R@1", untrained=60, PFML=20)[0]


def test_the_first_place_and_how_many_heads_are_above_the_features_as_they_are():
    assert told("01", "val MAP@R", untrained=20, PFML=30, Triplet=10) == [
        "PFML ranks first of 2 losses: 30.0 against 10.0 val MAP@R (+20.0, n = 1) of Triplet.",
        "1 of 2 heads lie above the features as they are, which have 20.0 val MAP@R.",
    ]
    first, above = told("01", "MAP@R", untrained=40, PFML=10, Triplet=30)
    assert first.startswith("Triplet ranks first") and above.startswith("None of 2 heads")
