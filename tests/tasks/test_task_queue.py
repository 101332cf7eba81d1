"""Each task counts once, whoever dies holding it and whoever reports late."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_allreduce.core.tasks import Task, TaskQueue


class Office:
    """A queue that stands still: each call replaces it by the next."""

    def __init__(self, records: int, size: int) -> None:
        self.queue = TaskQueue(records, size)

    def take(self, worker: str) -> Task | None:
        self.queue, task = self.queue.take(worker)
        self.queue.validate()
        return task

    def complete(self, worker: str, number: int, attempt: int) -> bool:
        after = self.queue.complete(worker, number, attempt)
        self.queue = after or self.queue
        self.queue.validate()
        return after is not None

    def give_back(self, worker: str) -> int:
        self.queue, count = self.queue.give_back(worker)
        self.queue.validate()
        return count

    def reclaim(self, worker: str, held: list[tuple[int, int]]) -> int:
        self.queue, count = self.queue.reclaim(worker, held)
        self.queue.validate()
        return count

    @property
    def finished(self) -> bool:
        return self.queue.finished


def test_tasks_cover_all_records_once():
    queue = Office(records=10, size=4)
    taken = [queue.take("a") for _ in range(4)]
    assert taken == [Task(0, 1, 0, 4), Task(1, 1, 4, 8), Task(2, 1, 8, 10), None]
    assert queue.queue.total == 3


def test_a_lost_workers_task_is_given_out_again_and_its_late_report_is_refused():
    queue = Office(records=4, size=4)
    first = queue.take("a")
    assert first is not None
    assert queue.give_back("a") == 1
    second = queue.take("b")
    assert second == Task(0, 2, 0, 4)
    assert not queue.complete("a", first.number, first.attempt)
    assert queue.complete("b", second.number, second.attempt)
    assert not queue.complete("b", second.number, second.attempt), "counts once"
    assert queue.finished


def test_a_worker_that_is_back_keeps_what_it_has_and_nobody_else_got():
    queue = Office(records=12, size=4)
    for worker in ("a", "b", "c"):
        queue.take(worker)
    queue.give_back("a")
    queue.give_back("c")
    assert queue.take("d") == Task(2, 2, 8, 12)
    assert queue.reclaim("a", [(0, 1)]) == 0, "nobody got it meanwhile"
    assert queue.reclaim("c", [(2, 1)]) == 0, "another one has it"
    assert queue.reclaim("b", []) == 1, "it never heard of its task"
    assert queue.complete("a", 0, 1) and not queue.complete("c", 2, 1) and not queue.complete("b", 1, 1)
    assert queue.take("b") == Task(1, 2, 4, 8)


def test_an_attempt_that_was_given_up_does_not_count_even_from_its_own_worker():
    queue = Office(records=4, size=4)
    queue.take("a")
    queue.give_back("a")
    queue.take("a")
    assert not queue.complete("a", 0, 1)
    assert queue.complete("a", 0, 2)


@pytest.mark.parametrize(("records", "size"), [(0, 1), (1, 0)])
def test_an_empty_queue_makes_no_sense(records, size):
    with pytest.raises(ValueError, match="at least one"):
        TaskQueue(records, size)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 7), st.data())
def test_whatever_happens_every_record_is_counted_once(records, size, data):
    queue = Office(records, size)
    workers = ["a", "b", "c"]
    held: list[tuple[str, Task]] = []
    counted: list[int] = []

    def report(worker: str, task: Task) -> None:
        if queue.complete(worker, task.number, task.attempt):
            counted.extend(range(task.start, task.stop))

    for event in data.draw(st.lists(st.sampled_from(["take", "report", "die"]), max_size=60)):
        worker = data.draw(st.sampled_from(workers))
        if event == "take":
            task = queue.take(worker)
            if task is not None:
                held.append((worker, task))
        elif event == "die":
            queue.give_back(worker)
        elif held:
            report(*data.draw(st.sampled_from(held)))  # also late, also twice
    while not queue.finished:
        task = queue.take("last")
        if task is None:
            for worker in workers:
                queue.give_back(worker)
        else:
            report("last", task)
    assert sorted(counted) == list(range(records))
