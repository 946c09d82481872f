"""Seconds and bytes of calls whose cost is known, and limits that are kept or missed."""

import time

import pandas as pd
import pytest
import torch

from experiments import timing

MEBI = 1 << 20


def busy():
    started = time.process_time()
    while time.process_time() - started < 0.1:
        pass


def test_one_thread_counts_processor_time_and_several_elapsed_time():
    with timing.threads(1):
        assert timing.seconds(lambda: time.sleep(0.2), "cpu") < 0.1
        assert timing.seconds(busy, "cpu") == pytest.approx(0.1, abs=0.05)
    with timing.threads(2):
        assert timing.seconds(lambda: time.sleep(0.2), "cpu") > 0.19


def test_the_number_of_threads_is_restored_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), timing.threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise RuntimeError
    assert torch.get_num_threads() == before
    with timing.threads(0):
        assert torch.get_num_threads() == before


def test_calls_take_turns_and_the_fastest_of_a_repetition_counts(monkeypatch):
    made, clock = [], iter([5.0, 9.0, 3.0, 8.0, 4.0, 6.0, 7.0, 2.0])

    def seconds(call, device):
        call()
        return next(clock)

    monkeypatch.setattr(timing, "seconds", seconds)
    times = timing.in_turn({name: lambda name=name: made.append(name) for name in "ab"}, 2, "cpu", rounds=2)
    assert made == ["a", "b"] * 5  # once to warm up, then two repetitions of two rounds
    assert times.to_dict("list") == {"a": [3.0, 4.0], "b": [8.0, 2.0]}


def test_the_networks_passes_count_for_the_batch_and_its_update_once(monkeypatch):
    seconds = {("network", "passes"): 2.0, ("network", "update"): 1.0, ("PFML", "M=5"): 7.0}
    monkeypatch.setattr(timing, "network_step", lambda network, images: (None, None))
    monkeypatch.setattr(
        timing, "in_turn", lambda calls, *_, **__: pd.DataFrame({call: [seconds[call]] for call in calls})
    )
    costs = timing.steps({("PFML", "M=5"): work}, None, torch.zeros(4, 3), batch_size=8, repetitions=1)
    assert costs.loc["PFML", "M=5", 0].to_dict() == {"seconds": 7.0, "network_seconds": 8 / 4 * 2.0 + 1.0}


def work():
    first = torch.ones(16 * MEBI)
    del first
    second = torch.ones(8 * MEBI)
    return second.double()


def test_peak_bytes_is_what_is_alive_at_once():
    assert timing.peak_bytes(work, "cpu") == (8 * 4 + 8 * 8) * MEBI
