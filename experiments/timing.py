"""How long calls take and how much memory they need: what the cost notebooks and the benchmarks measure with.

On a CPU with one thread seconds are of processor time, which other programs disturb least, else of the clock once the
device has finished. What is compared takes turns in one process, so that whatever else the machine does falls on all
alike; only such ratios carry over to another machine. `device` is "cpu" or "cuda", where the calls compute.
"""

import contextlib
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """So many CPU threads within the block; None or 0: as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds(call: Callable[[], object], device: str) -> float:
    """Seconds of one call; processor time counts every thread of the process."""
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    _finish(device)
    started = clock()
    call()
    _finish(device)
    return clock() - started


def in_turn(
    calls: Mapping[Key, Callable[[], object]], repetitions: int, device: str, *, rounds: int = 1
) -> dict[Key, list[float]]:
    """{name: seconds of a call in each repetition}, all calls in turn, after a round that warms up. A repetition has
    so many rounds and keeps the fastest of each call: a disturbance only ever adds."""
    for call in calls.values():
        call()
    taken: dict[Key, list[float]] = {name: [] for name in calls}
    for _ in range(repetitions):
        turns = [{name: seconds(call, device) for name, call in calls.items()} for _ in range(rounds)]
        for name, values in taken.items():
            values.append(min(turn[name] for turn in turns))
    return taken


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """The most memory that tensors made by a call take at one time, beside those that were there before."""
    if device == "cuda":
        return _peak_on_gpu(call)
    with _silent_stderr():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            call()
        events = profile.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak


def _peak_on_gpu(call: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """The profiler's C++ library writes its times and process number there."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)
