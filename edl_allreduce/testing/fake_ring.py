"""A ring of several ranks in one process: each rank is a thread, arrays are NumPy's.

    meeting = Meeting()
    rings = [meeting.ring() for _ in range(3)]
    rings[1].breaks = [Break("sum", call=4)]

A ring breaks for all its members, as a real one does; whoever has the result of an operation keeps it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from edl_allreduce.core.protocol import Plan
from edl_allreduce.errors import RingBroken
from edl_allreduce.worker.ring.base import Arrays

PATIENCE_SECONDS = 10.0
"""How long a rank waits for the others before the test has failed: no test needs so long."""

BreakPoint = Literal["join", "gather", "share", "sum", "summed"]
"""Before this operation; `summed` is after a sum of which all others have the result."""


@dataclass(frozen=True)
class Break:
    """The ring breaks when this rank calls the operation for the `call`-th time, counted from 0 over all its
    rings."""

    point: BreakPoint
    call: int


class Meeting:
    """Where the ranks of all rings of one test meet."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._brought: dict[tuple[int, int], dict[int, Any]] = {}
        self._broken: dict[int, str] = {}

    def ring(self) -> FakeRing:
        """The end of one worker, for all its rings."""
        return FakeRing(self)

    def break_ring(self, generation: int, why: str) -> None:
        """From now on every operation of this ring fails that is not complete."""
        with self._changed:
            self._broken.setdefault(generation, why)
            self._changed.notify_all()

    def exchange(self, generation: int, number: int, rank: int, size: int, value: Any) -> list[Any]:
        """What all ranks brought to this operation, in rank order."""
        with self._changed:
            brought = self._brought.setdefault((generation, number), {})
            if generation not in self._broken:
                brought[rank] = value
                self._changed.notify_all()
            complete = self._changed.wait_for(
                lambda: len(brought) == size or generation in self._broken, PATIENCE_SECONDS
            )
            if len(brought) == size:
                return [brought[other] for other in range(size)]
            if not complete:
                missing = sorted(set(range(size)) - set(brought))
                raise AssertionError(f"ring {generation}, operation {number}: ranks {missing} never came")
            raise RingBroken(self._broken[generation])


class FakeRing:
    """See `worker.ring.base.Ring`."""

    def __init__(self, meeting: Meeting) -> None:
        self.rank = 0
        self.size = 1
        self.generation = 0
        self.breaks: list[Break] = []
        self.prepared: list[int] = []
        """Generations that were prepared."""
        self.shared = 0
        """How often a state was sent in the presence of this rank."""
        self._meeting = meeting
        self._number = 0
        self._calls: dict[str, int] = {}

    def prepare(self, plan: Plan, uid: str, then: Callable[[], None]) -> None:
        self.prepared.append(plan.generation)
        then()

    def join(self, plan: Plan, uid: str) -> None:
        rank = plan.rank_of(uid)
        assert rank is not None, f"{uid} has no seat in {plan}"
        self.rank, self.size, self.generation, self._number = rank, plan.size, plan.generation, 0
        self._reach("join")
        self._exchange(None)

    def leave(self) -> None:
        if self.generation:
            self._meeting.break_ring(self.generation, f"rank {self.rank} left")
        self.generation = 0

    def abort(self, generation: int) -> None:
        self._meeting.break_ring(generation, "aborted")

    def close(self) -> None: ...

    def sum(self, tensors: Sequence[Any], group: int = 0, *, halved: bool = False) -> list[Any]:
        self._reach("sum")
        rows = self._exchange([np.array(tensor) for tensor in tensors])
        self._reach("summed")
        # NumPy alone would widen small whole numbers, a ring does not.
        return [np.sum(column, axis=0, dtype=column[0].dtype) for column in zip(*rows, strict=True)]

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        self._reach("gather")
        return [list(row) for row in self._exchange([int(value) for value in values])]

    def share_state(self, arrays: Arrays, root: int, takers: Sequence[int]) -> Arrays:
        self._reach("share")
        self.shared += 1
        rows = self._exchange([array.copy() for array in arrays])
        return [array.copy() for array in rows[root]] if self.rank in takers else arrays

    def _exchange(self, value: Any) -> list[Any]:
        number, self._number = self._number, self._number + 1
        return self._meeting.exchange(self.generation, number, self.rank, self.size, value)

    def _reach(self, point: BreakPoint) -> None:
        call = self._calls.get(point, 0)
        self._calls[point] = call + 1
        if Break(point, call) in self.breaks:
            why = f"rank {self.rank} broke the ring at {point} {call}"
            self._meeting.break_ring(self.generation, why)
            raise RingBroken(why)
