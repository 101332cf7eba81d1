"""Hypothesis drives the machine through whatever may happen, and looks for an order that breaks a promise."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from edl_allreduce.core.membership.types import Options, Standing
from edl_allreduce.testing.world import Doing, Life, World


class AnyOrder(RuleBasedStateMachine):
    """Workers come, train, drain, freeze, thaw and die, and so does the master.

    The world checks every promise at every event; at the end no more faults happen, and then the job must
    end by itself or say what it waits for.
    """

    world: World

    @initialize(
        minimum=st.sampled_from([1, 1, 2, 3]),
        wanted=st.sampled_from([0, 2, 3]),
        steps=st.integers(1, 4),
        warm=st.booleans(),
    )
    def begin(self, minimum: int, wanted: int, steps: int, warm: bool) -> None:
        self.world = World(Options(wanted=wanted, minimum=minimum), steps=steps)
        for _ in range(3):
            self.world.do("launch")
        if warm:  # most trouble is in and around a ring that trains
            for turn in range(200):
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
        up = [w.uid for w in self.world.workers.values() if w.up]
        if up:
            self.world.do(verb, up[number % len(up)])

    @rule()
    def one_that_was_given_up_thaws(self) -> None:
        for w in list(self.world.workers.values()):
            if w.life is Life.FROZEN and w.uid not in self.world.state.members:
                self.world.do("thaw", w.uid)
                return

    @precondition(lambda self: len(self.world.workers) < 6)
    @rule()
    def a_worker_starts(self) -> None:
        self.world.do("launch")

    @precondition(lambda self: self.world.restarts < 2)
    @rule()
    def the_master_restarts(self) -> None:
        self.world.do("restart")

    @rule(verb=st.sampled_from(["tick", "long tick", "very long tick"]))
    def time_passes(self, verb: str) -> None:
        self.world.do(verb)

    def teardown(self) -> None:
        if hasattr(self, "world") and not self.world.failed:
            self.world.settle()


AnyOrder.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=16,
    deadline=None,
    phases=set(Phase) - {Phase.explain},  # it takes minutes; the world tells its story anyway
)
TestAnyOrder = pytest.mark.search(AnyOrder.TestCase)


def test_the_simulated_world_trains_to_the_end() -> None:
    """The tool itself: without faults three workers form one ring, train, and the job is finished."""
    world = World(Options(wanted=3), steps=5)
    for _ in range(3):
        world.do("launch")
    world.settle()
    assert world.finished is not None
    assert len(world.plans) == 1
    assert all(w.step == 5 for w in world.workers.values())
    assert all(m.standing is Standing.DONE for m in world.state.members.values())
