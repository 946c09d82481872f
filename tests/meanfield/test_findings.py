"""What notebooks 30, 32 and 39 say of what no claim is about: numbers, and nothing where they leave nothing to say."""

from made_findings import said

CURVES = ("MFCont", "MFCWMS", "ProxyAnchor")


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


def test_the_magnet_is_told_in_numbers():
    closer, transition, fields, gradients = said("30", magnet(((0.83, 0.4), (0.74, 0.1)), 0.15, 0.97))
    assert "0.40 with 10 spins, 0.10 with 100 spins" in closer
    assert "100 spins have |M| = 0.74 at T = 0.2 J and 0.10 at 0.5 J" in transition
    assert "0.15 spreads of the class" in fields and "0.97 under MFCWMS" in gradients


def curves(slope: float) -> dict:
    """Evaluations of three losses, of which only the last one may have passed its best."""
    slopes = dict.fromkeys(CURVES, 0.0) | {"ProxyAnchor": slope}
    return {name: {"best_epoch": 5.0, "slope_after_best": slopes[name]} for name in CURVES}


def test_curves_that_still_rise_leave_open_what_converges_first():
    for notebook in ("32", "39"):
        (only,) = said(notebook, curves(0.0))
        assert "at the last evaluation, epoch 5.0" in only
        assert said(notebook, curves(-0.5)) == []


def test_the_alpha_of_table_14_stands_beside_the_default():
    (only,) = said("39", {"MFCWMS": {"MAP@R": 29.0}, "MFCWMS;alpha=20": {"MAP@R": 31.0}})
    assert "alpha = 20" in only and "31.0 against 29.0 MAP@R" in only
