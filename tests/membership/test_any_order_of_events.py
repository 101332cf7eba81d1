"""Hypothesis drives the machine through whatever may happen, and looks for an order that breaks a promise."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated_world import Doing, Life, World

from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.membership import Options


class AnyOrder(RuleBasedStateMachine):
    """Workers come, train, drain, freeze and die, and so does the master."""

    world: World

    @initialize(minimum=st.integers(1, 3), wanted=st.sampled_from([0, 2, 3]), steps=st.integers(1, 4),
                warm=st.booleans())  # fmt: skip
    def begin(self, minimum: int, wanted: int, steps: int, warm: bool) -> None:
        options = Options(wanted=wanted, minimum=minimum, deadlines=Deadlines(10.0))
        self.world = World(options, steps=steps)
        for _ in range(3):
            self.world.do("launch")
        if warm:  # most trouble is in and around a ring that trains
            self.course(60, range(60))

    def course(self, count: int, picks: object) -> None:
        for _, pick in zip(range(count), picks, strict=False):  # type: ignore[call-overload]
            actions = self.world.enabled()
            if any(w.doing is Doing.TRAINING for w in self.world.workers.values()) and count > 20:
                return
            if not actions:
                self.world.do("tick")
            else:
                self.world.do(*actions[pick % len(actions)])

    @rule(picks=st.lists(st.integers(0, 30), min_size=1, max_size=12))
    def things_take_their_course(self, picks: list[int]) -> None:
        self.course(len(picks), picks)

    def _pick(self, number: int, *lives: Life) -> str | None:
        uids = [w.uid for w in self.world.workers.values() if w.life in lives]
        return uids[number % len(uids)] if uids else None

    @rule(number=st.integers(0, 5), verb=st.sampled_from(["kill", "kill", "freeze", "drain"]))
    def a_worker_is_hit(self, number: int, verb: str) -> None:
        if uid := self._pick(number, Life.UP):
            self.world.do(verb, uid)

    @rule(number=st.integers(0, 5))
    def a_frozen_worker_thaws_or_dies(self, number: int) -> None:
        if uid := self._pick(number, Life.FROZEN):
            given_up = uid not in self.world.state.members
            self.world.do("thaw" if given_up else "kill", uid)

    @precondition(lambda self: len(self.world.workers) < 6)
    @rule()
    def a_worker_starts(self) -> None:
        self.world.do("launch")

    @precondition(lambda self: self.world.restarts < 2)
    @rule()
    def the_master_restarts(self) -> None:
        self.world.do("restart")

    @rule(verb=st.sampled_from(["tick", "tick", "long tick", "very long tick"]))
    def time_passes(self, verb: str) -> None:
        self.world.do(verb)

    @invariant()
    def waiting_has_a_reason(self) -> None:
        """Nothing is checked here that the world does not check at every event."""

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.world.settle()
            except AssertionError:
                print(self.world.story)
                raise


AnyOrder.TestCase.settings = settings(
    max_examples=300, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = AnyOrder.TestCase
