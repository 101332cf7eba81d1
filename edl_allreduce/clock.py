"""The only module that reads a clock."""

from __future__ import annotations

import time


def now() -> float:
    """Seconds on a clock that never jumps and that all processes of one machine share."""
    return time.monotonic()


def wall() -> float:
    """Seconds since 1970, for people and files."""
    return time.time()
