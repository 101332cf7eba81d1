"""A worker that is kept ready takes the place of the next one that is lost, in simulated time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl_allreduce.core import events, goodput, protocol
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.goodput import Bucket
from edl_allreduce.core.job import inbox
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.status import STANDBY
from edl_allreduce.testing.scene import OPTIONS, Scene

ONE = replace(OPTIONS, standby=1, cool_down=1.0)


def seated(scene: Scene) -> list[int]:
    """The workers of the ring, in the order of their numbers."""
    return [worker.worker_id for worker in scene.status.workers if worker.rank >= 0]


def spare(scene: Scene) -> list[int]:
    return [worker.worker_id for worker in scene.status.workers if worker.standing == STANDBY]


def plans(scene: Scene) -> list[events.RingPlanned]:
    return [event for event in scene.events if isinstance(event, events.RingPlanned)]


def standing_by(options=ONE, **more) -> Scene:
    scene = Scene(options, **more).train()
    return scene.until(lambda: len(spare(scene)) == options.standby)


def test_one_more_is_started_and_stays_out_of_the_ring():
    scene = standing_by().wait(30)
    assert scene.launched == [0, 1, 2]
    assert seated(scene) == [0, 1] and spare(scene) == [2]
    assert len(plans(scene)) == 1, "nobody stood still for it"


def test_it_takes_the_place_of_a_lost_worker_in_the_very_plan_without_it():
    scene = standing_by()
    scene.crash(0, Cause.DISRUPTED)
    assert seated(scene) == [1, 2], "at the same moment"
    assert [plan.workers for plan in plans(scene)] == [(0, 1), (1, 2)]
    assert "stood by and takes over" in plans(scene)[-1].reason
    scene.until(lambda: spare(scene) == [3])
    assert scene.launched == [0, 1, 2, 3], "and another one stands by"
    assert scene.told("ready")[-1] == "worker 3 is ready and stands by"
    scene.wait(30)
    assert len(plans(scene)) == 2


def test_a_lost_standby_is_replaced_and_the_ring_does_not_notice():
    scene = standing_by()
    scene.crash(2, Cause.DISRUPTED).until(lambda: spare(scene) == [3])
    assert len(plans(scene)) == 1 and seated(scene) == [0, 1]


def test_a_member_and_the_standby_are_lost_at_once():
    scene = standing_by()
    scene.crash(2, Cause.DISRUPTED).crash(0, Cause.DISRUPTED)
    scene.until(lambda: len(seated(scene)) == 2 and spare(scene))
    assert scene.launched == [0, 1, 2, 3, 4]
    assert scene.told("ended") == [] and scene.phase is Phase.TRAINING


def test_two_are_lost_and_one_stands_by():
    scene = standing_by(replace(ONE, num_workers=3))
    scene.crash(0, Cause.DISRUPTED).crash(1, Cause.DISRUPTED)
    scene.until(lambda: len(seated(scene)) == 3 and len(spare(scene)) == 1)
    assert set(seated(scene)) >= {2, 3}, "the survivor, and who stood by"
    assert len(scene.alive) == 4


def test_all_members_are_lost_and_the_standbys_go_on_from_the_checkpoint():
    scene = standing_by()
    scene.crash(0, Cause.DISRUPTED).crash(1, Cause.DISRUPTED)
    scene.until(lambda: len(seated(scene)) == 2)
    assert 2 in seated(scene) and scene.phase is Phase.TRAINING


def test_a_job_that_grows_takes_it_and_starts_another():
    scene = standing_by()
    scene.give(inbox.Scale(3))
    assert seated(scene) == [0, 1, 2], "without a start"
    scene.until(lambda: spare(scene) == [3])


def test_a_job_that_shrinks_gives_up_members_and_keeps_its_standby():
    scene = standing_by(replace(ONE, num_workers=4))
    scene.give(inbox.Scale(2)).until(lambda: seated(scene) == [0, 1])
    scene.wait(30)
    assert spare(scene) == [4] and scene.alive == [0, 1, 4]


def test_a_worker_that_drains_hands_over_in_one_switch():
    scene = standing_by()
    scene.give(inbox.Drain(0)).until(lambda: seated(scene) == [1, 2] and 0 not in scene.alive)
    assert [plan.workers for plan in plans(scene)] == [(0, 1), (1, 2)]
    scene.until(lambda: spare(scene) == [3])


def test_a_standby_that_drains_is_replaced():
    scene = standing_by()
    scene.give(inbox.Drain(2)).until(lambda: spare(scene) == [3])
    assert len(plans(scene)) == 1


def test_a_frozen_standby_is_given_up_and_replaced():
    scene = standing_by()
    scene.freeze(2).until(lambda: spare(scene) == [3])
    assert len(plans(scene)) == 1


def with_one_cut_off(scene: Scene) -> Scene:
    """Worker 1 loses its connection, the ring breaks, and who stood by takes its place."""
    first = scene.wait(10).actors[0]
    scene.cut(1)
    plan, first.plan, first.joined = first.plan, None, False
    assert plan is not None
    scene.say(0, protocol.Out(plan.generation, first.step, "rank 1 is gone"))
    assert seated(scene) == [0, 2]
    return scene


def test_a_worker_with_a_model_that_finds_its_place_taken_is_replaced_by_one_without():
    """It cannot stand by: the ring trains on, and nobody could tell later that its model is an old one."""
    scene = with_one_cut_off(standing_by()).connect(1)
    assert spare(scene) == [] and 1 in scene.alive, "nobody knows yet that the ring lives"
    scene.until(lambda: spare(scene) == [3])
    assert 1 not in scene.alive and seated(scene) == [0, 2]
    assert "its place was taken" in scene.told("evict")[-1]
    assert len(plans(scene)) == 2, "nobody stood still for it"
    assert scene.state.keeping.failures == 0, "and nobody is to blame"


def test_a_worker_with_a_model_that_finds_its_place_taken_gets_the_next_one():
    scene = with_one_cut_off(standing_by()).connect(1)
    scene.crash(2, Cause.DISRUPTED)
    assert seated(scene) == [0, 1]


def test_it_goes_on_where_the_ring_was_lost_meanwhile():
    """A master does not know at once that a member is dead, so the model that it turned out might be the
    last."""
    scene = with_one_cut_off(standing_by())
    scene.freeze(0).freeze(2).connect(1)
    scene.until(lambda: 1 in seated(scene))
    assert scene.phase is Phase.TRAINING
    assert not any("its place was taken" in said for said in scene.told("evict"))


def test_one_that_stands_by_shows_that_newcomers_can_begin_again():
    scene = standing_by()
    scene.script.fails = protocol.Failed("ImportError: no module", "Traceback", "parts.py:1")
    scene.crash(2, Cause.DISRUPTED).until(lambda: scene.state.keeping.refusals == 2)
    scene.script.fails = None
    scene.until(lambda: spare(scene))
    assert scene.state.keeping.refusals == 0 and scene.state.keeping.short == ""
    assert "newcomers can begin again" in scene.told("newcomers")[-1]


def test_it_is_released_at_the_end():
    scene = standing_by(steps=200).wait(60)
    assert scene.phase is Phase.SUCCEEDED and scene.over
    assert scene.alive == [] and scene.launched == [0, 1, 2]


def test_it_is_released_when_the_job_is_stopped():
    scene = standing_by()
    scene.give(inbox.Stop("enough")).wait(10)
    assert scene.phase is Phase.STOPPED and scene.alive == []


@pytest.mark.parametrize("lost", [None, 0, 2])
def test_a_new_master_finds_it_standing_by(lost):
    """Also where a member or the standby itself is lost while there is no master."""
    scene = standing_by()
    living = tuple(i for i in scene.alive if i != lost)
    after = Scene(replace(ONE, recover_until=scene.now + 20), now=scene.now)
    for worker_id, actor in scene.actors.items():
        after.actors[worker_id] = actor
        actor.link, actor.generation, actor.alive = 0, 1, worker_id in living
    after.give(inbox.Adopt(living, living, 3, 2))
    for worker_id in living:
        after.connect(worker_id)
    after.until(lambda: lost not in seated(after) and len(seated(after)) == 2 and len(spare(after)) == 1)
    assert after.launched == ([] if lost is None else [3])


def test_its_time_is_neither_spent_well_nor_lost():
    """Two workers that train all the time have a goodput of two, however many stand by."""
    account = goodput.begin(0.0)
    for worker_id in (0, 1):
        account = goodput.connected(account, worker_id, 0.0, uid=str(worker_id))
    for second in range(1, 101):
        account = goodput.heard(account, 0, {Bucket.STEP: float(second)}, float(second))
        account = goodput.stands_by(account, 1, {Bucket.WAITING: float(second)}, float(second))
    assert goodput.report(account).worker_wall == pytest.approx(100.0)
    assert goodput.report(account).worker_share == pytest.approx(1.0)
    account = goodput.heard(account, 1, {Bucket.WAITING: 100.0, Bucket.STEP: 10.0}, 110.0)
    (_, late) = goodput.report(account).workers
    assert late.lived == pytest.approx(10.0) and late.share == pytest.approx(1.0)


def test_without_the_flag_nobody_stands_by():
    scene = Scene().train().wait(10)
    assert scene.launched == [0, 1] and spare(scene) == []
