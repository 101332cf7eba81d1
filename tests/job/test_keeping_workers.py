"""A whole master with played workers, in simulated time: who is started, ended, refused, replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl_allreduce.core import events, protocol
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.health import Activity
from edl_allreduce.core.job import inbox, keeping
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import Ring
from edl_allreduce.testing.scene import OPTIONS, READY, Scene

ODD = replace(READY, model={"optimizer": "adam"})
MISSING = protocol.Failed(True, "DataError: no such file", "DataError: no such file")


def test_a_job_from_its_first_worker_to_its_result():
    scene = Scene(steps=50).train().wait(60)
    assert scene.phase is Phase.SUCCEEDED and scene.over
    assert scene.state.ending.path == "model.keras" and scene.state.reason == "50 steps"
    assert not scene.alive, "everybody was released"
    assert scene.launched == [0, 1]


# ----------------------------------------------------------------------------------------------- scaling


def test_more_workers_join_and_fewer_drain():
    scene = Scene().train()
    scene.give(inbox.Scale(4)).until(lambda: scene.ring == 4)
    assert scene.launched == [0, 1, 2, 3]
    scene.give(inbox.Scale(2)).until(lambda: scene.ring == 2)
    assert scene.alive == [0, 1], "the youngest go"
    assert scene.told("drain") == ["worker 2 drains", "worker 3 drains"]
    assert [e.cause for e in scene.events if isinstance(e, events.WorkerExited)] == ["drained", "drained"]
    assert scene.launched == [0, 1, 2, 3], "nobody takes the place of who was not wanted any more"


def test_those_who_are_named_leave_before_the_youngest():
    scene = Scene().train()
    scene.give(inbox.Scale(4)).until(lambda: scene.ring == 4)
    scene.give(inbox.Scale(2, leaving=(0,))).until(lambda: scene.ring == 2)
    assert scene.alive == [1, 2]


def test_a_worker_that_is_not_connected_is_asked_to_leave_by_the_cluster():
    scene = Scene().train()
    scene.cut(1).give(inbox.Scale(1))
    assert inbox.Terminate(1) in scene.effects


def test_a_worker_that_somebody_drains_leaves_and_another_one_takes_its_place():
    scene = Scene().train()
    scene.give(inbox.Drain(0)).until(lambda: scene.ring == 2 and scene.alive == [1, 2])
    assert scene.told("drain") == ["worker 0 drains"]
    assert [e.cause for e in scene.events if isinstance(e, events.WorkerExited)] == ["drained"]
    assert scene.status.wanted == 2


def test_a_worker_that_is_drained_gives_the_survivors_their_head_start():
    scene = Scene(replace(OPTIONS, head_start=5.0)).train()
    scene.give(inbox.Drain(0)).wait(4.0)
    assert scene.launched == [0, 1]
    scene.wait(2.0)
    assert scene.launched == [0, 1, 2]


def test_nobody_is_drained_twice_or_after_the_end_or_without_being_there():
    scene = Scene().train()
    assert keeping.refusal_to_drain(scene.state, 7) == "there is no worker 7"
    scene.freeze(1).give(inbox.Drain(1))
    assert keeping.refusal_to_drain(scene.state, 1) == "worker 1 was asked to leave already"
    scene.give(inbox.Stop("enough"))
    assert "the job is" in keeping.refusal_to_drain(scene.state, 0)


@pytest.mark.parametrize(
    ("scene", "count", "why"),
    [
        (lambda: Scene(replace(OPTIONS, num_workers=0)), 3, "starts no workers"),
        (lambda: Scene(replace(OPTIONS, min_workers=2)).train(), 1, "at least 2"),
        (lambda: Scene().train().give(inbox.KillAll()), 3, "it is stopped"),
    ],
)
def test_what_cannot_be_scaled_says_why_and_stays(scene, count, why):
    played = scene()
    assert why in keeping.refusal_to_scale(played.state, count)
    wanted = played.state.wanted
    assert played.give(inbox.Scale(count)).state.wanted == wanted


# ---------------------------------------------------------------------------------------------- stopping


def test_stop_makes_the_last_step_and_writes_the_model():
    scene = Scene().train().wait(5).give(inbox.Stop("asked by the user"))
    assert (scene.phase, scene.state.reason) == (Phase.STOPPED, "asked by the user")
    assert scene.state.ending.path == "model.keras" and not scene.alive
    assert scene.told("finish")[0].startswith("training stopped after")


def test_stop_before_anybody_holds_a_model_ends_at_once():
    scene = Scene()
    scene.script.prepares = False
    scene.start().give(inbox.Stop("asked by the user"))
    assert scene.phase is Phase.STOPPED and not scene.alive


def test_a_worker_that_was_cut_off_when_the_job_was_stopped_hears_it_when_it_returns():
    scene = Scene().train().wait(5).cut(0).give(inbox.Stop("asked"))
    assert scene.phase is Phase.TRAINING
    scene.connect(0)
    assert protocol.Stop("asked") in scene.actors[0].heard
    assert scene.phase is Phase.STOPPED


def test_kill_all_ends_everybody_without_a_result():
    scene = Scene().train().give(inbox.KillAll())
    assert scene.phase is Phase.STOPPED and scene.over and not scene.alive
    assert {inbox.Kill(0), inbox.Kill(1)} <= set(scene.effects) and not scene.state.ending.path


def test_released_workers_that_do_not_go_are_not_waited_for_for_ever():
    scene = Scene().train()
    for actor in scene.actors.values():
        actor.frozen = True
    scene.check = lambda before, after, effects: None  # Kill below is not obeyed by the frozen
    scene.give(inbox.Stop("asked"))
    scene.say(0, protocol.Done(scene.status.generation, 7, True))
    scene.say(1, protocol.Done(scene.status.generation, 7, True))
    scene.say(0, protocol.Exported("model.keras"))
    assert scene.phase is Phase.STOPPED and not scene.over
    scene.wait(OPTIONS.deadlines.failure_detection + 1)
    assert scene.over


# ---------------------------------------------------------------------------------------- ends and places


def test_whoever_dies_is_replaced_with_a_number_that_was_never_used():
    scene = Scene().train()
    scene.crash(0, Cause.DISRUPTED, "was ended by SIGKILL").until(lambda: scene.ring == 2)
    assert scene.launched == [0, 1, 2] and scene.phase is Phase.TRAINING
    assert scene.told("exit") == ["worker 0 was ended by SIGKILL"] and scene.state.keeping.failures == 0


def test_survivors_get_a_head_start():
    scene = Scene(replace(OPTIONS, head_start=3.0)).train().crash(0, Cause.DISRUPTED)
    assert scene.launched == [0, 1]
    scene.wait(2.0)
    assert scene.launched == [0, 1]
    scene.wait(1.5)
    assert scene.launched == [0, 1, 2]


def test_crashes_wait_longer_and_longer_until_the_budget_is_used_up():
    scene = Scene(replace(OPTIONS, crash_budget=2))
    scene.words[2] = "Segmentation fault\n"
    scene.train().crash(0).until(lambda: scene.ring == 2).crash(1).until(lambda: scene.ring == 2).crash(2)
    assert [e.delay for e in scene.events if isinstance(e, events.RelaunchDelayed)] == [1.0, 2.0]
    assert scene.phase is Phase.FAILED
    assert "not more than 2 failures are allowed (--max_worker_crashes)" in scene.state.reason
    assert scene.state.reason.endswith("\nSegmentation fault"), "the end of its log"


def test_while_the_log_is_read_nobody_is_started_and_the_others_go_on():
    scene = Scene(replace(OPTIONS, crash_budget=0)).train()
    actor = scene.actors[0]
    actor.alive = False
    scene.cut(0)
    before = scene.state
    read = []
    perform = scene._perform

    def hold(effect: inbox.Effect) -> None:
        read.append(effect) if isinstance(effect, inbox.ReadLog) else perform(effect)

    scene._perform = hold
    scene.give(inbox.Ended(0, Cause.CRASHED, "exited with 1"))
    assert read == [inbox.ReadLog(0)] and before.phase is scene.phase is Phase.TRAINING
    scene.wait(5)
    assert scene.launched == [0, 1] and scene.phase is Phase.TRAINING
    scene.give(inbox.LogRead(0, "Killed"))
    assert scene.phase is Phase.FAILED and scene.state.reason.endswith("\nKilled")


def test_a_report_that_a_worker_says_again_counts_once():
    scene = Scene().train()
    written, missing = protocol.Checkpointed(5, "ckpt"), protocol.Checkpointed(6, "ckpt", "disk full")
    failed = protocol.Failed(False, "ValueError: no", "story")
    for report in (written, written, missing, missing, failed, failed):
        scene.say(0, report)
    told = [len(scene.told(kind)) for kind in ("checkpoint", "warning", "failure")]
    assert told == [1, 1, 1], scene.story()
    assert scene.state.account.written == 1
    assert "1 of 2 checkpoints" in scene.state.account.remarks


def test_an_older_checkpoint_that_is_told_after_a_newer_one_is_not_the_last():
    scene = Scene().train()
    scene.say(0, protocol.Checkpointed(30, "ckpt/30")).say(1, protocol.Checkpointed(10, "ckpt/10"))
    assert scene.state.checkpoint is not None and scene.state.checkpoint.step == 30


@pytest.mark.parametrize("task_records", [0, 7], ids=["ring", "queue"])
def test_a_worker_of_an_earlier_master_that_is_never_heard_gives_up_its_place(task_records: int):
    scene = Scene(replace(OPTIONS, num_workers=1, task_records=task_records))
    scene.give(inbox.Adopt((0,), (0,), 1, 1))
    scene.wait(OPTIONS.deadlines.rejoin + OPTIONS.deadlines.reunion)
    assert inbox.Kill(0) not in scene.effects and scene.launched == []
    scene.wait(1)
    assert inbox.Kill(0) in scene.effects
    scene.give(inbox.Ended(0, Cause.DISRUPTED, "was ended by SIGKILL")).wait(1)
    assert scene.launched == [1]


def test_the_same_failure_in_the_same_place_is_not_tried_a_third_time():
    scene = Scene()
    scene.script.fails = None
    failed = protocol.Failed(False, "ValueError: odd", "line 7\nValueError: odd", "model.py:7 at step 5")
    scene.train().say(0, failed).crash(0).until(lambda: scene.ring == 2)
    assert scene.phase is Phase.TRAINING
    scene.say(1, failed).crash(1)
    assert scene.phase is Phase.FAILED
    assert "the same failure in the same place" in scene.state.reason
    assert scene.state.reason.endswith("line 7\nValueError: odd")


def test_a_drained_worker_is_replaced_before_it_is_gone():
    scene = Scene().train().say(0, protocol.Draining())
    assert scene.launched == [0, 1, 2], "the place is free already"
    assert scene.told("drain")[0] == "worker 0 drains"


def test_a_worker_that_cannot_be_started_is_no_wait():
    scene = Scene()
    scene.script.broken, scene.script.certain = "No such file or directory: python", True
    scene.start()
    assert scene.phase is Phase.FAILED and "could not be started: No such file" in scene.state.reason


# ---------------------------------------------------------------------------- newcomers that cannot begin


def test_a_newcomer_that_would_train_something_else_is_refused_and_told_once():
    scene = Scene().train()
    scene.script.ready = ODD
    scene.give(inbox.Scale(3)).wait(120)
    assert scene.ring == 2 and scene.phase is Phase.TRAINING
    assert len(scene.launched) > 4, "it is tried again"
    (short,) = scene.told("short")
    assert "differs from the rest and is refused: optimizer (adam, the rest sgd)" in short
    assert "2 of 3 workers: worker" in scene.status.short
    assert len(scene.told("launch")) == 3 and scene.quiet, "tries after the first are the same story"
    (refused,) = {e.cause for e in scene.events if isinstance(e, events.WorkerEvicted)}
    assert refused == "invalid"
    scene.script.ready = READY
    scene.until(lambda: scene.ring == 3).wait(5)
    assert scene.told("newcomers") and scene.status.short == ""
    assert scene.state.keeping.failures == 0, "newcomers do not use up the budget of crashes"


def test_scaling_tries_at_once_what_had_to_wait():
    scene = Scene().train()
    scene.script.broken = "Too many open files"
    scene.give(inbox.Scale(3)).wait(30)
    tries = len(scene.launched)
    scene.script.broken = ""
    scene.give(inbox.Scale(3))
    assert len(scene.launched) == tries + 1
    assert scene.until(lambda: scene.ring == 3)


def test_when_nobody_is_left_the_job_fails_after_a_few_newcomers_with_its_last_checkpoint():
    scene = Scene().train().say(0, protocol.Checkpointed(40, "ckpt/version-40"))
    scene.script.fails = MISSING
    scene.crash(0, Cause.DISRUPTED).crash(1, Cause.DISRUPTED).wait(60)
    assert scene.phase is Phase.FAILED
    assert "nobody trains any more, and 3 newcomers in a row could not begin" in scene.state.reason
    assert "step 40 is in ckpt/version-40" in scene.state.reason
    assert scene.state.reason.splitlines()[-1] == "DataError: no such file"


# -------------------------------------------------------------------------- lost workers are not replaced


def test_with_disable_relaunch_a_lost_worker_is_not_replaced():
    scene = Scene(replace(OPTIONS, num_workers=3, relaunch=False)).train()
    scene.crash(1, Cause.DISRUPTED).wait(60)
    assert scene.launched == [0, 1, 2] and scene.ring == 2 and scene.phase is Phase.TRAINING
    (told,) = scene.told("relaunch")
    assert told == "lost workers are not replaced (--aux_params=disable_relaunch=true); 2 go on"
    scene.say(2, protocol.Draining()).wait(60)
    assert scene.launched == [0, 1, 2], "nor one that was drained from outside"


def test_with_disable_relaunch_too_few_workers_end_the_job():
    scene = Scene(replace(OPTIONS, num_workers=3, min_workers=2, relaunch=False)).train()
    scene.crash(1, Cause.DISRUPTED).crash(2, Cause.DISRUPTED)
    assert scene.phase is Phase.FAILED
    assert "disable_relaunch=true), and 1 of at least 2 workers are left" in scene.state.reason


def test_with_disable_relaunch_whoever_scales_gets_what_he_asks_for():
    scene = Scene(replace(OPTIONS, relaunch=False)).train().crash(0, Cause.DISRUPTED)
    scene.give(inbox.Scale(3)).until(lambda: scene.ring == 3)
    assert scene.launched == [0, 1, 2, 3]
    scene.crash(1, Cause.DISRUPTED).wait(30)
    assert len(scene.launched) == 4


def test_with_disable_relaunch_a_restarted_master_starts_nobody():
    scene = Scene(replace(OPTIONS, num_workers=3, relaunch=False, recover_until=1020.0))
    scene.give(inbox.Adopt((1, 2), (1, 2), 3, 3)).wait(60)
    assert scene.launched == []


# -------------------------------------------------------------------------------------------- connections


def test_a_reconnect_before_the_end_was_noticed_is_the_same_member():
    scene = Scene().train()
    old = scene.actors[0].link
    scene.connect(0)
    assert inbox.HangUp(old) in scene.effects
    scene.give(inbox.HungUp("uid-0", old)).wait(30)
    assert scene.ring == 2 and scene.launched == [0, 1] and scene.phase is Phase.TRAINING


def test_what_was_said_over_an_old_connection_is_stale_unless_it_is_a_fact():
    scene = Scene().train()
    old, generation = scene.actors[0].link, scene.status.generation
    scene.connect(0)
    scene.give(inbox.Heard("uid-0", old, protocol.Done(generation, 9999)))
    assert scene.phase is Phase.TRAINING and scene.status.step != 9999
    scene.give(inbox.Heard("uid-0", old, protocol.Checkpointed(40, "ckpt/version-40")))
    assert scene.status.checkpoint.path == "ckpt/version-40"


def test_rings_of_one_that_did_not_form_are_not_held_against_the_next_newcomer():
    scene = Scene(replace(OPTIONS, num_workers=0))
    scene.script.prepares = False
    scene.comes(0).freeze(0)
    scene.script.prepares = scene.actors[0].script.prepares = True
    for _ in range(5):
        scene.connect(0)  # its ring is planned anew each time, and it never entered one
    assert scene.told("plan")[-1].startswith("generation 5: workers 0")
    scene.comes(1).thaw(0).wait(10)
    assert scene.ring == 2 and not scene.told("evict")


def test_whoever_does_not_come_back_is_evicted_as_silent_and_replaced():
    scene = Scene().train().cut(0)
    scene.freeze(0)
    scene.until(lambda: scene.told("evict"))
    (evicted,) = [e for e in scene.events if isinstance(e, events.WorkerEvicted)]
    assert evicted.worker_id == 0 and evicted.cause == "silent"
    assert scene.until(lambda: scene.ring == 2).launched == [0, 1, 2]


def test_whoever_stays_in_user_code_for_too_long_is_evicted_as_stuck():
    scene = Scene().train()
    actor = scene.actors[1]
    actor.frozen = True  # the test speaks for it
    for _ in range(200):
        scene.now += 0.5
        scene.say(1, protocol.Pulse(Activity.COMPUTING, scene.status.generation, 3, 30, 0.5, 0.1))
        scene.say(0, protocol.Pulse(Activity.REDUCING, scene.status.generation, 3, 30, 0.5, 0.1))
        scene.give(inbox.Tick())
        if scene.told("evict"):
            break
    (evicted,) = [e for e in scene.events if isinstance(e, events.WorkerEvicted)]
    assert (evicted.worker_id, evicted.cause) == (1, "stuck")


def test_whoever_is_turned_out_with_the_model_gets_time_to_keep_what_it_has():
    scene = Scene().train().freeze(1)
    scene.until(lambda: scene.told("evict"))
    assert inbox.Terminate(1) in scene.effects and inbox.Kill(1) not in scene.effects
    ring = scene.state.work
    assert isinstance(ring, Ring)
    assert [m.seat.worker_id for m in ring.members.alive()] == [0], "it is not waited for"
    scene.wait(OPTIONS.deadlines.failure_detection - 1)
    assert inbox.Kill(1) not in scene.effects and 1 in scene.alive
    scene.wait(2)
    assert scene.effects.count(inbox.Kill(1)) == 1 and 1 not in scene.alive, "a frozen one is killed"
    scene.until(lambda: scene.ring == 2)


def test_whoever_ends_when_it_is_turned_out_is_not_killed():
    scene = Scene().train().freeze(1)
    scene.until(lambda: scene.told("evict")).thaw(1)
    assert 1 not in scene.alive and isinstance(scene.actors[1].heard[-1], protocol.Evicted)
    scene.wait(2 * OPTIONS.deadlines.failure_detection)
    assert inbox.Kill(1) not in scene.effects
    assert scene.told("exit") == ["worker 1 was evicted"] and scene.ring == 2


def test_what_a_worker_says_after_it_was_turned_out_counts_for_nothing():
    scene = Scene().train().freeze(1)
    link = scene.actors[1].link
    scene.until(lambda: scene.told("evict"))
    scene.give(inbox.Heard("uid-1", link, protocol.Draining()))
    assert not scene.told("drain") and not scene.state.slots[1].draining


def test_a_newcomer_that_is_turned_out_has_nothing_to_keep():
    scene = Scene(replace(OPTIONS, num_workers=1)).train()
    scene.script.prepares = False
    scene.give(inbox.Scale(2)).freeze(1)
    scene.until(lambda: scene.told("evict"))
    assert inbox.Kill(1) in scene.effects and inbox.Terminate(1) not in scene.effects


def test_a_worker_whose_release_was_lost_is_released_when_it_returns():
    scene = Scene(steps=50).train()
    scene.actors[1].script.deaf = True
    scene.until(lambda: scene.phase is Phase.SUCCEEDED, every=0.1)
    scene.actors[1].script.deaf = False
    scene.cut(1).connect(1)
    assert scene.actors[1].heard[-1] == protocol.Release()
    scene.comes(7)
    assert scene.actors[7].heard == [protocol.Evicted("the job is over")]


def test_an_evicted_worker_is_turned_away_when_it_returns():
    scene = Scene().train()
    scene.freeze(0)
    scene.until(lambda: scene.told("evict"))
    scene.actors[0].frozen, scene.actors[0].alive = False, True
    scene.connect(0)
    assert scene.actors[0].heard[-1] == protocol.Evicted("the ring went on without this worker")
    assert "uid-0" not in scene.state.peers


def test_two_workers_with_one_number_are_not_confused():
    scene = Scene(replace(OPTIONS, num_workers=0)).comes(3)
    first = scene.actors[3]
    scene.comes(3, uid="other")
    assert scene.actors[3].heard == [
        protocol.Evicted("there is another worker 3; choose another --worker_id")
    ]
    assert scene.state.peers.keys() == {first.uid}


def test_another_version_is_turned_away_with_a_word():
    scene = Scene(replace(OPTIONS, num_workers=0))
    hello = replace(protocol.Hello(protocol.Seat("u", 0, "host")), protocol=1, version="0.1")
    scene.give(inbox.Connected(hello, 1))
    (sent,) = [e for e in scene.effects if isinstance(e, inbox.Send)]
    assert "the worker speaks protocol 1 (version 0.1)" in sent.message.reason


def test_a_master_that_was_held_up_itself_calls_nobody_silent():
    scene = Scene().train().wait(5)
    scene.now += 300  # nothing was heard meanwhile, nor read
    scene.give(inbox.Tick()).wait(5)
    assert not scene.told("evict") and scene.ring == 2


@pytest.mark.parametrize("first", ["tick", "a worker"])
def test_a_machine_that_slept_with_all_its_workers_goes_on_with_them(first):
    """Their heartbeats come a while after the master's first looks at the clock."""
    scene = Scene().train().wait(5)
    scene.now += 3000
    if first == "a worker":
        scene.cut(1)
    for _ in range(5):
        scene.give(inbox.Tick())
        scene.now += 0.1
    if first == "a worker":
        scene.connect(1)
    scene.wait(30)
    assert not scene.told("evict") and scene.ring == 2 and scene.state.progress.losses == 0


def test_what_was_refused_before_a_nap_and_who_was_started_before_that_keep_their_order():
    """Who was started before a refusal does not show that newcomers can begin again."""
    scene = Scene().train().wait(5)
    keeping = replace(scene.state.keeping, refusals=1, refused_at=scene.now)
    scene.state = replace(scene.state, keeping=keeping)
    scene.now += 300
    scene.give(inbox.Tick())
    assert max(slot.launched for slot in scene.state.slots.values()) > keeping.refused_at, "it slept"
    assert all(slot.launched < scene.state.keeping.refused_at for slot in scene.state.slots.values())


def test_who_is_silent_between_the_naps_of_a_master_is_evicted_all_the_same():
    scene = Scene().train().wait(5)
    scene.freeze(1)
    for _ in range(200):
        scene.now += 5.0  # longer than a heartbeat: a nap
        scene.give(inbox.Tick())
        scene.wait(1.0)
        if scene.told("evict"):
            break
    assert "worker 1 sent no heartbeat" in scene.told("evict")[0]


# ------------------------------------------------------------------------------------------------ results


def finished() -> Scene:
    """Both hold the final model, and the first is asked to write it, but hears nothing."""
    scene = Scene().train()
    scene.actors[0].script.deaf = True
    for number in (0, 1):
        scene.say(number, protocol.Done(scene.status.generation, 100, position=1000, loss=0.1))
    assert scene.phase is Phase.FINISHING and scene.state.ending.exporter == "uid-0"
    return scene


def test_when_the_writer_of_the_result_dies_the_next_one_writes_it():
    scene = finished().crash(0, Cause.DISRUPTED)
    assert scene.phase is Phase.SUCCEEDED and scene.state.ending.path == "model.keras"


def test_the_order_to_write_is_said_again_to_a_writer_that_returns():
    scene = finished().cut(0)
    scene.actors[0].script.deaf = False
    scene.connect(0)
    assert protocol.Export() in scene.actors[0].heard and scene.phase is Phase.SUCCEEDED


def test_a_writer_that_stays_away_is_not_waited_for_for_ever():
    scene = finished().cut(0)
    scene.freeze(0)
    scene.wait(60)
    assert scene.phase is Phase.SUCCEEDED, "the other one wrote it"


def test_when_all_who_hold_the_result_are_lost_the_job_failed():
    scene = finished()
    scene.actors[1].script.deaf = True
    scene.crash(0).crash(1)
    assert scene.phase is Phase.FAILED and "had the final model was lost" in scene.state.reason


def test_a_checkpoint_that_was_asked_for_and_is_not_there_fails_the_job():
    scene = finished().say(0, protocol.Checkpointed(50, "ckpt", "disk full"))
    scene.say(0, protocol.Exported("model.keras"))
    assert scene.phase is Phase.FAILED and "no checkpoint could be written" in scene.state.reason
    assert scene.told("warning") == [
        "worker 0: the checkpoint of step 50 could NOT be written to ckpt: disk full"
    ]


# ------------------------------------------------------------------------------------------------ restarts


def test_a_restarted_master_takes_over_the_ring_and_shows_that_it_trains():
    first = Scene().train().wait(20)
    second = Scene(replace(OPTIONS, recover_until=first.now + 20), now=first.now)
    second.actors = first.actors
    second.give(inbox.Adopt((0, 1), (0, 1), 2, 2))
    for number in (0, 1):
        second._links = 100 + number
        second.connect(number).wait(1)
    assert second.phase is Phase.TRAINING and second.ring == 2 and second.launched == []
    second.wait(60)
    assert not second.told("plan"), "the ring goes on as it is"
    second.crash(0, Cause.DISRUPTED).until(lambda: second.ring == 2)
    assert second.launched == [2]
    assert second.status.generation >= 1000, "numbers that an earlier master may have used are left free"


def test_whoever_holds_the_model_is_right_about_what_is_trained():
    scene = Scene(replace(OPTIONS, recover_until=1005.0)).give(inbox.Adopt((0, 1), (1,), 2, 2))
    scene.script.ready = ODD
    scene.comes(0)
    scene.script.ready = READY
    scene.script.prepares = False
    scene.comes(1)
    scene.actors[1].has_state, scene.actors[1].generation, scene.actors[1].script.prepares = True, 1, True
    scene.connect(1)
    assert scene.told("evict")[0].startswith("worker 0 differs from the rest and is refused: optimizer")


def test_steps_that_are_lost_with_the_model_are_told_and_counted():
    scene = Scene().train().wait(20)
    reached = scene.status.step
    assert reached > 100
    scene.script.prepares = False
    scene.crash(0, Cause.DISRUPTED).crash(1, Cause.DISRUPTED)
    for number in (2, 3):
        scene.actors[number].script.prepares = True
        scene.prepare(number)
    scene.until(lambda: scene.ring == 2)
    (told,) = scene.told("set-back")
    assert f"from step 0 instead of {reached}, {reached} steps are made again" in told
    assert scene.status.tally.set_back == reached
    scene.script.prepares = True
    scene.crash(2, Cause.DISRUPTED).until(lambda: scene.ring == 2)
    assert len(scene.told("set-back")) == 1, "a survivor kept the model"


# --------------------------------------------------------------------------------------------------- tasks


PULLED = replace(OPTIONS, task_records=30)


def test_tasks_are_given_out_counted_once_and_concluded():
    scene = Scene(PULLED).start()
    assert scene.phase is Phase.SUCCEEDED and scene.state.reason == "100 records"
    assert scene.told("tasks") == ["100 records in 4 tasks, model of step 0"]
    assert scene.told("evaluation") == ["Evaluation metrics[step=0]: {'total': 4}"]
    assert scene.status.counts == "task" and scene.status.step == scene.status.total_steps == 4


def test_a_lost_workers_task_is_done_by_another():
    scene = Scene(PULLED)
    scene.script.deaf = True
    scene.start()
    scene.actors[1].script.deaf = False
    scene.script.deaf = False
    scene.crash(0, Cause.DISRUPTED).crash(1, Cause.DISRUPTED).wait(5)
    assert scene.phase is Phase.SUCCEEDED
    assert [(e.worker_id, e.tasks) for e in scene.events if isinstance(e, events.TasksGivenAgain)] == [
        (0, 1),
        (1, 1),
    ]


@pytest.mark.parametrize("noticed", [True, False])
def test_a_worker_that_reconnects_while_it_works_keeps_its_task(noticed: bool):
    scene = Scene(replace(PULLED, num_workers=1))
    scene.script.prepares = False
    scene.start().freeze(0)
    scene.actors[0].script.prepares = True
    scene.prepare(0)  # its first task is given to it, and takes a while
    if noticed:
        scene.cut(0)
    scene.connect(0)
    given = [m for m in scene.actors[0].heard if isinstance(m, protocol.DoTask)]
    assert [(task.number, task.attempt) for task in given] == [(0, 1)]
    scene.thaw(0)
    assert scene.phase is Phase.SUCCEEDED
    given = [m for m in scene.actors[0].heard if isinstance(m, protocol.DoTask)]
    assert [(task.number, task.attempt) for task in given] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_a_worker_whose_task_another_one_got_meanwhile_has_one_lease_at_a_time():
    scene = Scene(replace(PULLED, num_workers=2))
    scene.script.prepares = False
    scene.start().freeze(0).freeze(1)
    for number in (0, 1):
        scene.actors[number].script.prepares = True
    scene.prepare(0).cut(0).prepare(1)  # worker 1 gets what worker 0 works on
    assert next(m for m in scene.actors[1].heard if isinstance(m, protocol.DoTask)).attempt == 2
    scene.connect(0).thaw(0).thaw(1)  # the scene checks that nobody has two
    assert scene.phase is Phase.SUCCEEDED
    assert scene.told("evaluation") == ["Evaluation metrics[step=0]: {'total': 4}"]


def test_a_worker_that_does_not_come_back_loses_its_place():
    scene = Scene(PULLED)
    scene.script.deaf = True
    scene.start().cut(0)
    scene.freeze(0)
    scene.wait(70)
    (evicted,) = [e for e in scene.events if isinstance(e, events.WorkerEvicted)]
    assert evicted.cause == "silent" and "did not come back within 60 s" in evicted.reason


def test_data_without_records_is_said_to_have_none():
    scene = Scene(PULLED)
    scene.script.ready = replace(READY, records=0)
    assert scene.start().phase is Phase.FAILED and "no records" in scene.state.reason


def test_until_the_ring_of_a_plan_begins_the_job_is_said_to_change():
    scene = Scene().train().wait(2)
    assert not scene.status.changing
    before = scene.status.step
    scene.script.deaf = True
    for actor in scene.actors.values():
        actor.script.deaf = True  # the plan takes long to reach them
    scene.give(inbox.Scale(3)).until(lambda: scene.ring == 3).wait(2)
    assert scene.status.changing and scene.status.step > before, "the ring before it trains on"
    for actor in scene.actors.values():
        actor.script.deaf = False
    plan = scene.state.work.members.plan
    for actor in scene.actors.values():
        scene._follow(actor, plan)
    scene.wait(1)
    assert not scene.status.changing and scene.ring == 3


def test_a_ring_that_was_taken_over_does_not_change_although_newer_plans_were_heard_of():
    scene = Scene(replace(OPTIONS, recover_until=1020.0))
    plan = protocol.Plan(7, tuple(protocol.Seat(f"uid-{i}", i, "host") for i in range(2)))
    scene.give(inbox.Adopt((0, 1), (0, 1), 2, 2))
    for number in range(2):
        scene.script.prepares = False
        actor = scene.comes(number).actors[number]
        actor.plan, actor.generation, actor.joined, actor.has_state = plan, 9, True, True
        actor.step, actor.ready = 50, True
        scene.connect(number)
    scene.wait(2)
    assert scene.ring == 2 and scene.status.generation == 9, "of the plan that nobody follows"
    assert scene.status.step > 50 and not scene.status.changing
