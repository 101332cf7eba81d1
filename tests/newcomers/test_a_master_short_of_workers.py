"""The master alone: a cluster that starts what a test lets it start, and workers that are coroutines."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from edl_allreduce.cluster.base import DryRun, Found, News
from edl_allreduce.core import protocol, relaunch
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.health import Activity
from edl_allreduce.core.job.inbox import Ended
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import JobOptions
from edl_allreduce.core.protocol import NoteKind, Seat
from edl_allreduce.core.status import EventRecord, WorkerFacts
from edl_allreduce.master.shell import JobShell

READY = protocol.Ready(0, False, "data", 1000, 100, model={"optimizer learning_rate": "0.1"})


class Lab:
    """A cluster, and the workers on it."""

    head_start = 0.0

    def __init__(self) -> None:
        self.broken: Exception | None = None
        """What starting a worker meets."""
        self.ready: protocol.Ready | protocol.Failed = READY
        """What the next workers say when they have prepared."""
        self.holds_the_model: set[int] = set()
        """Workers that come from an earlier master's ring."""
        self.events: list[EventRecord] = []
        self.job = JobShell(JobOptions("job", 2, 1, 0.0, Deadlines(30.0), 3, 100), self, self.events.append)
        self.said: dict[int, asyncio.Queue[protocol.FromWorker | None]] = {}
        self.launches = 0
        self._ends: asyncio.Queue[Ended] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def launch(self, worker_id: int) -> None:
        self.launches += 1
        if self.broken is not None:
            raise self.broken
        self.said[worker_id] = asyncio.Queue()
        self._tasks.append(asyncio.create_task(self._worker(worker_id, self.ready)))

    async def _worker(self, worker_id: int, ready: protocol.Ready | protocol.Failed) -> None:
        said = self.said[worker_id]
        seat = Seat(f"uid-{worker_id}", worker_id, "host")
        holds = worker_id in self.holds_the_model
        said.put_nowait(protocol.Hello(seat, version="test", has_state=holds, generation=1))
        said.put_nowait(ready)
        if isinstance(ready, protocol.Failed):
            said.put_nowait(None)

        async def requests() -> AsyncIterator[protocol.FromWorker]:
            while (message := await said.get()) is not None:
                yield message

        async for order in self.job.attend(requests(), "test"):
            match order:
                case protocol.NewPlan(plan) if plan.rank_of(seat.uid) is not None:
                    said.put_nowait(protocol.Entered(plan.generation))
                    said.put_nowait(protocol.Joined(plan.generation, 5, 0))
                    said.put_nowait(protocol.Pulse(Activity.COMPUTING, plan.generation, 7, 0, 0.5, 0.1))
                case protocol.Release() | protocol.Evicted():
                    said.put_nowait(None)
        if isinstance(ready, protocol.Failed):
            self._ends.put_nowait(Ended(worker_id, Cause.INVALID, "could not begin"))

    async def terminate(self, worker_id: int) -> None:
        await self.kill(worker_id)

    async def kill(self, worker_id: int) -> None:
        self.said[worker_id].put_nowait(None)
        self._ends.put_nowait(Ended(worker_id, Cause.DISRUPTED, "was killed"))

    def plan(self, worker_id: int) -> DryRun:
        return DryRun()

    async def start(self) -> Found:
        return Found()

    async def next_news(self) -> News:
        return await self._ends.get()

    def facts(self, worker_id: int) -> WorkerFacts:
        return WorkerFacts()

    async def last_words(self, worker_id: int) -> str:
        return ""

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def told(self, kind: str) -> list[str]:
        return [event.text for event in self.events if event.kind == kind]

    def ring(self) -> int:
        return sum(worker.rank >= 0 for worker in self.job.status().workers)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.01)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Lab], Coroutine[Any, Any, None]]], Lab]:
    """Run a scenario with a job of two workers that train; newcomers are tried again after a moment."""
    monkeypatch.setattr(relaunch, "FIRST_RETRY", 0.02)

    def run(scenario: Callable[[Lab], Coroutine[Any, Any, None]]) -> Lab:
        async def whole() -> Lab:
            lab = Lab()
            running = asyncio.create_task(lab.job.run())
            await lab.until(lambda: lab.ring() == 2)
            await scenario(lab)
            lab.job.kill_all()
            await running
            return lab

        return asyncio.run(whole())

    return run


def test_a_worker_that_cannot_be_started_is_tried_until_it_can(play):
    async def scenario(lab: Lab) -> None:
        lab.broken = OSError(24, "Too many open files")
        lab.job.scale(3)
        await lab.until(lambda: lab.launches >= 5)
        status = lab.job.status()
        assert status.phase == Phase.TRAINING.value and lab.ring() == 2
        assert "2 of 3 workers: worker" in status.short and "Too many open files" in status.short
        lab.broken = None
        await lab.until(lambda: lab.ring() == 3 and lab.told("newcomers"))
        assert lab.job.status().short == ""

    lab = play(scenario)
    assert len(lab.told("short")) == 1, "however often it was tried"
    assert len(lab.told("launch")) == 3, "tries after the first are the same story"


def test_one_that_would_train_something_else_is_refused_with_what_differs(play):
    async def scenario(lab: Lab) -> None:
        lab.ready = dataclasses.replace(READY, model={"optimizer learning_rate": "0.2"})
        lab.job.scale(3)
        await lab.until(lambda: lab.told("short"))
        assert lab.ring() == 2
        lab.ready = READY
        await lab.until(lambda: lab.ring() == 3)

    lab = play(scenario)
    assert (
        "differs from the rest and is refused: optimizer learning_rate (0.2, the rest 0.1)"
        in (lab.told("short")[0])
    )


def test_another_reason_is_told_again(play):
    async def scenario(lab: Lab) -> None:
        lab.ready = protocol.Failed(True, "DataError: no such file", "DataError: no such file")
        lab.job.scale(3)
        await lab.until(lambda: lab.told("short"))
        lab.ready = protocol.Failed(True, "DataError: permission denied", "DataError: permission denied")
        await lab.until(lambda: len(lab.told("short")) == 2)

    lab = play(scenario)
    assert ["no such file" in text for text in lab.told("short")] == [True, False]


def test_when_nobody_is_left_the_job_fails_after_a_few_newcomers_with_its_last_checkpoint(play):
    async def scenario(lab: Lab) -> None:
        lab.said[0].put_nowait(protocol.Checkpointed(40, "ckpt/version-40", ""))
        lab.ready = protocol.Failed(True, "DataError: no such file", "DataError: no such file")
        for worker_id in (0, 1):
            await lab.kill(worker_id)
        await lab.until(lambda: lab.job.status().phase == Phase.FAILED.value)

    lab = play(scenario)
    reason = lab.job.status().reason
    assert "nobody trains any more, and 3 newcomers in a row could not begin" in reason
    assert "step 40 is in ckpt/version-40" in reason
    assert reason.splitlines()[-1] == "DataError: no such file"
    assert lab.launches == 5


def test_scaling_tries_at_once_what_had_to_wait(play, monkeypatch):
    monkeypatch.setattr(relaunch, "FIRST_RETRY", 60.0)

    async def scenario(lab: Lab) -> None:
        lab.broken = OSError(24, "Too many open files")
        lab.job.scale(3)
        await lab.until(lambda: lab.told("short"))
        lab.broken = None
        lab.job.scale(3)
        await lab.until(lambda: lab.ring() == 3)

    play(scenario)


def test_what_every_worker_says_is_told_once(play):
    async def scenario(lab: Lab) -> None:
        for worker_id in (0, 1):
            lab.said[worker_id].put_nowait(protocol.Note(NoteKind.EDITED, "net.py changed", once=True))
            lab.said[worker_id].put_nowait(protocol.Note(NoteKind.NOTICE, "end of test"))
        await lab.until(lambda: len(lab.told("notice")) == 2)

    assert play(scenario).told("edited") == ["net.py changed"]


def test_a_restarted_master_that_hears_a_newcomer_first_believes_who_holds_the_model(monkeypatch):
    monkeypatch.setattr(relaunch, "FIRST_RETRY", 0.02)

    async def scenario() -> Lab:
        lab = Lab()
        lab.holds_the_model = {1}
        lab.broken = OSError("not yet")  # this test starts the workers itself
        running = asyncio.create_task(lab.job.run())
        lab.job.adopt(Found((0, 1), (1,), 2), 2)
        lab.broken = None
        lab.ready = dataclasses.replace(READY, model={"optimizer learning_rate": "0.2"})
        await lab.launch(0)
        await lab.until(lambda: lab.told("ready"))
        lab.ready = READY
        await lab.launch(1)
        await lab.until(lambda: lab.told("evict"))
        await lab.until(lambda: lab.ring() == 2)
        lab.job.kill_all()
        await running
        return lab

    lab = asyncio.run(scenario())
    assert lab.told("evict")[0].startswith("worker 0 differs from the rest and is refused: optimizer")
