"""Work that is pulled: pieces of a data set, each given out until somebody finished it.

Training needs no queue, since its order is arithmetic; evaluation and prediction jobs do, since their workers
go at their own pace. A piece that is given out again gets the next attempt number, and only the newest
attempt counts: whatever a worker reports that was given up is refused by number, not by timing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """Records [start, stop), given out for the `attempt`-th time."""

    number: int
    attempt: int
    start: int
    stop: int


@dataclass(frozen=True)
class _Lease:
    task: Task
    worker: str


class TaskQueue:
    """Every task is in exactly one place: still to do, being done, or done."""

    def __init__(self, records: int, size: int) -> None:
        if records < 1 or size < 1:
            raise ValueError(f"expected at least one record and tasks of at least one, got {records}, {size}")
        self._records = records
        self._size = size
        self._next = 0
        """Tasks from here on were never given out."""
        self._returned: list[Task] = []
        self._doing: dict[int, _Lease] = {}
        self._done = 0

    @property
    def total(self) -> int:
        return -(-self._records // self._size)

    @property
    def done(self) -> int:
        return self._done

    @property
    def finished(self) -> bool:
        return self._done == self.total

    def doing(self, worker: str) -> list[Task]:
        """What this worker has."""
        return [lease.task for lease in self._doing.values() if lease.worker == worker]

    def take(self, worker: str) -> Task | None:
        """The next task for this worker; None when all are done or being done."""
        if self._returned:
            task = self._returned.pop()
            task = Task(task.number, task.attempt + 1, task.start, task.stop)
        elif self._next < self.total:
            start = self._next * self._size
            task = Task(self._next, 1, start, min(start + self._size, self._records))
            self._next += 1
        else:
            return None
        self._doing[task.number] = _Lease(task, worker)
        return task

    def complete(self, worker: str, number: int, attempt: int) -> bool:
        """Whether this result counts. It does once: from the worker that holds the newest attempt."""
        lease = self._doing.get(number)
        if lease is None or lease.worker != worker or lease.task.attempt != attempt:
            return False
        del self._doing[number]
        self._done += 1
        return True

    def give_back(self, worker: str) -> int:
        """A worker is gone: others do what it had. Returns the number of tasks."""
        lost = self.doing(worker)
        for task in lost:
            del self._doing[task.number]
            self._returned.append(task)
        return len(lost)

    def validate(self) -> None:
        """What must hold after every call."""
        assert self._next == len(self._returned) + len(self._doing) + self._done, "no task is lost or twice"
        assert 0 <= self._done <= self.total
        numbers = [t.number for t in self._returned] + list(self._doing)
        assert len(set(numbers)) == len(numbers) and all(n < self._next for n in numbers)
