"""The fewest faults that still break a promise: delta debugging over the list of faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(faults: Sequence[T], fails: Callable[[Sequence[T]], bool], tries: int = 40) -> list[T]:
    """A part of the faults that fails and is small; `fails` is asked at most `tries` times.

    Real jobs do not fail every time, so a part that passes once is given up although it might fail later:
    what is left is never wrong, only longer than it could be.
    """
    left, pieces = list(faults), 2
    while len(left) > 1 and tries > 0:
        size = max(1, -(-len(left) // pieces))
        cuts = [(at, min(at + size, len(left))) for at in range(0, len(left), size)]
        parts = [left[a:b] for a, b in cuts] + [left[:a] + left[b:] for a, b in cuts]
        for part in parts:
            if not part or len(part) == len(left):
                continue
            if tries == 0:
                return left
            tries -= 1
            if fails(part):
                left, pieces = list(part), 2
                break
        else:
            if size == 1:
                break
            pieces = min(len(left), pieces * 2)
    return left
