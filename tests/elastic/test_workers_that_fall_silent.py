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


def test_a_newcomer_frozen_while_it_connects_does_not_hold_the_others(start_job, nothing_was_lost):
    """They train on in the ring that they have until the master gives the newcomer up."""
    job = start_job(
        Fault("reduce", "kill", {"rank": 1, "step": 10}),
        Fault("compute", "hold", {"step": 30}, repeat=True),
        Fault("init", "freeze", {"generation": 3, "worker": 3, "request": 2}),
        Fault("compute", "hold", {"step": 45, "generation": 2}),
    )
    job.wait_for("plan", "worker 3 joins")
    job.release()
    job.wait_for("evict", "no heartbeat")
    nothing_was_lost(job)
    fired = job.fired()
    assert [f["worker"] for f in fired if f["action"] == "freeze"] == [3]
    assert [f["generation"] for f in fired if f.get("step") == 45] == [2], "trained on without it"
