"""Work that is pulled: pieces of a data set, each given out until somebody finished it.

Training needs no queue, since its order is arithmetic; evaluation and prediction jobs do, since their workers
go at their own pace. A piece that is given out again gets the next attempt number, and only the newest
attempt counts: whatever a worker reports that was given up is refused by number, not by timing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Task:
    """Records [start, stop), given out for the `attempt`-th time."""

    number: int
    attempt: int
    start: int
    stop: int


@dataclass(frozen=True)
class Lease:
    """Who has a task."""

    task: Task
    worker: str


@dataclass(frozen=True)
class TaskQueue:
    """Every task is in exactly one place: still to do, being done, or done. Methods give the next queue."""

    records: int
    size: int
    given: int = 0
    """Tasks from here on were never given out."""
    returned: tuple[Task, ...] = ()
    leases: Mapping[int, Lease] = field(default_factory=dict)
    done: int = 0

    def __post_init__(self) -> None:
        if self.records < 1 or self.size < 1:
            expected = "expected at least one record and tasks of at least one"
            raise ValueError(f"{expected}, got {self.records}, {self.size}")

    @property
    def total(self) -> int:
        return -(-self.records // self.size)

    @property
    def finished(self) -> bool:
        return self.done == self.total

    def doing(self, worker: str) -> list[Task]:
        """What this worker has."""
        return [lease.task for lease in self.leases.values() if lease.worker == worker]

    def take(self, worker: str) -> tuple[TaskQueue, Task | None]:
        """The next task for this worker; None when all are done or being done."""
        if self.returned:
            task = self.returned[-1]
            task = replace(task, attempt=task.attempt + 1)
            queue = replace(self, returned=self.returned[:-1])
        elif self.given < self.total:
            start = self.given * self.size
            task = Task(self.given, 1, start, min(start + self.size, self.records))
            queue = replace(self, given=self.given + 1)
        else:
            return self, None
        return replace(queue, leases={**self.leases, task.number: Lease(task, worker)}), task

    def complete(self, worker: str, number: int, attempt: int) -> TaskQueue | None:
        """None unless this result counts. It does once: from the worker that holds the newest attempt."""
        lease = self.leases.get(number)
        if lease is None or lease.worker != worker or lease.task.attempt != attempt:
            return None
        return replace(self._without([number]), done=self.done + 1)

    def reclaim(self, worker: str, held: Collection[tuple[int, int]]) -> tuple[TaskQueue, int]:
        """A worker is back and says which numbers and attempts it has: what it does not have others do, and
        what was not given out again it keeps. The second is the number of tasks that it does not have."""
        kept = [t for t in (*self.doing(worker), *self.returned) if (t.number, t.attempt) in held]
        queue, _ = self.give_back(worker)
        returned = tuple(task for task in queue.returned if task not in kept)
        leases = {**queue.leases, **{task.number: Lease(task, worker) for task in kept}}
        lost = sum(task not in kept for task in self.doing(worker))
        return replace(queue, returned=returned, leases=leases), lost

    def give_back(self, worker: str) -> tuple[TaskQueue, int]:
        """A worker is gone: others do what it had. The second is the number of tasks."""
        lost = self.doing(worker)
        queue = self._without([task.number for task in lost])
        return replace(queue, returned=(*self.returned, *lost)), len(lost)

    def _without(self, numbers: list[int]) -> TaskQueue:
        return replace(self, leases={n: lease for n, lease in self.leases.items() if n not in numbers})

    def validate(self) -> None:
        """What must hold after every call."""
        assert self.given == len(self.returned) + len(self.leases) + self.done, "no task is lost or twice"
        assert 0 <= self.done <= self.total
        numbers = [t.number for t in self.returned] + list(self.leases)
        assert len(set(numbers)) == len(numbers) and all(n < self.given for n in numbers)
