"""The only module that reads a clock, and the only one that sleeps."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from typing import Protocol


def now() -> float:
    """Seconds on a clock that never jumps and that all processes of one machine share."""
    return time.monotonic()


def wall() -> float:
    """Seconds since 1970, for people and files."""
    return time.time()


class Clock(Protocol):
    """Time as a shell sees it; tests bring one of their own."""

    def now(self) -> float: ...

    def wall(self) -> float: ...

    async def rest(self, seconds: float) -> None:
        """Let the others of this loop work meanwhile."""


class SystemClock:
    """The time of this machine."""

    def now(self) -> float:
        return now()

    def wall(self) -> float:
        return wall()

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM = SystemClock()


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
