"""Notebooks 30 to 39: every sentence about a table turns when the table's numbers turn."""

import pytest
from made_findings import said, sides

from dmlrepro.papers.meanfield.claims import MATCHED, SAME_RATE

BOTH = ("MFCont", "MFCWMS")


def scores(**values: float) -> dict:
    return {name: {"MAP@R": value} for name, value in ({"untrained": 5.0} | values).items()}


def magnet(order: tuple, offset: float, cosine: float) -> dict:
    """Order parameters of 10 and of 100 spins at 0.2 J and 0.5 J, where theory has 0.73 and 0."""
    cells = {f"mean field;T={t}": {"order_parameter": value} for t, value in ((0.2, 0.73), (0.5, 0.0))}
    for spins, values in zip((10, 100), order):
        cells |= {f"Monte Carlo;N={spins};T={t}": {"order_parameter": v} for t, v in zip((0.2, 0.5), values)}
    at = "spread=0.2;samples=20"
    for centers in ("apart", "crowded"):
        values = {"field_offset": offset, "gradient_cosine": cosine}
        cells |= {f"MFCont;centers={centers};{at}": values, f"MFCWMS;alpha=0.01;centers={centers};{at}": values}
    return cells


def conventional(scored: dict, epochs: dict, slopes: dict, exponents: dict) -> dict:
    cells = scores(**scored)
    for metric, values in {"best_epoch": epochs, "slope_after_best": slopes, "exponent": exponents}.items():
        for name, value in values.items():
            cells.setdefault(name, {})[metric] = value
    return cells | {f"ProxyAnchor;{MATCHED}": {"best_epoch": 5.0}}


def three(mfcont: float, mfcwms: float, proxy_anchor: float) -> dict:
    return {"MFCont": mfcont, "MFCWMS": mfcwms, "ProxyAnchor": proxy_anchor}


def four(cont: float, cwms: float, mean_fields: float) -> dict:
    return {"Cont": cont, "CWMS": cwms} | dict.fromkeys(BOTH, mean_fields)


def swept(name: str, levels: dict[float, float], methods=BOTH, metric: str = "MAP@R") -> dict:
    return {f"{method};{name}={level:g}": {metric: value} for method in methods for level, value in levels.items()}


def merged(*parts: dict) -> dict:
    cells: dict = {}
    for part in parts:
        for cell, values in part.items():
            cells[cell] = cells.get(cell, {}) | values
    return cells


def grid(corner: float, betas: dict[float, float]) -> dict:
    cells = {f"MFCWMS;beta={b};delta={d}": {"MAP@R": 30.0} for b in (50, 80) for d in (0.6, 0.8, 1)}
    best = swept("delta", betas, ["MFCWMS"], "best_beta")
    return scores() | cells | best | {"MFCWMS;beta=50;delta=1": {"MAP@R": corner}}


def regularized(at_100: float, after: float, offset: float) -> dict:
    cells = scores(ProxyAnchor=30) | {"ProxyAnchor": {"MAP@R": 30, "field_offset": 0.9}}
    for name in BOTH:
        cells[f"{name};lambda=0"] = {"MAP@R": 30, "field_offset": offset}
        cells[f"{name};lambda=100"] = {"MAP@R": at_100}
        cells |= {f"{name};lambda=0;epochs={n}": {"regularizer": value} for n, value in ((0, 0.1), (2, after))}
    return cells


def by_alpha(levels: dict[float, float], epochs: dict[float, float]) -> dict:
    return merged(scores(), swept("alpha", levels, ["MFCWMS"]), swept("alpha", epochs, ["MFCWMS"], metric="best_epoch"))


def nca(ours: float, alike: float) -> dict:
    cells = {"MFNCA": ours, "ProxyNCA++": 30.0, f"ProxyNCA++;{SAME_RATE}": alike}
    return scores() | {cell: dict.fromkeys(("MAP@R", "P@1", "RP"), value) for cell, value in cells.items()}


def vit(sharp: float, epoch: float) -> dict:
    curve = {"best_epoch": 3.0, "slope_after_best": -1.0}
    return scores() | {
        "ProxyAnchor": {"MAP@R": 30.0} | curve,
        "MFCWMS": {"MAP@R": 29.0} | curve,
        "MFCWMS;alpha=20": {"MAP@R": sharp} | curve | {"best_epoch": epoch},
    }


TURNS = {  # notebook: (a table that is with the paper, one that is against it, the sentences that take sides)
    "30": (
        magnet(((0.8, 0.4), (0.74, 0.1)), 0.1, 0.99),
        magnet(((0.74, 0.1), (0.2, 0.9)), 2.0, 0.3),
        [True, True, True, True],
    ),
    "31": (
        scores(MFCont=40, MFCWMS=41, Cont=35, CWMS=36, ProxyAnchor=38),
        scores(MFCont=30, MFCWMS=31, Cont=35, CWMS=36, ProxyAnchor=38),
        [True, True, False],
    ),
    "32": (
        conventional(three(40, 41, 38) | {"Cont": 30, "CWMS": 30}, three(4, 4, 9), three(-2, -2, -1), four(2, 1.9, 1)),
        conventional(three(30, 31, 38) | {"Cont": 35, "CWMS": 35}, three(9, 9, 4), three(-1, -1, -2), four(1, 1, 2)),
        [True] * 5,
    ),
    "33": (
        merged(
            scores(),
            swept("dim", {64: 30, 512: 31, 1024: 32}),
            swept("dim", {64: 20, 512: 31, 1024: 32}, ["ProxyAnchor"]),
        ),
        merged(
            scores(),
            swept("dim", {64: 30, 512: 29, 1024: 28}),
            swept("dim", {64: 30, 512: 20, 1024: 20}, ["ProxyAnchor"]),
        ),
        [True, True],
    ),
    "34": (grid(30.5, {0.6: 50, 0.8: 80}), grid(27, {0.6: 80, 0.8: 50}), [True, True]),
    "35": (
        scores() | swept("batch", {30: 30, 180: 32}, ["MFCWMS", "ProxyAnchor"]),
        scores() | swept("batch", {30: 32, 180: 30}, ["MFCWMS", "ProxyAnchor"]),
        [True, False],
    ),
    "36": (
        by_alpha({0.01: 30, 20: 31, 40: 29}, {0.01: 3, 20: 6, 40: 9}),
        by_alpha({0.01: 30, 20: 29, 40: 31}, {0.01: 9, 20: 6, 40: 3}),
        [True, True],
    ),
    "37": (regularized(30.2, 0.0, 0.2), regularized(25, 3.0, 5.0), [True, True, True]),
    "38": (nca(31, 30), nca(29, 30), [True, True]),
    "39": (vit(31, 5), vit(28, 2), [True, False, True]),
}


@pytest.mark.parametrize("notebook", TURNS)
def test_a_sentence_takes_the_side_of_the_numbers(notebook):
    agreeing, opposing, take_sides = TURNS[notebook]
    assert sides(said(notebook, agreeing)) == ["with" * takes for takes in take_sides]
    assert sides(said(notebook, opposing)) == ["against" * takes for takes in take_sides]


def test_the_single_models_of_folds_are_spoken_of():
    assert len(said("31", TURNS["31"][0], "MLRC separated")) == 3
    assert said("31", TURNS["31"][0], "MLRC concatenated") == []


@pytest.mark.parametrize("notebook", ["31", "33", "34", "35", "36", "37", "38"])
def test_nothing_is_said_of_losses_that_have_learned_nothing(notebook):
    cells = TURNS[notebook][0] | {"untrained": dict.fromkeys(("MAP@R", "P@1", "RP"), 45.0)}
    (only,) = said(notebook, cells)
    assert only.startswith("Nothing was learned here") and "45.0 of the untrained network" in only


def test_curves_that_still_rise_leave_open_what_converges_first():
    flat = three(0, 0, 0)
    cells = conventional(three(40, 41, 38) | {"Cont": 30, "CWMS": 30}, three(5, 5, 5), flat, four(2, 1.9, 1))
    assert "open: all are at their best at the last evaluation, epoch 5.0" in said("32", cells)[2]
    assert len(said("32", cells)) == 4
