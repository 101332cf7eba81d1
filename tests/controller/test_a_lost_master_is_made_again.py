"""The job outlives its master: deleted, preempted, drained, on a lost node or crashed."""

from __future__ import annotations

import pytest

from edl_allreduce.core.controller import mail
from edl_allreduce.core.controller.facts import (
    Advice,
    DeleteMaster,
    Known,
    MakeMaster,
    Master,
    Stage,
    Told,
    Wish,
    Workers,
)
from edl_allreduce.core.controller.mail import Progress
from edl_allreduce.core.controller.reconcile import MOST_CRASHES, reconcile
from edl_allreduce.core.trainingjob import Phase
from tests.controller.conftest import NAMESPACE, Lab

NOW = 1_700_000_000.0


def test_a_master_whose_pod_is_deleted_is_made_again_with_what_the_last_one_knew(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job()
        await lab.turn(controller)
        lab.works(step=77, step_seconds={4: 0.25}, pause=0.2)
        await lab.turn(controller)
        before = lab.master()["metadata"]["uid"]
        (secret,) = lab.api.all("secrets")
        lab.api.remove(lab.master_path())
        await lab.turn(controller)
        after = lab.master()
        assert after["metadata"]["uid"] != before
        carried = mail.read_progress(after["metadata"]["annotations"][mail.PROGRESS])
        assert (carried.next_id, carried.step, carried.step_seconds) == (4, 77, {4: 0.25})
        assert lab.orders().workers == 4
        assert lab.api.all("secrets") == [secret], "workers know the job by its token"
        assert "training goes on meanwhile" in lab.condition("Degraded")["message"]
        assert len(lab.worker_names()) == 4
        assert "MasterMade: its master was lost and is made again" in lab.events()

    play(story())


def test_a_restarted_controller_makes_the_master_that_was_lost_meanwhile(lab: Lab, play):
    async def story():
        controller = lab.controller("a")
        lab.job()
        await lab.turn(controller)
        lab.works(step=77)
        await lab.turn(controller)
        await controller.election.step_down()
        lab.api.remove(lab.master_path())
        another = lab.controller("b")
        await lab.turn(another)
        assert lab.master() is not None
        assert lab.orders().term == 2
        assert lab.orders().workers == 4

    play(story())


def known(master: Master | None, workers: Workers, **told) -> Known:
    return Known(
        Wish(1, 8), Told(Phase.RUNNING, started=NOW - 500, **told), master, workers, True, Advice(2, "well")
    )


def over(**what) -> Master:
    return Master("m", "uid-1", Stage.OVER, "was ended", until=NOW - 1, **what)


def test_on_a_lost_node_its_pod_is_forgotten_when_it_is_overdue():
    leaving = Master("m", "uid-1", Stage.LEAVING, "was evicted from its node by a taint", until=NOW)
    patient = reconcile(known(leaving, Workers(2)), NOW + 1)
    assert patient.actions == () and patient.again == NOW + 15
    forced = reconcile(known(leaving, Workers(2)), NOW + 16)
    assert forced.actions == (DeleteMaster("uid-1", force=True),)
    assert "the next one takes over" in forced.message


@pytest.mark.parametrize("disrupted", [True, False])
def test_one_that_is_over_frees_its_name_first_and_after_a_crash_not_at_once(disrupted):
    verdict = reconcile(known(over(disrupted=disrupted), Workers(2)), NOW)
    if disrupted:
        assert verdict.actions == (DeleteMaster("uid-1"),) and verdict.crashes == 0
    else:
        assert verdict.actions == () and verdict.crashes == 1
        later = reconcile(known(over(), Workers(2)), verdict.again)
        assert later.actions == (DeleteMaster("uid-1"),)


def test_crashes_are_counted_over_masters_and_a_job_whose_masters_only_crash_has_failed():
    made = reconcile(known(None, Workers(2), crashes=2), NOW)
    (action,) = made.actions
    assert isinstance(action, MakeMaster) and action.crashes == 2
    last = reconcile(known(over(crashes=MOST_CRASHES - 1), Workers(2)), NOW + 1000)
    assert (last.phase, last.reason) == (Phase.FAILED, "MasterCrashed")
    assert f"{MOST_CRASHES} masters" in last.message


def test_crashes_with_training_between_them_are_not_in_a_row(lab: Lab, play):
    async def story():
        controller = lab.controller()
        lab.job()
        await lab.turn(controller)
        for step in range(1, 2 * MOST_CRASHES):
            lab.works(step=step)
            await lab.turn(controller)
            await lab.turn(controller)  # nothing new, and still not in a row
            lab.api.end_pod(lab.master_path(), 1, "Traceback")
            await lab.turn(controller)
            assert lab.status()["phase"] != "Failed", f"after {step} crashes"
            assert controller.book.entries[f"{NAMESPACE}/job"].told.crashes == 1
            lab.api.remove(lab.master_path())
            await lab.turn(controller, 10)
            assert lab.master()["metadata"]["annotations"][mail.CRASHES] == "1"
        for _ in range(MOST_CRASHES - 1):  # without a step
            lab.api.run_pod(lab.master_path(), "n0")
            lab.api.end_pod(lab.master_path(), 1, "Traceback")
            await lab.turn(controller)
            lab.api.remove(lab.master_path())
            await lab.turn(controller, 300)
        assert lab.condition("Failed")["reason"] == "MasterCrashed"

    play(story())


@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_a_job_that_told_its_end_is_not_trained_again_when_its_masters_pod_is_deleted(lab: Lab, play, end):
    async def story():
        controller = lab.controller()
        lab.job()
        await lab.turn(controller)
        lab.works()
        await lab.turn(controller)
        lab.tells(phase=end, reason="because")  # its pod still runs
        await lab.turn(controller)
        assert lab.status()["phase"] not in ("Succeeded", "Failed")
        lab.api.remove(lab.master_path())
        await lab.turn(controller)
        assert lab.status()["phase"] == end and lab.condition(end)["message"] == "because"
        await lab.turn(controller)
        assert lab.master() is None

    play(story())


def test_the_end_that_an_earlier_master_told_is_not_the_end_of_the_next_one():
    told = Progress(phase="Stopped", reason="suspended by its spec", step=5, next_id=3)
    verdict = reconcile(known(None, Workers(), progress=told), NOW)
    (made,) = verdict.actions
    assert isinstance(made, MakeMaster)
    assert (made.progress.phase, made.progress.next_id) == ("", 3)
