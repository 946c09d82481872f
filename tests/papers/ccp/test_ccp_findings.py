"""Notebooks 40 to 48: every sentence about a table turns when the table's numbers turn."""

import made_findings
import pytest
from made_findings import sides

LOSSES = ("C1", "C2", "MS", "Triplet-all")
OURS, SINGLE = "C2-CCP-L", "C2-Proxy"


def said(notebook: str, cells: dict[str, dict[str, float]]) -> list[str]:
    """The findings about a table with an untrained network far below, if it has none."""
    return made_findings.said(notebook, {"untrained": {"MAP@R": 5.0}} | cells)


def scores(**by_cell) -> dict[str, dict[str, float]]:
    return {cell: {"MAP@R": value} for cell, value in by_cell.items()}


def space(up: float, radii: tuple[float, float]) -> dict[str, dict[str, float]]:
    """Of notebook 40: CCP's scores and spread above the single problem's by `up`, radii after one and two problems."""
    found = {OURS: {"MAP@R": 20 + up, "proxy_spread": 1 + up / 10}, SINGLE: {"MAP@R": 20, "proxy_spread": 1}}
    found |= {f"{OURS};problems={n}": {"covering_radius": radius} for n, radius in zip((1, 2), radii)}
    return found | {f"{OURS};anchors=samples": {"MAP@R": 20 + 2 * up}}


def unseen(up: float) -> dict[str, dict[str, float]]:
    lengths = ("average_covering_radius", "inter_class_distance")
    single = dict(zip(lengths, (0.5, 1.0)))
    ours = dict(zip(lengths, (0.5 - up / 10, 1 + up / 10)))
    return {OURS: {"MAP@R": 20 + up} | ours, SINGLE: {"MAP@R": 20} | single}


def bounds(share: float, twins: float, printed: float) -> dict[str, dict[str, float]]:
    found = {f"anchors;chosen={name}": {"gap/radius": share, "loss_gap": 0.1} for name in ("k-center", "random")}
    found["anchors;chosen=duplicates"] = {"gap/radius": share, "loss_gap": twins}
    constants = {"printed": printed, "rows and columns": 0.8}
    return found | {f"Lemma 1;constant={name}": {"Lipschitz/constant": value} for name, value in constants.items()}


def retrieved(up: float) -> dict[str, dict[str, float]]:
    found = {loss: {"MAP@R": 20.0} for loss in (*LOSSES, "C2-XBM-L")}
    found |= {f"{loss}-CCP-L": {"MAP@R": 20 + up} for loss in LOSSES}
    return found | {"methods;of=MAP@R": {"relative_spread": 5 + up}, "methods;of=P@1": {"relative_spread": 5}}


def alternated(up: float) -> dict[str, dict[str, float]]:
    found = {}
    for loss in ("C2", "MS"):
        found |= {loss: {"MAP@R": 20, "steps": 100}, f"{loss}-Proxy": {"MAP@R": 20}}
        found[f"{loss}-CCP-L"] = {"MAP@R": 20 + up, "steps": 100 + 20 * up}
    return found


def swept(name: str, levels: dict[float, float], method: str = OURS) -> dict[str, dict[str, float]]:
    return {f"{method};{name}={level:g}": {"MAP@R": value} for level, value in levels.items()}


def pooled(chosen: float, one: float) -> dict[str, dict[str, float]]:
    found = {f"{OURS};M=8;pool=12": chosen, f"{OURS};M=8;pool=8": 20, f"{OURS};M=1;pool=12": one}
    return scores(**found | {f"{OURS};M=1;pool=1": 20})


def costs(ratio: float) -> dict[str, dict[str, float]]:
    return {f"{OURS};C={count}": {"time_ratio": ratio, "step_ratio": ratio} for count in (100, 1000)}


@pytest.mark.parametrize(
    ("notebook", "cells", "expected"),
    [
        ("40", space(1, (0.5, 0.4)), ["with"] * 4),
        ("40", space(-1, (0.4, 0.5)), ["against"] * 4),
        ("41", retrieved(1), ["with"] * 4),
        ("41", retrieved(-1), ["against"] * 4),
        ("42", swept("projection", {0: 20, 2e-4: 21, 10: 19}), ["with", "with"]),
        ("42", swept("projection", {0: 21, 2e-4: 20, 10: 22}), ["against", "against"]),
        ("42", swept("M", {1: 20, 8: 21}) | swept("M", {1: 20, 8: 20}, SINGLE), ["with"]),
        ("42", swept("M", {1: 21, 8: 20}) | swept("M", {1: 20, 8: 20}, SINGLE), ["against"]),
        ("43", pooled(21, 20.2), ["with", "with"]),
        ("43", pooled(19, 22), ["against", "against"]),
        ("44", alternated(1), ["with", "with"]),
        ("44", alternated(-1), ["against", "against"]),
        ("45", swept("batch", {16: 20, 64: 20.5}) | swept("batch", {16: 20, 64: 23}, "C2"), ["with", "with"]),
        ("45", swept("batch", {16: 20, 64: 23}) | swept("batch", {16: 20, 64: 19}, "C2"), ["against", "against"]),
        ("46", costs(1.05), ["with"]),
        ("46", costs(1.5), ["against"]),
        ("48", unseen(1), ["with", "with"]),
        ("48", unseen(-1), ["against", "against"]),
        ("48", bounds(0.5, 0.2, 0.9), ["with", "with"]),
        ("48", bounds(1.5, 0.05, 2.0), ["against", "against"]),
        ("48", bounds(0.5, 0.05, 0.9), ["withagainst", "with"]),
    ],
)
def test_a_sentence_turns_with_its_numbers(notebook, cells, expected):
    assert sides(said(notebook, cells)) == expected


def test_the_conventional_protocol_is_about_recall():
    for up, side in ((1, "with"), (-1, "against")):
        cells = {name: {"R@1": 60.0, "MAP@R": 20.0} for name in ("ProxyAnchor", "MS")}
        cells |= {name: {"R@1": 60 + up} for name in (OURS, "MS-CCP-L")}
        assert sides(said("47", cells)) == [side, side]


@pytest.mark.parametrize(
    ("notebook", "cells"),
    [("41", retrieved(1)), ("43", pooled(21, 20.2)), ("44", alternated(1)), ("48", unseen(1))],
)
def test_nothing_is_said_of_losses_that_have_learned_nothing(notebook, cells):
    (only,) = said(notebook, {"untrained": {"MAP@R": 45.0}} | cells)
    assert only.startswith("Nothing was learned here")


def test_where_no_second_problem_was_better_nothing_is_said_of_alternation():
    (sentence,) = said("42", swept("projection", {0: 20, 2e-4: 20, 10: 20}))
    assert "No second problem improved" in sentence
    assert [each.startswith("No second problem") for each in said("43", pooled(20, 20))] == [True]
    assert said("40", space(0, (0.4, 0.5)))[0].startswith("No second problem")


def test_the_part_of_ccp_that_is_missed_most_is_named():
    left_out = {"penalty=none": 18, "picks=random": 21, "start=best": 20.5}
    found = {f"{OURS};{setting}": value for setting, value in left_out.items()} | {OURS: 20, SINGLE: 19}
    assert "the penalty matters most: without the penalty -2.0" in said("44", scores(**found))[-1]
    found[f"{OURS};penalty=none"] = 20.5
    assert "No part of CCP that was left out was missed" in said("44", scores(**found))[-1]


def test_a_memory_that_had_not_begun_is_no_rival():
    without = retrieved(1) | {"C2-XBM-S": {"MAP@R": 20.0}}
    assert sides(said("41", without)) == ["with", "with", "", "with"]
    assert "before its memory begins" in said("41", without)[2]
    assert sides(said("41", without | {"C2-XBM-S": {"MAP@R": 19.0}})) == ["with"] * 4


def test_runs_that_the_budget_ended_leave_the_steps_open():
    assert "stays open" in said("44", alternated(1) | {name: {"steps": 100} for name in ("C2-CCP-L", "MS-CCP-L")})[-1]


def test_methods_that_hardly_learned_are_named_before_they_are_compared():
    first = said("41", retrieved(1) | {"C1-CCP-L": {"MAP@R": 9.0}})[0]  # untrained 5
    assert first.startswith("Within 5 points of the untrained network's 5.0") and "C1-CCP-L (9.0)" in first
    assert "C2-CCP-L" not in first and not said("41", retrieved(1))[0].startswith("Within")
