"""Which gradients travel together: sums begin while the backward pass still computes the others."""

from __future__ import annotations

from collections.abc import Sequence

MEGABYTE = 2**20
SMALL_MODEL = 4 * MEGABYTE
"""Up to here one sum is quicker than several that begin earlier."""
AUTOMATIC = 4 * MEGABYTE


def buckets(sizes: Sequence[int], megabytes: float) -> list[list[int]]:
    """The places of gradients that are summed together, bucket by bucket, in the order in which they begin.

    `sizes`: bytes of each gradient, in the order of the forward pass, so that the last is ready first;
    `megabytes`: how much a bucket holds at least before it goes, 0 for a choice by the size of the model. It
    follows from the model and a flag alone: all ranks must come to the same buckets.
    """
    limit = megabytes * MEGABYTE
    if not limit:
        limit = AUTOMATIC if sum(sizes) > SMALL_MODEL else float("inf")
    made: list[list[int]] = [[]]
    for place in reversed(range(len(sizes))):
        if made[-1] and sum(sizes[p] for p in made[-1]) >= limit:
            made.append([])
        made[-1].append(place)
    return made
