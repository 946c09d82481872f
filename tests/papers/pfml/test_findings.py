"""Notebooks 10 to 17: every sentence about a table turns when the table's numbers turn."""

import pytest
from made_findings import WHERE, said, sides

from dmlrepro.evidence import results, stored
from dmlrepro.papers import catalogue

N2 = "label_noise=0.2"


def noisy(ours, theirs, shares):
    found = {}
    for method, (clean, wrong), share in zip(("PFML", "ProxyAnchor"), (ours, theirs), shares):
        found |= {f"{method};label_noise=0": {"R@1": clean}, f"{method};{N2}": {"R@1": wrong, "gradient_share": share}}
    return found


def swept(name, levels, *others):
    found = {f"PFML;{name}={level:g}": {"R@1": value} for level, value in levels.items()}
    return found | dict(others)


def retrieved(pfml, cpml, far):
    values = {"untrained": 20, "PFML": pfml, "CPML": cpml, "Triplet": 40, "PFML;delta_rep=0.3": far}
    return {cell: {"R@1": value} for cell, value in values.items()}


def spread(levels):
    return {
        f"PFML;delta_rep={level:g}": dict(zip(("R@1", "intra_class_distance", "class_mean_distance"), values))
        for level, values in levels.items()
    }


ALPHA_ZERO = [("untrained", {"R@1": 30}), ("PFML;alpha=0;alpha_zero=literal", {"R@1": 20})]
TURNS = {  # notebook: (a table that is with the paper, one that is against it, the sentences that take sides)
    "10": (retrieved(70, 60, 65), retrieved(60, 70, 65), [True, True, True]),
    "11": (noisy((70, 65), (70, 60), (10, 15)), noisy((70, 60), (70, 65), (30, 25)), [True, True, True]),
    "13": (
        swept("M", {0: 60, 1: 69, 2: 70, 5: 72, 15: 73, 30: 73}),
        swept("M", {0: 75, 1: 74, 2: 74, 5: 60, 15: 72, 30: 50}),
        [True, True, True],
    ),
    "14": (
        swept("delta", {0.1: 72, 0.2: 73, 0.35: 72}),
        swept("delta", {0.1: 60, 0.2: 73, 0.35: 74}),
        [True, False],
    ),
    "15": (
        swept("alpha", {0: 60, 1: 70, 2: 71, 3: 73, 6: 72}, *ALPHA_ZERO),
        swept("alpha", {0: 74, 1: 75, 2: 74, 3: 73, 6: 68}, *ALPHA_ZERO),
        [True, True, True, False],
    ),
    "16": (
        spread({0.2: (73, 0.3, 0.5), 0.3: (70, 0.28, 0.5), 0.45: (66, 0.2, 0.5)}),
        spread({0.2: (73, 0.3, 0.5), 0.3: (76, 0.32, 0.5), 0.45: (74, 0.4, 0.5)}),
        [True, True, True],
    ),
}


@pytest.mark.parametrize("notebook", TURNS)
def test_a_sentence_takes_the_side_of_the_numbers(notebook):
    agreeing, opposing, take_sides = TURNS[notebook]
    assert sides(said(notebook, agreeing)) == ["with" * takes for takes in take_sides]
    assert sides(said(notebook, opposing)) == ["against" * takes for takes in take_sides]


def test_the_best_level_and_the_effect_of_the_extremes_are_named():
    first = said("15", TURNS["15"][1])
    assert first[0].startswith("R@1 is highest at alpha = 1 and lowest at 6")
    assert first[0].endswith("75.0 against 68.0 R@1 (+7.0, n = 1).") and "alpha = 6 alone is -5.0" in first[2]
    assert "from 0.60 to 0.80" in said("16", TURNS["16"][1])[2]
    assert said("14", TURNS["14"][1])[1].startswith("R@1 is highest at delta = 0.35, not")


def test_a_sweep_without_its_ends_does_not_say_which_exponent_is_best():
    assert not any("highest" in sentence for sentence in said("15", swept("alpha", {1: 70, 3: 73, 6: 72})))


def test_where_two_seeds_differ_in_sign_no_side_is_taken():
    levels = {0.2: (70, 70), 0.45: (60, 72)}
    rows = [
        WHERE
        | {"paper": "pfml", "method": "PFML", "setting": f"delta_rep={level}"}
        | {"seed": seed, "metric": "R@1", "value": value}
        for level, values in levels.items()
        for seed, value in enumerate(values)
    ]
    sentence = stored.say(results.frame(rows), catalogue.find("16").findings)[1]
    assert "does not clearly change" in sentence and "-4.0, single seeds -10.0 and +2.0" in sentence


def aligned(pfml, cpml, unclipped, alone):
    cells = {
        "PFML": dict(zip(("W2", "intra_class_distance"), pfml)),
        "CPML": dict(zip(("W2", "intra_class_distance"), cpml)),
        "PFML;gradients=unclipped": {"W2": unclipped},
        "PFML;M=1": {"W2/delta": 1.0},
        "PFML;M=2": {"W2/delta": 1.0},
        "CPML;M=1": {"W2/delta": alone},
        "CPML;M=2": {"W2/delta": 1.5},
    }
    return said("12", cells)


def test_proxies_are_near_as_they_are_over_the_spread_in_the_plane_and_without_clipping():
    near, over, plane, free = aligned((0.2, 0.4), (0.3, 0.4), 1.3, 1.2)
    assert sides([near, plane]) == ["with", "with"] and "0.200 against 0.300 W2 (-0.100, n = 1) of CPML" in near
    assert "PFML has the least" in over and "-0.250" in over and "stay far" in free
    near, over, plane, free = aligned((0.2, 0.1), (0.19, 0.4), 0.21, 0.8)
    assert sides([near, plane]) == ["against", "against"] and "with M=1 sometimes nearer" in plane
    assert "CPML has the least: PFML 2.000, CPML 0.475" in over and "reach the images as well" in free


@pytest.mark.parametrize(
    "ratio, many, side, growth", [(1.04, 0.4, "with", "1.0, no steeper"), (1.3, 1.6, "against", "2.0, steeper")]
)
def test_costs_are_judged_by_their_ratios_and_by_how_they_grow(ratio, many, side, growth):
    metrics = ("seconds_ratio", "loss_seconds_ratio", "loss_seconds")
    values = {"M=5": (1.01, 5, 0.1), "M=30": (ratio, 60, 1.2), "C=1000;M=2": (1, 9, 0.1), "C=4000;M=2": (1, 20, many)}
    sentences = said("17", {f"PFML;{setting}": dict(zip(metrics, cell)) for setting, cell in values.items()})
    assert sides(sentences) == [side, side, ""]
    assert f"{ratio:.3f} times" in sentences[0] and "12 times" in sentences[1]
    assert f"power {growth} than" in sentences[2]
