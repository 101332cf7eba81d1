"""Whole elastic jobs in this process: real master, attendants and engines; fake ring, NumPy trainer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edl_allreduce import clock
from edl_allreduce.cluster.base import Found
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.schedule import Order, Schedule
from edl_allreduce.master.options import options_of
from edl_allreduce.master.shell import JobShell
from edl_allreduce.spec import parse_job
from edl_allreduce.testing.numpy_trainer import NumpyTrainer
from edl_allreduce.testing.thread_cluster import ThreadCluster, ThreadWorker
from edl_allreduce.worker.loop.assemble import Program, assemble, ready_message
from edl_allreduce.worker.loop.diary import audit
from edl_allreduce.worker.loop.feeding import IndexFeed
from edl_allreduce.worker.loop.orders import Ending
from edl_allreduce.worker.loop.steps import StepInput, Written

RECORDS, EPOCHS, BATCH = 60, 10, 6
STEPS = RECORDS * EPOCHS // BATCH
STEP_SECONDS = 0.005
"""So that there is time for something to happen: a master looks ten times in a second."""


class House:
    """One job; `happenings` are done by the master's loop when a worker computes that step."""

    def __init__(self, directory: Path, workers: int) -> None:
        flags = {
            "job_name": "house", "model_def": "a.b", "training_data": "d", "minibatch_size": BATCH // 2,
            "num_workers": workers, "min_workers": 1, "cool_down_seconds": 0.1,
            "audit_dir": directory / "audit",
        }  # fmt: skip
        self.spec = parse_job("train", [f"--{name}={value}" for name, value in flags.items()]).spec
        self.cluster = ThreadCluster(self._begin)
        self.trainers: dict[int, NumpyTrainer] = {}
        self.happenings: dict[int, Callable[[], None]] = {}
        self.sizes: set[int] = set()
        self.steps: list[int] = []
        """What rank 0 computed."""
        self.awaited = 0
        """Steps are slow until a ring of so many is there, however busy the machine is."""
        self._loop: asyncio.AbstractEventLoop
        self._replaced = asyncio.Event()

    def _begin(self, worker: ThreadWorker) -> Callable[[], Ending]:
        def computing(step: StepInput) -> None:
            self.sizes.add(step.size)
            if step.rank == 0:
                self.steps.append(step.number)
            happening = self.happenings.pop(step.number, None)
            if happening is not None:
                self._loop.call_soon_threadsafe(happening)
            clock.sleep(STEP_SECONDS if max(self.sizes) >= self.awaited else 8 * STEP_SECONDS)
            worker.check()

        schedule = Schedule(Order(RECORDS, seed=1), epochs=EPOCHS)
        trainer = NumpyTrainer(worker.ring, RECORDS, computing=computing)
        self.trainers[worker.worker_id] = trainer
        feed = functools.partial(IndexFeed, schedule)
        program = Program(trainer, schedule, feed, lambda: Written("here"), "data", batch_size=BATCH)
        engine = assemble(self.spec, program, worker.attendant, worker.ring)
        worker.attendant.watch(worker.ring)
        worker.attendant.ready(ready_message(self.spec, program, engine))
        return engine.run

    async def _run(self):
        self._loop = asyncio.get_running_loop()
        self._become(JobShell(options_of(self.spec), self.cluster))
        async with asyncio.timeout(60):
            while True:
                running = asyncio.create_task(self.shell.run())
                replaced = asyncio.create_task(self._replaced.wait())
                await asyncio.wait([running, replaced], return_when=asyncio.FIRST_COMPLETED)
                if not self._replaced.is_set():
                    replaced.cancel()
                    return await running
                running.cancel()
                self._replaced.clear()

    def _become(self, shell: JobShell) -> None:
        self.shell = self.cluster.shell = shell

    def restart_master(self) -> None:
        """The master dies; the next one knows only what its cluster and its workers tell it."""
        options = options_of(self.spec)
        options = replace(options, recover_until=clock.now() + options.deadlines.rejoin)
        living = tuple(self.cluster.workers)
        self._become(JobShell(options, self.cluster))
        self.shell.adopt(Found(living, living, len(living)), self.spec.num_workers)
        for worker in self.cluster.workers.values():
            worker.streams[-1].close()
        self._replaced.set()

    def run(self):
        """Until the job is over; it succeeded, and its model is that of a quiet run."""
        result = asyncio.run(self._run())
        assert result.phase is Phase.SUCCEEDED, result
        assert (result.step, result.path) == (STEPS, "here")
        finished = [w for w in self.cluster.workers.values() if w.ending is Ending.RELEASED]
        assert finished
        assert not [w.error for w in self.cluster.workers.values() if w.error is not None]
        complete = [self.trainers[w.worker_id] for w in finished if self.trainers[w.worker_id].used.any()]
        for trainer in complete:
            np.testing.assert_array_equal(trainer.used, EPOCHS)
        assert len({int(trainer.chain[0]) for trainer in complete}) == 1
        verdict = audit(str(Path(self.spec.audit_dir)))
        assert verdict.clean, verdict
        return result, int(complete[0].chain[0])

    def kill(self, worker_id: int) -> None:
        self.shell._later(self.cluster.kill(worker_id))


@pytest.fixture(scope="module")
def quiet(tmp_path_factory) -> int:
    """The state that one undisturbed worker comes to."""
    house = House(tmp_path_factory.mktemp("quiet"), 1)
    return house.run()[1]


@pytest.mark.parametrize("workers", [2, 4])
def test_a_quiet_job(tmp_path, quiet, workers):
    house = House(tmp_path, workers)
    result, chain = house.run()
    assert chain == quiet
    assert result.reasons
    assert house.sizes <= set(range(1, workers + 1))


def test_a_killed_worker_is_replaced_and_no_step_is_lost(tmp_path, quiet):
    house = House(tmp_path, 3)
    house.happenings = {20: lambda: house.kill(1)}
    _, chain = house.run()
    assert chain == quiet
    assert house.cluster.launched == [0, 1, 2, 3], "with the next id"


def test_the_whole_ring_but_one_is_killed(tmp_path, quiet):
    house = House(tmp_path, 3)
    house.happenings = {20: lambda: house.kill(0), 21: lambda: house.kill(2)}
    _, chain = house.run()
    assert chain == quiet
    assert len(house.cluster.launched) == 5


def test_workers_come_and_go_by_command(tmp_path, quiet):
    house = House(tmp_path, 2)
    house.happenings = {10: lambda: house.shell.scale(4), 60: lambda: house.shell.scale(1)}
    house.awaited = 4
    result, chain = house.run()
    assert chain == quiet
    assert max(house.sizes) == 4
    assert len(result.reforms) >= 2
    endings = [worker.ending for worker in house.cluster.workers.values()]
    assert endings.count(Ending.LEFT) == 3
    assert endings.count(Ending.RELEASED) == 1


def test_a_stream_that_breaks_costs_nothing(tmp_path, quiet):
    house = House(tmp_path, 3)
    house.happenings = {20: lambda: house.cluster.workers[1].streams[-1].close()}
    _, chain = house.run()
    assert chain == quiet
    assert len(house.cluster.workers[1].streams) == 2, "it came back as the same one"
    assert house.cluster.launched == [0, 1, 2]


def test_a_master_that_is_started_again_takes_over_and_disturbs_nobody(tmp_path, quiet):
    house = House(tmp_path, 3)
    house.happenings = {20: house.restart_master}
    _, chain = house.run()
    assert chain == quiet
    assert house.cluster.launched == [0, 1, 2]
    assert [len(worker.streams) for worker in house.cluster.workers.values()] == [2, 2, 2]
    assert house.steps == list(range(STEPS)), "no step was made twice: the ring never broke"


def test_a_job_that_is_stopped_ends_at_a_boundary_with_its_model(tmp_path):
    house = House(tmp_path, 2)
    house.happenings = {20: lambda: house.shell.stop("enough")}
    result = asyncio.run(house._run())
    assert result.phase is Phase.STOPPED
    assert 20 <= result.step < STEPS
    assert result.path == "here"
