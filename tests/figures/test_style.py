"""What all figures share."""

from experiments.figures import style


def test_levels_too_near_one_another_have_one_number():
    with style.panels(1, 3.0) as (_, (axis,)):
        axis.set_xlim(0, 1)
        style.ticks_at(axis, [0.05, 0.1, 0.2, 0.8])
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0.05", "", "0.2", "0.8"]
    assert len(axis.get_xticks()) == 4
