"""Hypothesis drives a whole job: the job's machine as the master, and the real machines of its workers.

Commands (scale, stop, kill), ends that the cluster tells, connections that break at any point, masters that
are killed, drains, freezes and kills. The world checks every promise at every event; at the end no more
faults happen, and then the job must come to its end by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import Phase as Search
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.job import inbox
from edl_allreduce.core.job.lifecycle import FINAL, Phase
from edl_allreduce.core.job.state import JobOptions
from edl_allreduce.testing.job_world import JobWorld
from edl_allreduce.testing.world import Doing


def job_world(wanted: int = 2, minimum: int = 1, steps: int = 3, head_start: float = 0.0) -> JobWorld:
    options = JobOptions("job", wanted, minimum, 1.0, Deadlines(10.0), crash_budget=3, head_start=head_start)
    return JobWorld(options, steps=steps)


def trains(wanted: int, steps: int) -> JobWorld:
    """A job whose first ring trains."""
    world = job_world(wanted, steps=steps)
    while not all(w.doing is Doing.TRAINING for w in world.workers.values()):
        world.do(*world.enabled()[0])
    return world


class WholeJob(RuleBasedStateMachine):
    """Everything that people, a cluster and a network may do to a job."""

    world: JobWorld

    @initialize(
        wanted=st.integers(1, 3),
        minimum=st.sampled_from([1, 1, 2]),
        steps=st.integers(1, 6),
        warm=st.booleans(),
    )
    def begin(self, wanted: int, minimum: int, steps: int, warm: bool) -> None:
        self.world = job_world(wanted, min(minimum, wanted), steps)
        for turn in range(200 * warm):  # most trouble is in and around a ring that trains
            if any(w.doing is Doing.TRAINING for w in self.world.workers.values()):
                break
            self._things_go_on([turn])

    def _things_go_on(self, picks: Iterable[int]) -> None:
        for pick in picks:
            actions = self.world.enabled()
            self.world.do(*actions[pick % len(actions)] if actions else ("tick",))

    @rule(picks=st.lists(st.integers(0, 20), min_size=4, max_size=12))
    def things_take_their_course(self, picks: list[int]) -> None:
        self._things_go_on(picks)

    @rule(verb=st.sampled_from(["kill", "drain", "freeze", "cut off"]), number=st.integers(0, 5))
    def a_worker_is_hit(self, verb: str, number: int) -> None:
        # A process that freezes before it says hello is like one that waits for a node: nobody can tell.
        meets = verb not in ("cut off", "freeze")
        up = [w.uid for w in self.world.workers.values() if w.up and (meets or (w.connected and w.attended))]
        if up:
            self.world.do(verb, up[number % len(up)])

    @rule(count=st.integers(1, 4))
    def somebody_scales_the_job(self, count: int) -> None:
        self.world.command(inbox.Scale(max(count, self.world.job.options.min_workers)))

    @rule()
    def somebody_stops_the_job(self) -> None:
        self.world.command(inbox.Stop("enough"))

    @rule(sure=st.sampled_from([False, False, False, True]))
    def somebody_kills_the_job(self, sure: bool) -> None:
        if sure:
            self.world.command(inbox.KillAll())

    @precondition(lambda self: self.world.restarts < 2 and self.world.job.phase not in FINAL)
    @rule()
    def the_master_restarts(self) -> None:
        self.world.do("restart")

    @rule(verb=st.sampled_from(["tick", "long tick"]))
    def time_passes(self, verb: str) -> None:
        self.world.do(verb)

    def teardown(self) -> None:
        if hasattr(self, "world") and not self.world.failed:
            self.world.settle()


WholeJob.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=20,
    deadline=None,
    phases=set(Search) - {Search.explain},  # it takes minutes; the world tells its story anyway
)
TestWholeJob = pytest.mark.search(WholeJob.TestCase)


def test_without_faults_a_job_trains_writes_its_result_and_ends() -> None:
    world = job_world(wanted=3, steps=5)
    world.settle()
    assert world.job.phase is Phase.SUCCEEDED
    assert len(world.plans) == 1, world.story
    assert world.job.ending.path == "model"


def test_a_stop_outlives_the_master_that_was_told() -> None:
    world = trains(wanted=2, steps=50)
    world.command(inbox.Stop("enough"))
    world.do("read", "u0")  # only one of them hears of it
    world.do("restart")
    world.settle()
    assert world.job.phase is Phase.STOPPED
    assert world.job.progress.place.step < 50


def test_a_stop_before_the_ring_reports_to_a_new_master_waits_for_the_model() -> None:
    world = trains(wanted=2, steps=50)
    world.do("restart")
    world.command(inbox.Stop("enough"))
    assert world.job.phase is Phase.STARTING
    world.settle()
    assert world.job.phase is Phase.STOPPED
    assert world.job.ending.path == "model"


def test_a_newcomer_that_knows_of_a_stop_does_not_end_the_job_of_a_new_master() -> None:
    world = trains(wanted=2, steps=50)
    world.do("deliver", "u1")  # both are known to train
    world.command(inbox.Scale(3))
    world.do("deliver", "u2")
    world.do("cut off", "u2")  # newcomers that hear of a stop at once are let go
    world.command(inbox.Stop("enough"))
    world.do("reconnect", "u2")
    world.do("deliver", "u2")
    while world.workers["u2"].inbox:
        world.do("read", "u2")
    assert world.workers["u2"].machine.stop == "enough"
    world.do("restart")
    world.do("reconnect", "u2")
    world.do("deliver", "u2")
    assert world.job.stopping and world.job.phase is Phase.STARTING
    world.settle()
    assert world.job.ending.path == "model"


def test_a_stop_waits_for_a_ring_whose_connections_broke_before_it_was_heard_to_train() -> None:
    world = trains(wanted=1, steps=50)
    world.do("cut off", "u0")  # with what it said
    world.do("notice", "0")
    world.command(inbox.Stop("enough"))
    assert world.job.phase not in FINAL
    world.settle()
    assert world.job.ending.path == "model"


def test_a_stop_of_a_job_whose_workers_never_report_comes_to_an_end() -> None:
    world = trains(wanted=2, steps=50)
    for uid in ("u0", "u1"):
        world.do("freeze", uid)
    world.do("restart")
    world.command(inbox.Stop("enough"))
    world.settle()
    assert world.job.phase is Phase.STOPPED
    assert not world.job.ending.path


def test_a_job_fails_with_the_reason_that_its_workers_found_while_nobody_heard_them() -> None:
    world = trains(wanted=2, steps=1)
    world.failure = "the loss is not finite"
    for uid in ("u0", "u1"):
        world.do("cut off", uid)
        world.do("step", uid)
    world.settle()
    assert world.job.phase is Phase.FAILED
    assert world.job.reason == "the loss is not finite"


def test_workers_that_fall_silent_together_are_left_out_by_one_plan() -> None:
    world = trains(wanted=3, steps=50)
    world.do("deliver", "u2")  # all three are known to hold the model
    for uid in ("u0", "u1"):
        world.do("freeze", uid)
    world.do("long tick")
    planned = [sorted(seat.uid for seat in plan.members) for plan in world.plans.values()]
    assert planned[:2] == [["u0", "u1", "u2"], ["u2"]]


def test_a_worker_that_a_new_master_never_hears_is_replaced() -> None:
    world = job_world(wanted=1, steps=2)
    world.do("deliver", "u0")
    world.do("freeze", "u0")
    world.do("restart")
    world.settle()
    assert world.job.phase is Phase.SUCCEEDED
    assert world.workers["u1"].step == 2
