"""Who must be replaced, judged from heartbeats alone."""

from __future__ import annotations

import pytest

from edl_allreduce.core.deadlines import ALONE_FACTOR, Deadlines
from edl_allreduce.core.health import Activity, Pulse, Verdict, judge

DEADLINES = Deadlines(10.0)
COMPUTING, REDUCING, IDLE = Activity.COMPUTING, Activity.REDUCING, Activity.IDLE
NOW = 10_000.0


def doing(activity: Activity, seconds: float, *, step: int = 7, heard: float = 0.0) -> Pulse:
    """A worker that has been at the same thing for so long, last heard `heard` seconds ago."""
    return Pulse(NOW - heard, activity, step, since=NOW - seconds)


def verdicts(usual_step: float = 0.1, holders: str = "", **pulses: Pulse) -> list[Verdict]:
    """`other` is a worker that is heard, so that the silence of the rest says something about them."""
    return judge({**pulses, "other": doing(IDLE, 1)}, NOW, DEADLINES, usual_step, frozenset(holders))


def test_whoever_works_and_is_heard_is_left_alone() -> None:
    assert verdicts(a=doing(COMPUTING, 5), b=doing(REDUCING, 5), c=doing(IDLE, 5000)) == []


def test_a_worker_that_is_not_heard_is_named_as_silent_whatever_it_did() -> None:
    for activity in set(Activity) - {Activity.PREPARING}:
        found = verdicts(a=doing(activity, 1, heard=10.5))
        assert found == [Verdict("a", False, "sent no heartbeat for 10.5 s (frozen, or its network is cut)")]


def test_a_worker_that_imports_may_be_silent_for_longer() -> None:
    """A large import holds Python's lock, and no heartbeat gets out."""
    limit = DEADLINES.silent_import
    assert limit > DEADLINES.silent
    assert verdicts(a=doing(Activity.PREPARING, limit, heard=limit)) == []
    assert [v.uid for v in verdicts(a=doing(Activity.PREPARING, 1, heard=limit + 1))] == ["a"]


def test_whoever_hears_nobody_doubts_itself_first() -> None:
    """The master's own network is cut, its machine is busy, or all workers were frozen for a moment."""
    for silent in (10.5, DEADLINES.reunion):
        last = silent - DEADLINES.heartbeat  # the heartbeats of several workers do not come at once
        pulses = {name: doing(COMPUTING, silent, heard=silent) for name in "ab"}
        pulses["c"] = doing(COMPUTING, last, heard=last)
        assert judge(pulses, NOW, DEADLINES, 0.1, frozenset("abc")) == []
    late = DEADLINES.reunion + 1
    pulses = {name: doing(COMPUTING, late, heard=late) for name in "abc"}
    assert len(judge(pulses, NOW, DEADLINES, 0.1, frozenset("abc"))) == 3


def test_the_last_that_hold_the_model_are_given_up_last() -> None:
    silent = {name: doing(COMPUTING, 11, heard=11) for name in "ab"}
    assert verdicts(holders="ab", **silent) == [], "a newcomer is heard, but it has nothing"
    assert [v.uid for v in verdicts(holders="abc", **silent, c=doing(COMPUTING, 1))] == ["a", "b"]


def test_a_heartbeat_just_in_time_counts() -> None:
    assert verdicts(a=doing(COMPUTING, 1, heard=10.0)) == []


def test_a_rank_in_user_code_for_whom_others_wait_too_long_is_stuck() -> None:
    found = verdicts(a=doing(COMPUTING, 61), b=doing(REDUCING, 61), c=doing(REDUCING, 61))
    reason = "has been in user code of step 7 for 61.0 s, and others have waited for 61.0 s"
    assert found == [Verdict("a", True, reason)]


def test_whoever_waits_in_a_collective_is_never_the_one_to_blame() -> None:
    assert verdicts(a=doing(REDUCING, 5000), b=doing(REDUCING, 5000)) == []


def test_a_rank_for_whom_nobody_waits_gets_far_longer() -> None:
    assert verdicts(a=doing(COMPUTING, 599)) == []
    assert verdicts(a=doing(COMPUTING, 601)) == [
        Verdict("a", True, "has been in user code of step 7 for 601.0 s")
    ]


def test_a_job_of_long_steps_gets_time_in_proportion() -> None:
    assert verdicts(usual_step=30.0, a=doing(COMPUTING, 610), b=doing(REDUCING, 590)) == []
    assert len(verdicts(usual_step=30.0, a=doing(COMPUTING, 630), b=doing(REDUCING, 610))) == 1


def test_a_long_step_of_all_ranks_is_not_the_last_ones_fault() -> None:
    """What counts is how long others have waited for it, not how long the step took everybody."""
    assert verdicts(a=doing(COMPUTING, 300), b=doing(REDUCING, 10)) == []


def test_others_that_wait_since_before_this_step_began_do_not_count_against_it() -> None:
    assert verdicts(a=doing(COMPUTING, 5), b=doing(REDUCING, 300)) == []


def test_a_worker_that_prepares_for_ever_is_named() -> None:
    assert verdicts(a=doing(Activity.PREPARING, 599)) == []
    assert verdicts(a=doing(Activity.PREPARING, 601)) == [
        Verdict("a", True, "has not finished its preparations after 601.0 s")
    ]


def test_every_worker_that_must_go_is_named_at_once() -> None:
    found = verdicts(
        a=doing(COMPUTING, 70), b=doing(COMPUTING, 70, heard=70), c=doing(REDUCING, 70), d=doing(COMPUTING, 1)
    )
    assert [(v.uid, v.stuck) for v in found] == [("a", True), ("b", False)]


def test_a_pulse_remembers_since_when_it_tells_the_same() -> None:
    pulse = Pulse(heard=100.0)
    assert pulse.begun == 100.0, "a worker that was only just met is not accused of the time before"
    pulse = pulse.beat(Activity.PREPARING, 0, 102.0).beat(Activity.PREPARING, 0, 104.0)
    assert (pulse.heard, pulse.begun) == (104.0, 100.0)
    pulse = pulse.beat(COMPUTING, 3, 106.0).beat(COMPUTING, 3, 108.0)
    assert (pulse.heard, pulse.begun) == (108.0, 106.0)
    pulse = pulse.beat(COMPUTING, 4, 110.0)
    assert pulse.begun == 110.0, "the next step is something new"
    pulse = pulse.beat(COMPUTING, 4, 112.0, done=1).beat(COMPUTING, 4, 114.0, done=1)
    assert pulse.begun == 112.0, "and so is the next piece of a long one"


# -------------------------------------------------------------------------------------------- deadlines


def test_every_deadline_follows_from_one_setting() -> None:
    for seconds in (0.5, 1.0, 10.0, 120.0):
        d = Deadlines(seconds)
        assert d.heartbeat * 5 == pytest.approx(d.silent)
        assert d.silent == seconds
        assert d.silent < d.rejoin, "a member has time to find the new master"
        assert d.collective > d.silent, "the master orders an abort before Horovod gives up by itself"
        assert d.stuck(0.0) > d.collective, "user code gets more time than a silent process"
        assert d.stuck(0.0, alone=True) == ALONE_FACTOR * d.stuck(0.0)
        assert d.prepare >= 600


def test_horovod_gets_whole_seconds_and_never_none() -> None:
    assert Deadlines(0.1).collective == 2
    assert Deadlines(1.1).collective == 4
    assert isinstance(Deadlines(10.0).collective, int)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_deadline_of_nothing_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="failure_detection_seconds must be positive"):
        Deadlines(seconds)
