"""The numbers of a job's status, from what workers said: coroutines that speak the protocol."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from edl_allreduce.cluster.manual import ManualCluster
from edl_allreduce.core import protocol
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.health import Activity
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import JobOptions
from edl_allreduce.core.progress import Length
from edl_allreduce.core.protocol import Seat
from edl_allreduce.master.shell import JobShell

OPTIONS = JobOptions("job", 0, 1, 0.0, Deadlines(60), 3)
LENGTH = Length(records=100, epochs=10, batch=10)


class Worker:
    """One worker's stream: what it says, and what it heard last."""

    def __init__(self, job: JobShell, number: int, length: Length | None = LENGTH) -> None:
        self._said: asyncio.Queue[protocol.FromWorker | None] = asyncio.Queue()
        self.seat = Seat(f"uid-{number}", number, "127.0.0.1")
        self.heard: list[protocol.FromMaster] = []
        self.say(protocol.Hello(self.seat, version="test"))
        self.say(protocol.Ready(0, False, "data", 100, 10, records=100, length=length))
        self.task = asyncio.create_task(self._attend(job))

    def say(self, message: protocol.FromWorker | None) -> None:
        self._said.put_nowait(message)

    async def _attend(self, job: JobShell) -> None:
        async def requests() -> AsyncIterator[protocol.FromWorker]:
            while (message := await self._said.get()) is not None:
                yield message

        async for order in job.attend(requests(), "test"):
            if not isinstance(order, protocol.Welcome):
                self.heard.append(order)
            match order:
                case protocol.NewPlan(plan) if plan.rank_of(self.seat.uid) is not None:
                    self.say(protocol.Entered(plan.generation))
                    self.say(protocol.Joined(plan.generation, 0, 0))
                case protocol.Export():
                    self.say(protocol.Exported("model.keras"))
                case protocol.Release() | protocol.Evicted():
                    self.say(None)

    def pulse(self, generation: int, step: int, loss: float = math.nan, position: int | None = None) -> None:
        at = 10 * step if position is None else position
        self.say(protocol.Pulse(Activity.COMPUTING, generation, step, at, loss, 0.1))


async def until(happened: Callable[[], object]) -> None:
    for _ in range(500):
        if happened():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


def play(scenario: Callable[[JobShell], Awaitable[None]], options: JobOptions = OPTIONS):
    """A master of whom everything may be asked."""

    async def run() -> None:
        made = JobShell(options, ManualCluster())
        running = asyncio.create_task(made.run())
        try:
            await scenario(made)
        finally:
            running.cancel()

    asyncio.run(run())


def test_the_final_loss_is_that_of_the_last_step_and_not_of_a_heartbeat():
    async def scenario(job: JobShell) -> None:
        worker = Worker(job, 0)
        await until(lambda: job.status().phase == "Training")
        worker.pulse(1, 40, loss=0.9)
        worker.say(protocol.Done(1, 100, False, 1000, 0.1))
        worker.pulse(1, 90, loss=0.8)  # was on its way
        await until(lambda: job.status().phase == Phase.SUCCEEDED.value)
        over = job.status()
        assert (over.step, over.total_steps, over.loss, over.position) == (100, 100, 0.1, 1000)
        assert over.steps_per_second > 0, "the mean, since nobody trains any more"
        assert any(event.text == "training is complete after 100 steps" for event in over.events)

    play(scenario)


def test_a_job_without_a_single_heartbeat_knows_its_loss():
    async def scenario(job: JobShell) -> None:
        worker = Worker(job, 0)
        await until(lambda: job.status().phase == "Training")
        worker.say(protocol.Done(1, 2, False, 1000, 0.5))
        await until(lambda: job.status().phase == Phase.SUCCEEDED.value)
        assert job.status().loss == 0.5

    play(scenario)


def test_a_stopped_training_is_not_called_complete():
    async def scenario(job: JobShell) -> None:
        worker = Worker(job, 0)
        await until(lambda: job.status().phase == "Training")
        job.stop("asked by the user")
        worker.say(protocol.Done(1, 30, True, 300, 0.4))
        await until(lambda: job.status().phase == Phase.STOPPED.value)
        over = job.status()
        assert (over.step, over.total_steps, over.reason) == (30, 100, "asked by the user")
        said = " ".join(event.text for event in over.events)
        assert "training stopped after 30 steps" in said and "complete" not in said

    play(scenario)


@pytest.mark.parametrize(("per_worker", "records_per_second", "total"), [(False, 100, 110), (True, 200, 65)])
def test_totals_and_rates_follow_the_batch_of_the_ring(per_worker, records_per_second, total):
    length = Length(records=100, epochs=10, batch=10, per_worker=per_worker)

    async def scenario(job: JobShell) -> None:
        workers = [Worker(job, number, length) for number in range(2)]
        await until(lambda: sum(w.rank >= 0 for w in job.status().workers) == 2)
        generation = job.status().generation
        for worker in workers:  # 20 steps were made with a batch of 5
            worker.pulse(generation, 20, 0.5, position=100)
        await until(lambda: job.status().step == 20)
        seen = job.status()
        assert (seen.total_steps, round(seen.records_per_second)) == (total, records_per_second)

    play(scenario)


def test_lost_workers_and_pauses_are_counted():
    async def scenario(job: JobShell) -> None:
        workers = [Worker(job, number) for number in range(2)]
        await until(lambda: sum(w.rank >= 0 for w in job.status().workers) == 2)
        workers[1].say(None)  # its process died, and the other one meets its closed sockets
        workers[0].say(protocol.Out(job.status().generation, 5, "lost the connection to rank 1"))
        await until(lambda: job.status().tally.losses == 1)
        generation = job.status().generation
        for pause in (0.1, 0.3):
            workers[0].say(protocol.Reformed(generation, 1, pause, 0, 0, 0, 0))
        await until(lambda: job.status().tally.pauses)
        await until(lambda: job.status().tally.pauses == [0.3])

    play(scenario)


def test_a_worker_that_reports_a_lost_peer_names_the_other_worker():
    async def scenario(job: JobShell) -> None:
        workers = [Worker(job, number) for number in (4, 7)]
        await until(lambda: sum(w.rank >= 0 for w in job.status().workers) == 2)
        workers[0].say(protocol.Out(job.status().generation, 5, "lost the connection to rank 1: broken pipe"))
        expected = "worker 4 reports: lost the connection to rank 1 (worker 7): broken pipe"
        await until(lambda: any(expected in event.text for event in job.status().events))

    play(scenario)


def test_tasks_that_are_done_stay_done_when_a_heartbeat_comes():
    async def scenario(job: JobShell) -> None:
        worker = Worker(job, 0, None)
        await until(lambda: worker.heard)
        (order,) = worker.heard
        assert isinstance(order, protocol.DoTask)
        worker.say(protocol.TaskDone(order.number, order.attempt, []))
        worker.pulse(0, 0)
        await until(lambda: len(worker.heard) > 1)
        seen = job.status()
        assert (seen.counts, seen.step, seen.total_steps) == ("task", 1, 2)

    play(scenario, dataclasses.replace(OPTIONS, task_records=50))
