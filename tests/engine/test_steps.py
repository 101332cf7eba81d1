"""Undisturbed training: exact sums, the same for any number of ranks; stop, export, the end."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.attendance.state import MasterGone
from edl_allreduce.worker.loop.orders import Ending
from edl_allreduce.worker.loop.steps import Written

STEPS = 10


@pytest.mark.programs
def test_the_loop_imports_no_framework():
    heavy = ("tensorflow", "keras", "horovod", "grpc")
    code = f"""
import sys, edl_allreduce.worker.loop.assemble, edl_allreduce.worker.loop.engine
print([name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_each_record_is_used_once_per_epoch_by_any_number_of_ranks(crew, complete, size):
    for _ in range(size):
        crew.add()
    crew.run()
    for worker in crew.workers:
        complete(worker)
        assert worker.ending is Ending.RELEASED
    assert [done.step for done in crew.said(protocol.Done)] == [STEPS] * size
    assert len({done.loss for done in crew.said(protocol.Done)}) == 1, "all know the same loss"


def test_a_batch_per_worker_makes_fewer_and_larger_steps(crew):
    for _ in range(2):
        crew.add(elastic_batch="worker", minibatch_size=5)
    crew.run()
    for worker in crew.workers:
        assert worker.engine.state.step == 6, "30 records in batches of 2 x 5, twice"
        np.testing.assert_array_equal(worker.trainer.used, 2)


def test_the_trainer_is_told_all_about_its_step(crew):
    seen = []
    crew.add(computing=seen.append)
    crew.add()
    crew.run()
    first = seen[0]
    assert (first.number, first.batch, first.rank, first.size, first.generation) == (0, 6, 0, 2, 1)
    assert first.offset == 0
    assert [step.number for step in seen] == list(range(STEPS))


def test_stop_ends_all_ranks_after_the_same_step(crew):
    crew.add(computing=crew.at_step(4, crew.master.stop))
    crew.add()
    crew.run(audited=False)
    told = crew.said(protocol.Done)
    assert [done.stopped for done in told] == [True, True]
    assert {done.step for done in told} <= {5, 6} and len({done.step for done in told}) == 1


def test_rank_0_exports_and_says_where(crew):
    troubled = {"export": lambda: Written("elsewhere", "no room")}
    crew.add(program=troubled)
    crew.add(program={"export": lambda: pytest.fail("only one rank writes")})
    crew.run()
    assert crew.said(protocol.Exported) == [protocol.Exported("elsewhere", "no room")]


def test_each_epoch_is_saved_by_rank_0_where_that_is_wanted(crew):
    saved = []
    crew.add(program={"save_pass": saved.append})
    crew.add(program={"save_pass": lambda number: pytest.fail("only one rank writes")})
    crew.run()
    assert saved == [0, 1]


def test_what_is_finished_is_written_although_the_master_is_gone(crew):
    written = []

    def export() -> Written:
        written.append(1)
        return Written("here")

    worker = crew.add(program={"export": export}, max_step=3)
    worker.orders.done = lambda step, **how: worker.orders.end_with(MasterGone(1.0))
    crew.run(audited=False)
    assert written == [1]
    assert worker.ending is Ending.RELEASED


def test_nothing_is_written_of_weights_that_are_known_to_be_wrong(crew):
    written = []
    worker = crew.add(program={"export": lambda: written.append(1)}, max_step=3)

    def ends_spoiled(step: int, **how: object) -> None:
        worker.engine._weights.spoiled = True
        worker.orders.end_with(MasterGone(1.0))

    worker.orders.done = ends_spoiled
    crew.run(audited=False)
    assert written == []
    assert worker.ending is Ending.ABANDONED


def test_an_evicted_worker_ends(crew):
    worker = crew.add(max_step=2)
    worker.orders.done = lambda step, **how: worker.orders.end_with(protocol.Evicted("too slow"))
    crew.run(audited=False)
    assert worker.ending is Ending.EVICTED
