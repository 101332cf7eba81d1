"""A ring of one (`--distribution_strategy=Local`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edl_allreduce.worker.ring.base import Arrays, StandingRing


class SoloRing(StandingRing):
    """This process alone, without Horovod."""

    rank = 0
    size = 1

    def sum(self, tensors: Sequence[Any], group: int = 0, *, halved: bool = False) -> list[Any]:
        return list(tensors)

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        return [list(values)]

    def share_state(self, arrays: Arrays, root: int, takers: Sequence[int]) -> Arrays:
        return arrays
