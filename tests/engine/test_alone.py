"""A whole job in this process without TensorFlow: real engine, attendant and master, as `Local` runs them."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from edl_allreduce import clock
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.core.schedule import Order, Schedule
from edl_allreduce.errors import BadRecord, DataError, JobFailed
from edl_allreduce.spec import parse_job
from edl_allreduce.testing.numpy_trainer import NumpyTrainer
from edl_allreduce.worker.lone import LoneMaster
from edl_allreduce.worker.loop.assemble import Program, assemble, ready_message
from edl_allreduce.worker.loop.diary import audit
from edl_allreduce.worker.loop.feeding import IndexFeed
from edl_allreduce.worker.loop.orders import Ending
from edl_allreduce.worker.loop.steps import Written
from edl_allreduce.worker.records import bad_records
from edl_allreduce.worker.ring.solo import SoloRing

RECORDS = 20
HERE = Written("here")
ALONE = Plan(1, (Seat("local", 0, "127.0.0.1"),))


@pytest.fixture
def alone(tmp_path):
    """Make the job; returns its engine, its master and its trainer."""

    def make(bad_allowed: int = 0, written: Written = HERE, **options):
        flags = {"job_name": "alone", "model_def": "a.b", "training_data": "d", "minibatch_size": 4,
                 "num_workers": 1, "audit_dir": tmp_path / "audit"}  # fmt: skip
        spec = parse_job("train", [f"--{name}={value}" for name, value in flags.items()]).spec
        lone, ring = LoneMaster(ALONE, 0, bad_allowed), SoloRing()
        orders = lone.attendant()
        schedule = Schedule(Order(RECORDS, seed=1), epochs=2)
        trainer = NumpyTrainer(ring, RECORDS, **options)
        program = Program(trainer, schedule, functools.partial(IndexFeed, schedule), lambda: written, "data")
        engine = assemble(spec, program, orders, ring)
        orders.watch(ring)
        orders.ready(ready_message(spec, program, engine))
        return engine, lone, trainer

    return make


def test_it_trains_to_the_end_and_says_so(alone, tmp_path, capsys):
    engine, lone, trainer = alone()
    assert engine.run() is Ending.RELEASED
    assert lone.verdict(engine.state.step) == 0
    np.testing.assert_array_equal(trainer.used, 2)
    assert capsys.readouterr().out == "Succeeded: 10 steps\nThe trained model is in here\n"
    assert audit(str(tmp_path / "audit")).clean


def test_it_stops_at_a_step_boundary_when_it_is_told_to(alone, capsys):
    def stop(step) -> None:
        if step.number == 4:
            lone.stop()
            for _ in clock.polls(0.001, within=10):  # the word is on its way through the stream
                if engine.orders.vote(1)[1]:
                    break

    engine, lone, _ = alone(computing=stop)
    engine.run()
    assert engine.state.step == 5
    assert lone.verdict(engine.state.step) == 130
    assert capsys.readouterr().out.startswith("Stopped: 5 steps")


def test_a_result_that_could_not_be_written_is_told(alone, capsys):
    engine, lone, _ = alone(written=Written("", "no room anywhere"))
    engine.run()
    assert lone.verdict(engine.state.step) == 1
    assert "trained for 10 steps, but no room anywhere" in capsys.readouterr().err


def test_a_loss_that_is_not_finite_fails_the_job(alone):
    engine, lone, _ = alone(nan_records=frozenset({7}))
    engine.run()
    with pytest.raises(JobFailed, match="is not finite"):
        lone.verdict(engine.state.step)


def test_too_many_bad_records_fail_the_job(alone):
    engine, lone, _ = alone(bad_allowed=1)
    for index in (3, 4):
        problem = BadRecord(f"record {index} is bad", index=index, path="file")
        engine.orders.send(bad_records("training data", [problem]))
    engine.run()
    with pytest.raises(DataError):
        lone.verdict(engine.state.step)
