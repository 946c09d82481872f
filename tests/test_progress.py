"""A line every half minute says how far long work is; short work stays silent."""

import pytest

from experiments import progress


@pytest.fixture
def clock(monkeypatch):
    times = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: times[0])
    return times


def test_a_line_every_half_minute(clock, capsys):
    report = progress.reporter("runs trained", 40)
    for second in range(0, 100, 2):
        clock[0] = 1000.0 + second
        report(second // 10)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "3 of 40 runs trained, about 6 min left",
        "6 of 40 runs trained, about 6 min left",
        "9 of 40 runs trained, about 5 min left",
    ]


def test_what_an_earlier_process_did_is_not_taken_for_speed(clock, capsys):
    report = progress.reporter("steps", 1000, done=900)
    for second in (10, 40, 80):
        clock[0] = 1000.0 + second
        report(900 + (second > 40) * 50)
    assert capsys.readouterr().err.splitlines() == [
        "900 of 1000 steps, time left not known yet",
        "950 of 1000 steps, about 80 s left",
    ]


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0 s"), (89, "89 s"), (91, "2 min"), (5400, "1.5 h"), (86_400, "24.0 h"), (200_000, "2.3 days")],
)
def test_times_are_written_to_be_read(seconds, text):
    assert progress.duration(seconds) == text
