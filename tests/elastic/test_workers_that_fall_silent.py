"""No connection closes: only a deadline, and an abort ordered by the master, help."""

from __future__ import annotations

import pytest

from edl_allreduce.testing.faults import Fault

pytestmark = pytest.mark.training


@pytest.mark.parametrize("rank", [0, 2])
def test_a_frozen_rank_is_named_and_replaced(start_job, nothing_was_lost, rank):
    job = start_job(Fault("reduce", "freeze", {"rank": rank, "step": 20}))
    event = job.wait_for("evict", "no heartbeat")
    assert f"worker {rank} " in event.text
    nothing_was_lost(job)


def test_a_rank_blocked_in_user_code_is_named_and_replaced(start_job, nothing_was_lost):
    job = start_job(Fault("compute", "block", {"rank": 1, "step": 20}), failure_detection_seconds=3)
    event = job.wait_for("evict", "in user code of step 20")
    assert "worker 1 " in event.text
    nothing_was_lost(job)


def test_a_worker_frozen_while_a_ring_forms_does_not_hold_the_others(start_job, nothing_was_lost):
    job = start_job(
        Fault("reduce", "kill", {"rank": 2, "step": 20}),
        Fault("init", "freeze", {"rank": 1, "generation": 2, "request": 2}),
    )
    job.wait_for("evict", "no heartbeat")
    nothing_was_lost(job)
    assert len(job.fired()) == 2
