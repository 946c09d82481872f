"""How far long work is, for whoever reads a log: a line every half minute, none for what is done sooner."""

import sys
import time
from collections.abc import Callable

EVERY = 30.0  # seconds between two lines


def reporter(what: str, total: int, done: int = 0) -> Callable[[int], None]:
    """A function to be called with how many of `total` are done now; it writes lines such as
    "12 of 40 runs trained, about 25 min left" to stderr, at most one in EVERY seconds. done: by an earlier process."""
    first, started = done, time.monotonic()
    last = started

    def report(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < EVERY:
            return
        last = now
        left = "time left not known yet"
        if done > first:
            left = f"about {duration((now - started) * (total - done) / (done - first))} left"
        print(f"{done} of {total} {what}, {left}", file=sys.stderr, flush=True)

    return report


def duration(seconds: float) -> str:
    """A time to be read: "40 s", "25 min", "3.5 h", "2.1 days"."""
    for unit, length, digits in (("days", 86_400, 1), ("h", 3600, 1), ("min", 60, 0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.{digits}f} {unit}"
    return f"{seconds:.0f} s"
