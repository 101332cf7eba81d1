"""A job over time, from its events alone."""

from __future__ import annotations

import itertools

import pytest

from edl_allreduce.core import events
from edl_allreduce.core.goodput import ReformCause
from edl_allreduce.core.timeline import Doing, Timeline, timeline
from edl_allreduce.testing.scene import Scene

from .builders import BEGAN, history, long_history

BEGINNING = (
    (0.0, events.WorkerLaunched(0)),
    (0.0, events.WorkerLaunched(1)),
    (1.0, events.WorkerConnected(0, "node-a")),
    (4.0, events.WorkerReady(0)),
    (5.0, events.WorkerReady(1)),
    (5.0, events.RingPlanned(1, (0, 1), False, "all are ready")),
)
KILLED = (
    (20.0, events.WorkerExited(1, "disrupted", "was ended by SIGKILL")),
    (20.0, events.RingPlanned(2, (0,), True, "worker 1 was ended by SIGKILL")),
    (20.1, events.RingReformed(0, 2, 1, 0.1, 0.1, 0.1, 0.05, 0.05)),
)


def spans(made: Timeline, worker_id: int) -> list[tuple[Doing, float, float | None]]:
    found = sorted((s for s in made.since(0).spans if s.worker_id == worker_id), key=lambda s: s.number)
    return [
        (s.doing, round(s.begin - BEGAN, 3), None if s.end is None else round(s.end - BEGAN, 3))
        for s in found
    ]


def test_a_worker_starts_waits_trains_pauses_and_goes_on():
    made = timeline(history(*BEGINNING, *KILLED))
    assert spans(made, 0) == [
        (Doing.STARTING, 0.0, 4.0),
        (Doing.READY, 4.0, 5.0),
        (Doing.TRAINING, 5.0, 19.7),
        (Doing.PAUSED, 19.7, 20.1),
        (Doing.TRAINING, 20.1, None),
    ]


def test_who_is_gone_does_nothing_and_its_lane_says_how_it_ended():
    made = timeline(history(*BEGINNING, *KILLED))
    assert spans(made, 1)[-1] == (Doing.TRAINING, 5.0, 20.0)
    lane = next(lane for lane in made.since(0).lanes if lane.worker_id == 1)
    assert (lane.end, lane.how) == (BEGAN + 20.0, "was ended by SIGKILL")


def test_a_pause_has_its_cause_its_reason_and_the_phases_of_each_survivor():
    (pause,) = timeline(history(*BEGINNING, *KILLED)).since(0).pauses
    assert (pause.generation, pause.cause, pause.size) == (2, ReformCause.LOSS, 1)
    assert pause.went == (1,) and pause.seconds == pytest.approx(0.4)
    assert [(one.worker_id, one.notice) for one in pause.survivors] == [(0, 0.1)]


def test_a_newcomer_waits_until_the_first_step_with_it_is_over():
    came = (
        (30.0, events.WorkerLaunched(2)),
        (34.0, events.WorkerReady(2)),
        (34.5, events.RingPlanned(3, (0, 2), False, "worker 2 is ready")),
        (35.0, events.RingReformed(0, 3, 2, 0.0, 0.0, 0.1, 0.1, 0.1)),
    )
    made = timeline(history(*BEGINNING, *KILLED, *came))
    assert spans(made, 2) == [
        (Doing.STARTING, 30.0, 34.0),
        (Doing.READY, 34.0, 35.0),
        (Doing.TRAINING, 35.0, None),
    ]
    assert made.since(0).pauses[-1].cause is ReformCause.GROWTH


def test_the_ring_has_a_size_at_every_moment_and_none_when_the_job_is_over():
    over = (40.0, events.JobEnded("Succeeded", "50 steps"))
    made = timeline(history(*BEGINNING, *KILLED, over))
    assert [(size.moment - BEGAN, size.size) for size in made.since(0).ring] == [(5, 2), (20, 1), (40, 0)]
    assert not [span for span in made.since(0).spans if span.end is None]


def test_after_a_lost_master_numbers_are_used_again_and_nobody_trained_meanwhile():
    again = [(60.0 + after, event) for after, event in BEGINNING]
    made = timeline(history(*BEGINNING, (50.0, events.MasterReturned()), *again))
    assert spans(made, 0) == [
        (Doing.STARTING, 0.0, 4.0),
        (Doing.READY, 4.0, 5.0),
        (Doing.TRAINING, 5.0, 50.0),
        (Doing.STARTING, 60.0, 64.0),
        (Doing.READY, 64.0, 65.0),
        (Doing.TRAINING, 65.0, None),
    ]
    assert [size.size for size in made.since(0).ring] == [2, 0, 2]
    assert not made.since(0).pauses


def test_who_looks_again_gets_only_what_changed():
    made = timeline(history(*BEGINNING))
    last = len(BEGINNING)
    assert made.since(last).spans == ()
    for one in history(*BEGINNING, *KILLED)[last:]:
        made.add(one)
    changed = made.since(last)
    assert [(span.worker_id, span.doing) for span in changed.spans if span.end is None] == [
        (0, Doing.TRAINING)
    ]
    assert [pause.generation for pause in changed.pauses] == [2]
    assert [lane.worker_id for lane in changed.lanes] == [1]


def test_pieces_that_are_put_together_are_the_whole():
    """A page that is told every change knows the same as one that is opened late."""
    made, known = Timeline(), {}
    seen = 0
    for one in long_history(workers=5, count=400):
        made.add(one)
        if one.serial % 7 == 0:
            known |= {(span.worker_id, span.number): span for span in made.since(seen).spans}
            seen = one.serial
    known |= {(span.worker_id, span.number): span for span in made.since(seen).spans}
    assert known == {(span.worker_id, span.number): span for span in made.since(0).spans}


def test_the_spans_of_a_worker_leave_no_gap_and_do_not_overlap():
    made = timeline(long_history(workers=4, count=300))
    for lane in made.since(0).lanes:
        own = sorted(
            (s for s in made.since(0).spans if s.worker_id == lane.worker_id), key=lambda s: s.number
        )
        assert [span.number for span in own] == list(range(len(own)))
        assert own[0].begin == lane.begin
        for before, after in itertools.pairwise(own):
            assert before.end == after.begin and before.begin <= after.begin


def test_a_played_job_with_a_death_becomes_a_timeline():
    """The events of the real machine, not those that a test made up."""
    scene = Scene().train()
    scene.crash(1)
    scene.until(lambda: scene.ring == 2)
    made = timeline(history(*((float(at), event) for at, event in enumerate(scene.events))))
    assert {lane.worker_id for lane in made.since(0).lanes} == {0, 1, 2}
    assert spans(made, 1)[-1][2] is not None
    assert [size.size for size in made.since(0).ring][-3:] == [2, 1, 2]


def test_a_job_that_never_ends_is_remembered_in_part_and_the_living_are_not_forgotten():
    made = Timeline(most=200)
    for one in long_history(workers=4, count=3000):
        made.add(one)
    kept = made.since(0)
    assert len(kept.lanes) + len(kept.spans) + len(kept.pauses) + len(kept.ring) <= 210, "or a few more"
    living = {lane.worker_id for lane in kept.lanes if lane.end is None}
    assert {span.worker_id for span in kept.spans if span.end is None} == living and len(living) == 4
