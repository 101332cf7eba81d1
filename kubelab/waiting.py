"""The only place that sleeps and reads a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kubelab.errors import NotInTime

T = TypeVar("T")


def eventually(probe: Callable[[], T | None], what: str, timeout: float = 60.0, interval: float = 0.1) -> T:
    """Ask `probe` until its answer is truthy and return that answer.

    After `timeout` seconds NotInTime is raised with `what` was expected and the last answer seen.
    """
    deadline = time.monotonic() + timeout
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise NotInTime(f"expected within {timeout:g} s: {what}; last answer: {answer!r}")
        time.sleep(interval)


def stopwatch() -> Callable[[], float]:
    """A function that tells the seconds since this call."""
    begin = time.monotonic()
    return lambda: time.monotonic() - begin


def pause(seconds: float) -> None:
    """Do nothing for a while; for delays that are wanted, not for waiting on a state."""
    time.sleep(seconds)
