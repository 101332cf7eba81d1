"""The only module that reads a clock, and the only one that sleeps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator


def now() -> float:
    """Seconds on a clock that never jumps and that all processes of one machine share."""
    return time.monotonic()


def wall() -> float:
    """Seconds since 1970, for people and files."""
    return time.time()


def sleep(seconds: float) -> None:
    """Let this thread rest; nothing wakes it. Whoever waits for somebody waits for a condition or a queue."""
    time.sleep(seconds)


def polls(every: float, within: float = math.inf) -> Iterator[None]:
    """Now, then every so many seconds, and once more when `within` seconds are over: times to look again."""
    deadline = now() + within
    yield
    while (left := deadline - now()) > 0:
        sleep(min(every, left))
        yield
