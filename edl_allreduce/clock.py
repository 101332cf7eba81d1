"""The only module that reads a clock or sleeps."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time as shells see it. Tests bring their own."""

    def now(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    """Monotonic time for deadlines, wall time for people."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


def now() -> float:
    """Seconds on a clock that never jumps and that all processes of one machine share."""
    return time.monotonic()


def wall() -> float:
    """Seconds since 1970, for people and files."""
    return time.time()
