"""Notebooks 10 to 17: the sentences on what no claim says have the numbers of the table, and take no side."""

from made_findings import said

from experiments.pfml.ablations import LITERAL

N2 = "label_noise=0.2"


def of(metric: str, **values: float) -> dict[str, dict[str, float]]:
    return {cell: {metric: value} for cell, value in values.items()}


def test_readings_of_the_field_stand_beside_the_field():
    cells = of("R@1", PFML=60, Triplet=70) | {
        "PFML;delta_rep=0.3": {"R@1": 65},
        "PFML;proxies=as drawn;gradients=unclipped": {"R@1": 40},
    }
    far, printed = said("10", cells)
    assert "65.0 against 60.0 R@1 (+5.0, n = 1)" in far
    assert "40.0 against 60.0 R@1 (-20.0, n = 1)" in printed


def test_proxies_as_drawn_are_named_where_the_table_has_no_others():
    cells = {"PFML;proxies=as drawn": {"R@1": 50}, "ProxyAnchor": {"R@1": 60}}
    assert said("10", cells)[0].endswith("PFML has 50.0 against 60.0 R@1 (-10.0, n = 1) of ProxyAnchor.")
    assert said("10", cells | {"PFML": {"R@1": 55}}) == []


def test_the_share_of_the_gradient_is_said_of_every_loss_that_is_trained():
    shares = {f"PFML;{N2}": 10, f"ProxyAnchor;{N2}": 25}
    cells = {cell: {"R@1": 50, "gradient_share": share} for cell, share in shares.items()}
    (sentence,) = said("11", cells | {f"{name};{N2}": {"R@1": 20} for name in ("untrained", "random head")})
    assert "10.0 % under PFML, 25.0 % under ProxyAnchor;" in sentence


def test_clipping_is_compared_in_whichever_way_pfml_was_run():
    for ours in ("PFML", "PFML;proxies=as drawn"):
        (sentence,) = said("12", {ours: {"W2": 0.2}, f"{ours};gradients=unclipped": {"W2": 1.3}})
        assert "1.300 against 0.200 W2 (+1.100, n = 1); random directions" in sentence


def test_alpha_zero_as_printed_stands_beside_the_network_that_training_begins_with():
    (sentence,) = said("15", {f"PFML;{LITERAL}": {"R@1": 20}, "random head": {"R@1": 21}})
    assert "20.0 against 21.0 R@1 (-1.0, n = 1)" in sentence


def test_distances_within_a_class_are_those_of_the_least_and_the_largest_radius():
    levels = {0.2: (0.3, 0.5), 0.3: (0.32, 0.5), 0.45: (0.4, 0.8)}
    names = ("intra_class_distance", "class_mean_distance")
    (sentence,) = said("16", {f"PFML;delta_rep={level}": dict(zip(names, both)) for level, both in levels.items()})
    assert "0.300 at delta_rep = 0.2 and 0.400 at 0.45 (+0.100, n = 1)" in sentence
    assert sentence.endswith("0.60 and 0.50.")
