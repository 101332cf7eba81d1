"""SIGTERM: finish the step, leave, exit 0. The others see no error."""

from __future__ import annotations

import signal

import pytest

from edl_allreduce.testing.faults import Fault

pytestmark = pytest.mark.training

HOLD = Fault("compute", "hold", {"step": 20}, repeat=True)


def test_one_worker_drains_and_the_others_see_no_error(start_job, nothing_was_lost):
    job = start_job(HOLD)
    job.wait_fired(3)
    job.signal(1, signal.SIGTERM)
    job.wait_for("drain", "worker 1")
    job.wait_for("plan", "worker 1 drains")
    job.release()
    nothing_was_lost(job)
    assert "ends: drained" in job.log(1)
    for survivor in (0, 2):
        assert "broke" not in job.log(survivor)


def test_several_workers_drain_at_once(start_job, nothing_was_lost):
    job = start_job(HOLD)
    job.wait_fired(3)
    job.signal(0, signal.SIGTERM)
    job.signal(2, signal.SIGTERM)
    job.wait_for("drain")
    job.wait_for("drain")
    job.release()
    nothing_was_lost(job)
    for worker in (0, 1, 2):
        assert "broke" not in job.log(worker)


def test_the_last_worker_hands_its_state_over_before_it_leaves(start_job, nothing_was_lost):
    """All three are told to leave: somebody stays until a newcomer has the model."""
    job = start_job(HOLD)
    job.wait_fired(3)
    for worker in (0, 1, 2):
        job.signal(worker, signal.SIGTERM)
    for worker in (3, 4, 5):
        job.wait_for("launch", f"worker {worker}")
    job.wait_for("ready", "worker")
    job.release()
    nothing_was_lost(job)
    for worker in (0, 1, 2):
        assert "ends: drained" in job.log(worker)


def test_a_worker_that_drains_while_it_prepares_leaves_at_once(start_job, nothing_was_lost):
    job = start_job(Fault("prepare", "terminate", {"worker": 1}))
    job.wait_for("exit", "worker 1 drained and left")
    nothing_was_lost(job)
