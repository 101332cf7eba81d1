"""SIGKILL, at every kind of moment. Nobody rolls back, nothing is read twice, the model is the same."""

from __future__ import annotations

import pytest

from edl_allreduce.testing.faults import Fault
from tests.conftest import EPOCHS, STEPS

pytestmark = pytest.mark.training

LAST_STEP = 51


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_killed_in_a_step(start_job, nothing_was_lost, rank):
    job = start_job(Fault("reduce", "kill", {"rank": rank, "step": 20}))
    nothing_was_lost(job)
    assert [f["rank"] for f in job.fired()] == [rank]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_killed_before_the_first_step(start_job, nothing_was_lost, rank):
    job = start_job(Fault("compute", "kill", {"rank": rank, "step": 0}))
    nothing_was_lost(job)
    assert len(job.fired()) == 1


@pytest.mark.parametrize(("point", "rank"), [("reduce", 0), ("applied", 1), ("reduce", 2)])
def test_a_rank_killed_in_the_last_step(start_job, nothing_was_lost, point, rank):
    job = start_job(Fault(point, "kill", {"rank": rank, "step": LAST_STEP}))
    nothing_was_lost(job)
    assert len(job.fired()) == 1


def test_two_ranks_killed_at_once(start_job, nothing_was_lost):
    job = start_job(
        Fault("reduce", "kill", {"rank": 0, "step": 20}), Fault("reduce", "kill", {"rank": 2, "step": 20})
    )
    nothing_was_lost(job)
    assert len(job.fired()) == 2


def test_all_but_one_killed_one_after_the_other(start_job, nothing_was_lost):
    job = start_job(
        Fault("reduce", "kill", {"rank": 1, "step": 10}),
        Fault("compute", "kill", {"rank": 0, "step": 11}),
    )
    nothing_was_lost(job)
    assert len(job.fired()) == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_survivor_killed_while_the_next_ring_forms(start_job, nothing_was_lost, rank):
    """The second death falls into hvd.init of the re-form that the first one caused."""
    job = start_job(
        Fault("reduce", "kill", {"rank": 2, "step": 20}),
        Fault("init", "kill", {"rank": rank, "generation": 2, "request": 2}),
    )
    nothing_was_lost(job)
    assert [f["point"] for f in job.fired()] == ["reduce", "init"]


def test_a_newcomer_killed_while_it_prepares(start_job, nothing_was_lost):
    job = start_job(
        Fault("reduce", "kill", {"rank": 1, "step": 10}),
        Fault("prepare", "kill", {"worker": 3}),
        Fault("compute", "hold", {"step": 30}, repeat=True),
    )
    job.wait_for("ready", "worker 4")
    job.release()
    nothing_was_lost(job)
    assert job.log(0).count("the step is traced") == 1, "three rings of two sizes, one trace"
    assert len([f for f in job.fired() if f["action"] == "kill"]) == 2


@pytest.mark.parametrize("root", [0, 1])
def test_a_rank_killed_while_the_state_is_sent_to_a_newcomer(start_job, nothing_was_lost, root):
    """`root=1` sends, `root=0` receives."""
    job = start_job(
        Fault("reduce", "kill", {"rank": 1, "step": 10}),
        Fault("compute", "hold", {"step": 30}, repeat=True),
        Fault("sync", "kill", {"generation": 3, "root": root}),
    )
    job.wait_for("ready", "worker 3")
    job.release()
    nothing_was_lost(job)
    assert len([f for f in job.fired() if f["action"] == "kill"]) == 2


def test_a_newcomer_killed_while_it_joins(start_job, nothing_was_lost):
    job = start_job(
        Fault("reduce", "kill", {"rank": 1, "step": 10}),
        Fault("compute", "hold", {"step": 30}, repeat=True),
        Fault("init", "kill", {"generation": 3, "worker": 3, "request": 2}),
    )
    job.wait_for("ready", "worker 3")
    job.release()
    nothing_was_lost(job)
    assert len([f for f in job.fired() if f["action"] == "kill"]) == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_killed_while_it_connects_to_a_newcomer(start_job, nothing_was_lost, rank):
    """It trains in its ring and connects the next one beside it."""
    job = start_job(
        Fault("reduce", "kill", {"rank": 1, "step": 10}),
        Fault("compute", "hold", {"step": 30}, repeat=True),
        Fault("init", "kill", {"generation": 3, "rank": rank, "request": 2}),
    )
    job.wait_for("ready", "worker 3")
    job.release()
    nothing_was_lost(job)
    assert len([f for f in job.fired() if f["action"] == "kill"]) == 2


def test_with_a_batch_per_worker_fewer_workers_make_more_steps_of_the_same_records(start_job):
    job = start_job(Fault("reduce", "kill", {"rank": 1, "step": 6}), elastic_batch="worker")
    assert job.wait() == 0, job.story()
    assert len(job.fired()) == 1
    verdict = job.audit()
    assert verdict.clean, f"{verdict}\n{job.story()}"
    assert verdict.epochs == EPOCHS and verdict.steps > STEPS, verdict


def test_a_killed_worker_is_not_replaced_where_the_user_wants_it_so(start_job, nothing_was_lost):
    job = start_job(Fault("reduce", "kill", {"rank": 1, "step": 20}), aux_params="disable_relaunch=true")
    job.wait_for("relaunch", "lost workers are not replaced (--aux_params=disable_relaunch=true); 2 go on")
    nothing_was_lost(job)
    assert len([event for event in job.events() if event.kind == "launch"]) == 3, job.story()
