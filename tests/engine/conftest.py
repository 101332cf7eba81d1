"""Engines in one process: real loops on a fake ring, under a fake master, with a trainer in NumPy."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_allreduce.core.schedule import Order, Schedule
from edl_allreduce.spec import parse_job
from edl_allreduce.testing.fake_master import FakeMaster, FakeOrders
from edl_allreduce.testing.fake_ring import FakeRing, Meeting
from edl_allreduce.testing.numpy_trainer import PRIME, NumpyTrainer
from edl_allreduce.worker.loop.assemble import Program, assemble
from edl_allreduce.worker.loop.diary import audit
from edl_allreduce.worker.loop.engine import Engine
from edl_allreduce.worker.loop.feeding import IndexFeed
from edl_allreduce.worker.loop.orders import Ending
from edl_allreduce.worker.loop.steps import StepInput, Written

RECORDS, EPOCHS, BATCH = 30, 2, 6
STEPS = 10


class Died(Exception):
    """Ends a worker in the middle of a step."""


@dataclass
class Worker:
    """One thread with its engine."""

    orders: FakeOrders
    ring: FakeRing
    trainer: NumpyTrainer
    engine: Engine
    fed: list[tuple[int, int]]
    """Where its feeds began: (step, position)."""
    ending: Ending | None = None
    error: Exception | None = None
    thread: threading.Thread = field(init=False)

    def run(self) -> None:
        try:
            self.ending = self.engine.run()
        except Died:
            pass
        except Exception as error:  # noqa: BLE001  told to the test's thread, which raises it
            self.error = error

    def said(self, kind: Any) -> list[Any]:
        return self.orders._master.heard(kind, self.orders)


class Crew:
    """All workers of one test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.meeting = Meeting()
        self.master = FakeMaster(self.meeting)
        self.workers: list[Worker] = []
        self.order = Order(RECORDS, seed=3)

    def add(
        self,
        computing: Callable[[StepInput], None] = lambda step: None,
        feed: Callable[..., Any] = IndexFeed,
        trainer: dict[str, Any] | None = None,
        program: dict[str, Any] | None = None,
        shares_bad: bool = False,
        max_step: int = 0,
        **flags: Any,
    ) -> Worker:
        """A worker with these flags of the job; `computing` is called in each of its steps."""
        given = {
            "job_name": "engines", "model_def": "none.custom_model", "training_data": "none", "seed": 3,
            "minibatch_size": BATCH, "num_workers": 1, "audit_dir": self.directory / "audit", **flags,
        }  # fmt: skip
        spec = parse_job("train", [f"--{name}={value}" for name, value in given.items()]).spec
        orders, ring = self.master.worker(len(self.workers)), self.meeting.ring()
        schedule = Schedule(self.order, epochs=EPOCHS, max_step=max_step)
        trained = NumpyTrainer(ring, RECORDS, computing=computing, on_nan=spec.on_nan, **(trainer or {}))
        opened: list[tuple[int, int]] = []

        def open_feed(*, step: int, position: int, **where: Any) -> Any:
            opened.append((step, position))
            return feed(schedule, step=step, position=position, **where)

        parts = {"export": lambda: Written("somewhere"), **(program or {})}
        made = Program(
            trainer=trained, schedule=schedule, open_feed=open_feed, fingerprint="same", **parts
        )  # fmt: skip
        engine = assemble(spec, made, orders, ring, shares_bad=shares_bad)
        worker = Worker(orders, ring, trained, engine, opened)
        worker.thread = threading.Thread(target=worker.run, daemon=True)
        self.workers.append(worker)
        return worker

    def run(self, *members: Worker, audited: bool = True) -> None:
        """Until all threads ended; without members the first ring is that of all workers."""
        first = members or tuple(self.workers)
        self.master.plan(*(worker.orders for worker in first), abort=True)
        for worker in self.workers:
            worker.thread.start()
        for worker in self.workers:
            worker.thread.join(30)
            assert not worker.thread.is_alive(), f"{worker.orders.seat.uid} hangs"
            if worker.error is not None:
                raise worker.error
        if audited:
            verdict = audit(str(self.directory / "audit"))
            assert verdict.clean, verdict

    def at_step(self, number: int, do: Callable[[], None]) -> Callable[[StepInput], None]:
        """What a worker's `computing` may be: do this once, in that step."""
        done = threading.Event()

        def computing(step: StepInput) -> None:
            if step.number == number and not done.is_set():
                done.set()
                do()

        return computing

    def dies_at(self, number: int, index: int) -> Callable[[StepInput], None]:
        """Worker `index` ends without a word while it computes that step."""

        def die() -> None:
            worker = self.workers[index]
            self.meeting.break_ring(worker.ring.generation, f"{worker.orders.seat.uid} is gone")
            self.master.lose(worker.orders)
            raise Died

        return self.at_step(number, die)

    def said(self, kind: Any) -> list[Any]:
        return self.master.heard(kind)


def chain(order: Order, steps: int = STEPS, batch: int = BATCH, without: frozenset[int] = frozenset()) -> int:
    """What a run that nothing disturbs comes to; steps `without` are not applied."""
    schedule, value, position = Schedule(order, epochs=EPOCHS), 0, 0
    for step in range(steps):
        span = schedule.span(position, batch)
        position += len(span)
        if step not in without:
            mixed = sum((index + 1) * (step + 1) for index in order.indices(span))
            value = (value * 31 + mixed) % PRIME
    return value


def assert_complete(worker: Worker) -> None:
    """This worker holds the state of an undisturbed run, in which each record was used once per epoch."""
    assert worker.engine.state.step == STEPS
    np.testing.assert_array_equal(worker.trainer.used, EPOCHS)
    assert int(worker.trainer.chain[0]) == chain(worker.engine.schedule.order)


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    return Crew(tmp_path)


@pytest.fixture
def complete() -> Callable[[Worker], None]:
    return assert_complete


@pytest.fixture
def replay() -> Callable[..., int]:
    return functools.partial(chain)
