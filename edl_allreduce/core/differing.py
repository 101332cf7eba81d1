"""Whose weights differ, when ranks that must hold the same ones do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def odd_ranks(values: Sequence[int]) -> tuple[int, ...]:
    """Those that hold something else than more than half of all; none where no such majority is."""
    common, count = Counter(values).most_common(1)[0]
    if 2 * count <= len(values):
        return ()
    return tuple(rank for rank, value in enumerate(values) if value != common)


def words(step: int) -> str:
    """What is wrong with one of them, after its name."""
    return (
        f"holds other weights than the rest after {step} steps: its memory or processor may be faulty, or "
        "its software differs"
    )


def nobody_knows(workers: Sequence[int], step: int) -> str:
    """When there is no majority."""
    named = ", ".join(map(str, workers))
    return (
        f"workers {named} hold different weights after {step} steps, and no majority says which are right: "
        "the memory or processor of one may be faulty. Nothing was kept of that; start the job again to go "
        "on from its last checkpoint, with three workers or more to have the faulty one found"
    )
