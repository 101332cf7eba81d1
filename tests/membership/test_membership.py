"""What the machine decides, one situation at a time. All of it is simulated time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import said

from edl_allreduce.core.causes import Cause
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.membership.invariants import validate
from edl_allreduce.core.membership.machine import RESTART_GAP, handle
from edl_allreduce.core.membership.types import (
    Abort,
    Action,
    Anomaly,
    Away,
    Event,
    Evict,
    Finish,
    Lost,
    Options,
    Publish,
    Standing,
    State,
    Stopping,
    Tick,
    Unheard,
    Wanted,
)
from edl_allreduce.core.protocol import Plan, Seat

DEADLINES = Deadlines(10.0)
STUCK = DEADLINES.stuck(0.0)


def seat(uid: str) -> Seat:
    return Seat(uid, "abcdefgh".index(uid), "host")


def plan(generation: int, uids: str) -> Plan:
    return Plan(generation, tuple(seat(uid) for uid in uids))


class Machine:
    """The machine, its clock, and short ways to say what workers do. Uids are letters."""

    def __init__(self, wanted: int = 3, minimum: int = 1, recover_until: float = 0.0) -> None:
        self.now = 100.0
        self.state = State(
            Options(wanted=wanted, minimum=minimum, deadlines=DEADLINES, recover_until=recover_until)
        )

    def tell(self, *events: Event) -> tuple[Action, ...]:
        """What the machine orders in answer to these events."""
        orders: tuple[Action, ...] = ()
        for event in events:
            self.state, actions = handle(self.state, event, self.now)
            validate(self.state)
            orders += actions
        return orders

    def wait(self, seconds: float) -> tuple[Action, ...]:
        self.now += seconds
        return self.tell(Tick())

    def arrive(self, uids: str) -> tuple[Action, ...]:
        """They say hello one after the other, then get ready one after the other."""
        return self.tell(*(said.hello(seat(u)) for u in uids), *(said.ready(u) for u in uids))

    def join(self, uids: str, step: int = 0) -> tuple[Action, ...]:
        """They enter the ring of the current plan and agree on the state."""
        g = self.state.generation
        return self.tell(*(said.entered(u, g) for u in uids), *(said.joined(u, g, step) for u in uids))

    def lose(self, uid: str) -> tuple[Action, ...]:
        return self.tell(Lost(uid, "was killed"))

    def out(self, uid: str, step: int = 0, reason: str = "reset") -> tuple[Action, ...]:
        return self.tell(said.out(uid, self.state.generation, step, reason))

    @property
    def ring(self) -> str:
        assert self.state.plan is not None
        return "".join(s.uid for s in self.state.plan.members)


def training(uids: str = "abc", minimum: int = 1) -> Machine:
    """A ring that trains."""
    machine = Machine(wanted=len(uids), minimum=minimum)
    machine.arrive(uids)
    machine.join(uids)
    assert machine.ring == uids and machine.state.waiting_for == ""
    return machine


# ---------------------------------------------------------------------------------------- the first ring


def test_the_first_ring_forms_when_all_that_are_wanted_are_ready() -> None:
    machine = Machine(wanted=3)
    assert machine.arrive("ab") == ()
    assert machine.arrive("c") == (Publish(plan(1, "abc"), True, "3 workers are ready"),)


def test_the_first_ring_does_not_wait_for_ever_for_those_who_are_missing() -> None:
    machine = Machine(wanted=3)
    machine.arrive("ab")
    assert machine.state.waiting_for == "2 workers are ready, others may follow in a moment"
    assert machine.wait(0.9) == ()
    assert machine.wait(0.1) == (Publish(plan(1, "ab"), True, "2 workers are ready"),)


def test_workers_that_were_started_by_hand_form_a_ring_after_a_moment() -> None:
    machine = Machine(wanted=0)
    assert machine.arrive("ab") == ()
    machine.wait(1.0)
    assert machine.ring == "ab"


def test_below_the_minimum_nothing_begins_and_who_is_missing_is_said() -> None:
    machine = Machine(wanted=3, minimum=2)
    machine.tell(said.hello(seat("a")), said.hello(seat("b")), said.ready("a"))
    assert machine.wait(3600) == ()
    assert machine.state.waiting_for == "1 of at least 2 workers are ready; worker 1 prepares"
    machine.tell(said.ready("b"))
    assert machine.ring == "ab"


def test_fewer_wanted_workers_let_the_ring_form_at_once() -> None:
    machine = Machine(wanted=3)
    machine.arrive("a")
    machine.tell(Wanted(1))
    assert machine.ring == "a"


def test_the_first_ring_is_without_those_who_drain_already() -> None:
    machine = Machine(wanted=2)
    machine.tell(said.hello(seat("a")), said.draining("a"), said.ready("a"))
    machine.arrive("bc")
    assert machine.ring == "bc"


def test_a_worker_that_only_prepares_or_drains_is_not_planned() -> None:
    machine = Machine(wanted=2)
    machine.tell(said.hello(seat("c")))
    machine.arrive("abd")
    assert machine.ring == "ab"
    machine.join("ab")
    machine.tell(said.draining("d"))
    machine.lose("a")
    assert machine.ring == "b", "not c, which prepares, nor d, which drains and holds nothing"


# ----------------------------------------------------------------------------------------------- arrivals


def test_all_newcomers_that_are_ready_join_in_one_re_form() -> None:
    machine = training("ab")
    machine.tell(
        said.hello(seat("c")), said.hello(seat("d")), said.hello(seat("e")), said.ready("d"), said.ready("c")
    )
    assert machine.ring == "ab", "e may be ready in a moment"
    assert machine.wait(1.0) == (Publish(plan(2, "abcd"), False, "worker 2, 3 joins"),)
    machine.tell(said.ready("e"))
    assert machine.ring == "abcd", "the last re-form is still under way"
    machine.join("abcd")
    assert machine.ring == "abcde"


def test_a_newcomer_joins_at_once_when_no_other_prepares() -> None:
    machine = training("ab")
    assert machine.arrive("c") == (Publish(plan(2, "abc"), False, "worker 2 joins"),)


def test_a_newcomer_that_dies_while_the_ring_forms_is_left_behind() -> None:
    machine = training("ab")
    machine.arrive("c")
    machine.tell(said.entered("c", 2))
    assert machine.lose("c") == (Publish(plan(3, "ab"), True, "worker 2 was killed"),)


# ------------------------------------------------------------------------------------------ loss and break


def test_a_killed_rank_is_left_behind_at_once_and_the_others_keep_their_order() -> None:
    machine = training("abcd")
    assert machine.lose("b") == (Publish(plan(2, "acd"), True, "worker 1 was killed"),)


def test_newcomers_that_are_ready_take_the_place_of_the_dead_in_the_same_re_form() -> None:
    machine = training("ab")
    machine.tell(said.hello(seat("c")), said.hello(seat("d")), said.ready("c"))
    assert machine.ring == "ab"
    machine.lose("a")
    assert machine.ring == "bc"


def test_the_furthest_comes_first_and_who_has_no_state_last() -> None:
    machine = training("abc")
    machine.out("a", step=6)
    machine.out("b", step=7)
    machine.tell(said.hello(seat("d")), said.ready("d"))
    machine.out("c", step=6)
    assert machine.ring == "bacd"


def test_two_deaths_one_after_the_other_supersede_the_ring_that_was_forming() -> None:
    machine = training("abc")
    machine.lose("a")
    machine.tell(said.entered("b", 2), said.entered("c", 2))
    assert machine.lose("b") == (Publish(plan(3, "c"), True, "worker 1 was killed"),)


def test_a_broken_ring_is_aborted_once_and_re_formed_when_all_are_out() -> None:
    machine = training("abc")
    assert machine.out("b") == (Abort(1, ("a", "c"), "worker 1 reports: reset"),)
    assert machine.state.waiting_for == "the ring broke; worker 0, 2 has not left it yet"
    assert machine.out("a") == ()
    assert machine.out("c") == (Publish(plan(2, "abc"), True, "worker 1 reports: reset"),)


def test_a_death_that_explains_the_break_ends_the_wait() -> None:
    machine = training("abc")
    machine.out("b")
    assert [type(o) for o in machine.lose("a")] == [Publish]
    assert machine.ring == "bc"


def test_whoever_does_not_leave_a_broken_ring_is_evicted_and_named() -> None:
    machine = training("abc")
    machine.out("a")
    machine.out("b")
    assert machine.wait(STUCK) == ()
    evict, publish = machine.wait(0.1)
    assert evict == Evict("c", "did not leave the broken ring within 60 s", Cause.STUCK)
    assert publish == Publish(
        plan(2, "ab"), True, "worker 0 reports: reset; worker 2 did not leave the broken ring within 60 s"
    )


def test_the_next_break_has_its_own_cause_and_its_own_deadline() -> None:
    machine = training("ab")
    machine.out("a", reason="first")
    machine.out("b")
    machine.join("ab")
    machine.wait(2 * STUCK)
    assert machine.out("b", reason="second") == (Abort(2, ("a",), "worker 1 reports: second"),)
    assert machine.wait(1.0) == (), "a has as long as ever to leave"


def test_what_is_said_about_an_older_ring_changes_nothing() -> None:
    machine = training("ab")
    machine.arrive("c")
    before = machine.state
    machine.tell(said.out("a", 1, 5, "reset"), said.done("b", 1, 9), said.entered("a", 1))
    assert machine.state.members == before.members


def test_who_joined_an_older_ring_has_not_joined_this_one() -> None:
    machine = training("ab")
    machine.arrive("c")
    machine.tell(said.joined("a", 1, 5), said.joined("b", 1, 5), said.ready("a"), said.ready("b"))
    assert not any(member.joined for member in machine.state.members.values())
    assert machine.state.members["a"].standing is Standing.RING


def test_a_report_that_comes_too_late_still_tells_who_holds_the_model() -> None:
    machine = training("a")
    machine.arrive("b")
    machine.tell(said.entered("a", 2), said.entered("b", 2))
    machine.lose("a")
    machine.tell(said.joined("b", 2, 40))
    assert machine.state.members["b"].has_state


# ------------------------------------------------------------------------------------------------ minimum


def test_below_the_minimum_the_ring_is_held_until_somebody_comes() -> None:
    machine = training("abc", minimum=2)
    machine.lose("a")
    assert machine.ring == "bc"
    machine.join("bc")
    assert machine.lose("b") == (Abort(2, ("c",), "worker 1 was killed"),)
    assert machine.state.waiting_for == "1 of at least 2 workers remain (worker 1 was killed)"
    machine.tell(said.out("c", 2, 8, "aborted"), said.hello(seat("d")))
    assert machine.wait(10_000) == ()
    assert machine.state.waiting_for == (
        "1 of at least 2 workers remain (worker 1 was killed); worker 3 prepares"
    )
    assert machine.tell(said.ready("d")) == (Publish(plan(3, "cd"), True, "worker 1 was killed"),)


def test_a_draining_member_helps_out_while_the_others_are_too_few() -> None:
    machine = training("abc", minimum=2)
    machine.tell(said.draining("b"))
    machine.join("ac")
    assert machine.ring == "ac"
    machine.tell(said.draining("a"))
    assert machine.state.waiting_for == "worker 0 wants to leave, but nobody is ready to take over"
    machine.arrive("d")
    assert machine.ring == "cd"


def test_a_job_that_is_to_stop_does_not_wait_for_the_minimum() -> None:
    machine = training("ab", minimum=2)
    machine.lose("a")
    machine.tell(said.out("b", 1, 8, "aborted"))
    assert machine.state.waiting_for == "1 of at least 2 workers remain (worker 0 was killed)"
    assert machine.tell(Stopping()) == (Publish(plan(2, "b"), True, "worker 0 was killed"),)


# -------------------------------------------------------------------------------------------------- drain


def test_a_draining_member_leaves_at_a_step_boundary() -> None:
    machine = training("abc")
    assert machine.tell(said.draining("b")) == (Publish(plan(2, "ac"), False, "worker 1 drains"),)


def test_several_that_drain_at_once_leave_as_soon_as_the_ring_stands_again() -> None:
    machine = training("abcd")
    machine.tell(said.draining("b"), said.draining("c"))
    assert machine.ring == "acd", "the first drain is under way"
    machine.join("acd")
    assert machine.ring == "ad"


def test_the_last_holder_of_the_model_hands_it_over_before_it_leaves() -> None:
    machine = training("a")
    assert machine.tell(said.draining("a")) == ()
    assert machine.state.waiting_for == "worker 0 wants to leave, but nobody is ready to take over"
    machine.arrive("b")
    assert machine.ring == "ab"
    machine.join("b", step=9)
    assert machine.ring == "ab", "a did not confirm yet"
    machine.join("a", step=9)
    assert machine.ring == "b"


def test_of_two_that_drain_only_one_stays_for_the_handover() -> None:
    machine = training("ab")
    machine.tell(said.hello(seat("c")), said.hello(seat("d")), said.ready("c"))
    machine.tell(said.draining("b"))
    assert machine.ring == "ac"
    machine.tell(said.draining("a"))
    machine.join("ac")
    assert machine.ring == "c"


def test_everybody_drains_and_one_newcomer_takes_over() -> None:
    machine = training("ab")
    machine.tell(said.hello(seat("c")))
    machine.tell(said.draining("a"))
    machine.tell(said.draining("b"))
    machine.join("b")
    assert machine.ring == "b", "nobody else has the model"
    machine.tell(said.ready("c"))
    assert machine.ring == "bc"
    machine.join("bc")
    assert machine.ring == "c"


def test_a_drain_during_a_re_form_waits_until_the_ring_stands() -> None:
    machine = training("abc")
    machine.lose("a")
    assert (
        machine.tell(said.entered("b", 2), said.draining("c"), said.entered("c", 2), said.joined("b", 2, 4))
        == ()
    )
    assert machine.tell(said.joined("c", 2, 4)) == (Publish(plan(3, "b"), False, "worker 2 drains"),)


def test_a_draining_member_that_may_have_the_model_is_not_dropped_for_one_without() -> None:
    """It was about to join when the only other holder died: its report may be on the way."""
    machine = training("a")
    machine.arrive("b")
    machine.tell(said.entered("a", 2), said.entered("b", 2), said.draining("b"))
    machine.arrive("c")
    machine.lose("a")
    assert machine.ring == "bc"


def test_one_that_may_have_got_the_model_is_waited_for_when_the_holder_dies() -> None:
    """Its report was lost with its connection, and the other newcomer has nothing."""
    machine = Machine(wanted=1)
    machine.arrive("a")
    machine.join("a")
    machine.tell(*(said.hello(seat(u), link=1) for u in "bc"), *(said.ready(u) for u in "bc"))
    machine.tell(said.joined("a", 1, 40))
    assert machine.ring == "abc"
    machine.tell(*(said.entered(u, 2) for u in "abc"), Away("b", 1))
    assert machine.ring == "ac", "it cannot complete without b"
    machine.lose("a")
    assert machine.ring == "ac", "c alone would begin anew"
    assert machine.state.waiting_for == "worker 1 may hold the model and has lost its connection"
    machine.tell(said.hello(seat("b"), plan(2, "abc"), step=40, generation=2, link=2))
    assert machine.ring == "bc", "b hands it over"


def test_one_that_was_let_go_with_the_model_is_called_back_when_all_others_die() -> None:
    machine = training("ab")
    machine.tell(said.draining("a"))
    machine.arrive("c")
    assert machine.ring == "b", "c waits until this ring stands"
    machine.lose("b")
    assert machine.ring == "ac"


def test_one_that_was_let_go_is_called_back_also_when_a_newcomer_survives() -> None:
    machine = training("ab")
    machine.tell(said.hello(seat("c")), said.ready("c"))
    machine.tell(said.draining("a"))
    machine.join("abc")
    assert machine.ring == "bc"
    machine.tell(*(said.out(u, 3, 0, "reset") for u in "bc"))
    machine.state = replace(
        machine.state,
        members={uid: replace(member, has_state=uid != "c") for uid, member in machine.state.members.items()},
    )
    machine.lose("b")
    assert machine.ring == "ac"


def test_others_are_freed_from_a_leaver_that_falls_silent_before_the_boundary() -> None:
    """It is in the old ring but not in the plan, and closes no connection: they would wait for it."""
    machine = training("abc")
    machine.tell(said.draining("b"))
    assert machine.tell(Lost("b", "fell silent")) == ()
    assert machine.wait(DEADLINES.heartbeat) == (), "most leavers end in order, at the very boundary"
    assert machine.wait(0.1) == (Abort(1, ("a", "c"), "a worker that was leaving is lost"),)
    assert machine.wait(5) == ()


def test_nobody_is_disturbed_when_a_leaver_ends_in_order() -> None:
    machine = training("abc")
    machine.tell(said.draining("b"))
    machine.tell(Lost("b", "drained"), said.entered("a", 2), said.entered("c", 2))
    assert machine.wait(5) == ()
    assert machine.join("ac") == ()


# ------------------------------------------------------------------------------------------------ joining


def test_whoever_does_not_come_is_named_evicted_and_left_behind() -> None:
    machine = training("ab")
    machine.arrive("c")
    assert machine.wait(5 * STUCK) == (), "a step may take long while nobody waits"
    assert machine.state.waiting_for == "the members finish their step before they switch"
    machine.tell(said.entered("a", 2), said.entered("c", 2))
    assert machine.state.waiting_for == "worker 1 has not entered the new ring yet"
    assert machine.wait(STUCK) == ()
    evict, publish = machine.wait(0.1)
    assert evict == Evict("b", "did not enter the new ring within 60 s", Cause.STUCK)
    assert isinstance(publish, Publish) and machine.ring == "ac"


def test_a_plan_that_nobody_follows_is_called_off_and_made_anew() -> None:
    machine = training("ab")
    machine.arrive("c")
    assert machine.wait(10 * STUCK) == ()
    assert machine.wait(0.1) == (Abort(2, ("a", "b", "c"), "nobody entered the new ring"),)
    assert machine.tell(*(said.out(u, 2, 7, "called off") for u in "abc"))[-1] == Publish(
        plan(3, "abc"), True, "the ring broke"
    )


def test_the_only_holders_of_the_model_get_ten_times_longer() -> None:
    """A newcomer waits while the others are in a long callback: to end them would lose the model."""
    machine = training("ab")
    machine.arrive("c")
    machine.tell(said.entered("c", 2))
    assert machine.wait(10 * STUCK) == ()
    assert [type(o) for o in machine.wait(0.1)] == [Evict, Evict, Publish]


def test_a_ring_that_does_not_come_about_is_started_over() -> None:
    machine = training("ab")
    machine.arrive("c")
    machine.tell(said.entered("a", 2), said.entered("b", 2), said.entered("c", 2))
    assert machine.wait(2 * STUCK) == ()
    assert machine.wait(0.1) == (Abort(2, ("a", "b", "c"), "the ring did not form in time"),)
    assert machine.wait(1.0) == ()
    machine.out("a")
    machine.out("c")
    machine.out("b")
    assert machine.ring == "abc" and machine.state.generation == 3


def test_whoever_neither_joins_nor_gives_up_is_evicted() -> None:
    machine = training("ab")
    machine.arrive("c")
    machine.tell(
        said.entered("a", 2),
        said.entered("b", 2),
        said.entered("c", 2),
        said.joined("a", 2, 0),
        said.joined("b", 2, 0),
    )
    machine.wait(2 * STUCK + 0.1)
    machine.out("a")
    machine.out("b")
    orders = machine.wait(STUCK + 1)
    assert orders[0] == Evict("c", "did not leave the broken ring within 60 s", Cause.STUCK)
    assert machine.ring == "ab"


def test_if_nobody_answers_the_abort_those_who_did_not_join_go_first() -> None:
    machine = training("ab")
    machine.arrive("c")
    machine.tell(
        said.entered("a", 2),
        said.entered("b", 2),
        said.entered("c", 2),
        said.joined("a", 2, 0),
        said.joined("b", 2, 0),
    )
    machine.wait(2 * STUCK + 0.1)
    evict, publish = machine.wait(STUCK)
    assert evict == Evict("c", "did not join within 180 s, nor give up when told to", Cause.STUCK)
    assert isinstance(publish, Publish) and machine.ring == "ab"


# ------------------------------------------------------------------------------------------------- finish


def test_training_is_complete_when_every_member_is_done() -> None:
    machine = training("ab")
    assert machine.tell(said.done("a", 1, 50)) == ()
    assert machine.state.waiting_for == "worker 1 has yet to report the last step"
    assert machine.tell(said.done("b", 1, 50)) == (Finish(("a", "b"), 50),)
    assert machine.tell(said.hello(seat("c")), said.ready("c"), Lost("a", "exited")) == ()


def test_one_that_is_done_is_enough_when_the_others_die() -> None:
    machine = training("abc")
    machine.tell(said.done("a", 1, 50), said.done("b", 1, 50))
    assert machine.lose("c") == (Finish(("a", "b"), 50),)


def test_whoever_missed_the_last_step_gets_it_from_one_that_is_done() -> None:
    machine = training("ab")
    machine.tell(said.done("a", 1, 50))
    assert machine.out("b", step=49) == (Publish(plan(2, "ab"), True, "worker 1 reports: reset"),)
    machine.join("ab", step=50)
    assert machine.tell(said.done("a", 2, 50), said.done("b", 2, 50)) == (Finish(("a", "b"), 50),)


def test_a_ring_that_has_trained_its_last_step_is_not_re_formed_for_newcomers_or_drains() -> None:
    machine = training("ab")
    machine.tell(said.done("a", 1, 50))
    assert machine.arrive("c") == ()
    assert machine.tell(said.draining("a"), said.draining("b")) == ()
    assert machine.tell(said.done("b", 1, 50)) == (Finish(("a", "b"), 50),)


def test_when_all_die_the_job_begins_anew_with_whoever_comes() -> None:
    machine = training("ab")
    machine.lose("a")
    machine.lose("b")
    assert machine.state.waiting_for == "0 of at least 1 workers are ready"
    machine.arrive("c")
    machine.wait(1.0)
    assert machine.ring == "c"


# ------------------------------------------------------------------------------------------- coming back


@pytest.mark.parametrize("known", [None, plan(1, "abc")])
def test_whoever_was_given_up_is_turned_away(known: Plan | None) -> None:
    """Even while its ring is on hold: what it missed is not known."""
    machine = training("abc", minimum=3)
    machine.lose("b")
    orders = machine.tell(said.hello(seat("b"), known, 7))
    assert orders == (Evict("b", "it was given up; a new worker takes its place"),)
    assert "b" not in machine.state.members


def test_a_worker_of_an_older_ring_is_told_to_leave_it_and_taken_in() -> None:
    machine = training("ab")
    machine.arrive("c")
    (order,) = machine.tell(said.hello(seat("d"), plan(1, "abd")))
    assert order == Abort(1, ("d",), "the ring went on without it")
    assert machine.state.members["d"].standing is Standing.WAITING


def test_a_member_whose_stream_broke_before_it_heard_the_plan_causes_a_new_one() -> None:
    machine = training("ab")
    machine.arrive("c")
    machine.tell(said.entered("a", 2), said.entered("b", 2))
    assert machine.tell(said.hello(seat("c"))) == (Abort(2, ("a", "b"), "a member left the ring"),)
    machine.tell(said.ready("c"))
    machine.out("a")
    machine.out("b")
    assert machine.ring == "abc" and machine.state.generation == 3


# ---------------------------------------------------------------------------------------- master restart


def restarted(window: float = 20.0, minimum: int = 1) -> Machine:
    return Machine(minimum=minimum, recover_until=100.0 + window)


def test_a_restarted_master_takes_the_ring_over_without_disturbing_it() -> None:
    machine = restarted()
    for uid in "bca":
        assert machine.tell(said.hello(seat(uid), plan(7, "abc"), 40)) == ()
    assert machine.ring == "abc"
    assert machine.wait(3600) == ()
    assert machine.state.waiting_for == ""
    assert machine.tell(*(said.done(u, 7, 90) for u in "abc")) == (Finish(("a", "b", "c"), 90),)


def test_a_member_that_does_not_report_after_the_restart_is_left_behind() -> None:
    machine = restarted()
    machine.tell(said.hello(seat("a"), plan(7, "ab"), 40))
    assert machine.state.waiting_for == "the master restarted; worker 1 has not reported yet"
    assert machine.wait(20.0) == ()
    evict, publish = machine.wait(0.1)
    assert evict == Evict("b", "was not heard after the master's restart")
    assert publish == Publish(
        plan(7 + RESTART_GAP, "a"), True, "worker 1 was not heard after the master's restart"
    )


def test_no_second_ring_is_formed_while_the_old_one_may_report() -> None:
    machine = restarted()
    machine.arrive("def")
    assert machine.wait(19.0) == ()
    assert machine.state.waiting_for == "the master restarted and waits for the ring to report"
    machine.tell(said.hello(seat("a"), plan(7, "a"), 40))
    assert machine.ring == "a"
    assert machine.wait(1.0) == (Publish(plan(7 + RESTART_GAP, "adef"), False, "worker 3, 4, 5 joins"),)


def test_a_worker_that_lives_is_waited_for_while_nobody_else_has_the_model() -> None:
    """Its node was cut off as well, say: it comes later than rings usually report."""
    machine = restarted()
    machine.tell(Unheard(frozenset({0})))
    machine.arrive("d")
    assert machine.wait(100.0) == ()
    assert machine.state.waiting_for == "worker 0 of an earlier master lives and may hold the model"
    machine.tell(said.hello(seat("a"), plan(7, "a"), 40))
    assert machine.ring == "ad"


def test_a_worker_that_is_gone_or_never_comes_is_waited_for_no_longer() -> None:
    machine = restarted()
    machine.tell(Unheard(frozenset({0})))
    machine.arrive("d")
    machine.wait(100.0)
    machine.tell(Unheard(frozenset()))
    assert machine.ring == "d"

    machine = restarted()
    machine.tell(Unheard(frozenset({0})))
    machine.arrive("d")
    machine.wait(20.0 + DEADLINES.reunion)
    assert machine.ring == "d"


def test_whoever_has_the_model_need_not_wait_for_others_that_live() -> None:
    machine = restarted()
    machine.tell(Unheard(frozenset({1})))
    machine.tell(said.hello(seat("a"), None, 40, has_state=True, generation=7))
    machine.wait(21.0)
    assert machine.ring == "a"


def test_a_ring_that_reports_after_another_was_formed_is_turned_away() -> None:
    machine = restarted()
    machine.arrive("d")
    machine.wait(20.0)
    assert machine.ring == "d" and machine.state.generation == RESTART_GAP
    (order,) = machine.tell(said.hello(seat("a"), plan(5000, "a"), 40))
    assert order == Evict("a", "it is in the ring of generation 5000, the job is at 1000")


def test_a_straggler_that_reports_first_does_not_win_over_the_real_ring() -> None:
    machine = restarted()
    machine.tell(said.hello(seat("d"), plan(5, "d"), 10))
    machine.arrive("e")
    orders = machine.tell(said.hello(seat("a"), plan(6, "ab"), 40), said.hello(seat("b"), plan(6, "ab"), 40))
    assert orders == (Evict("d", "the ring of generation 6 goes on without it"),)
    assert machine.ring == "ab"


def test_a_member_that_reported_an_older_ring_is_not_forgotten() -> None:
    """The plan reached only some before the master died: that ring cannot complete, another one can."""
    machine = restarted()
    machine.tell(said.hello(seat("a"), plan(5, "ab"), 40))
    assert machine.tell(said.hello(seat("b"), plan(6, "abc"), 40, joined=False)) == ()
    assert machine.arrive("c") == ()
    orders = machine.wait(20.0)
    assert orders == (Abort(6, ("b",), "a member left the ring"),)
    machine.tell(said.out("b", 6, 40, "aborted"))
    assert sorted(machine.ring) == ["a", "b", "c"]


def test_workers_that_were_out_when_the_master_died_get_a_plan_that_is_new_to_them() -> None:
    machine = restarted()
    for uid in "ab":
        machine.tell(said.hello(seat(uid), None, generation=41), said.ready(uid, 30, True))
    machine.wait(20.0)
    assert machine.ring == "ab" and machine.state.generation == 41 + RESTART_GAP


def test_one_that_was_out_with_the_model_is_not_overlooked_before_it_says_ready() -> None:
    machine = restarted()
    machine.tell(
        said.hello(seat("c"), plan(7, "bc"), 0, joined=False, has_state=False), said.out("c", 7, 0, "reset")
    )
    machine.tell(said.hello(seat("b"), None, 30, has_state=True, generation=7))
    machine.wait(20.0)
    assert machine.ring == "bc"


def test_a_handover_that_a_restart_interrupts_still_hands_over() -> None:
    """The newcomer is in the plan but has no state yet; the draining one must not be let go."""
    machine = restarted()
    both = plan(6, "ab")
    machine.tell(said.hello(seat("a"), both, 40, joined=False), said.draining("a"))
    machine.tell(said.hello(seat("b"), both, 0, joined=False, has_state=False))
    machine.wait(21.0)
    assert machine.ring == "ab" and machine.state.generation == 6
    machine.tell(said.joined("a", 6, 40), said.joined("b", 6, 40))
    assert machine.ring == "b"


def test_who_drains_with_the_last_model_makes_the_last_step_of_a_job_that_stops() -> None:
    machine = Machine(wanted=2)
    machine.arrive("ab")
    machine.join("ab", step=3)
    machine.tell(said.draining("a"))  # so b alone is planned next
    machine.tell(said.out("a", 1, 3))
    machine.lose("b")
    assert machine.state.waiting_for.startswith("0 of at least 1 workers")
    (publish,) = machine.tell(Stopping())
    assert isinstance(publish, Publish) and publish.plan.members == (seat("a"),)


def test_holders_of_the_model_that_have_not_reported_are_given_up_last() -> None:
    machine = restarted()
    machine.tell(said.hello(seat("c"), plan(7, "abc"), joined=False, has_state=False, generation=7))
    patience = machine.state.options.patience
    assert patience > 2 * DEADLINES.rejoin
    assert machine.wait(DEADLINES.rejoin + 1) == ()
    assert machine.wait(patience - DEADLINES.rejoin - 2) == ()
    machine.tell(said.hello(seat("a"), plan(7, "abc"), step=500, generation=7))
    assert machine.wait(DEADLINES.rejoin - 1) == ()  # the other one gets as long again
    *evictions, publish = machine.wait(2)
    assert [evict.uid for evict in evictions if isinstance(evict, Evict)] == ["b"]
    assert isinstance(publish, Abort | Publish)


def test_holders_of_the_model_that_never_report_are_given_up_after_patience() -> None:
    machine = restarted()
    machine.tell(said.hello(seat("c"), plan(7, "abc"), joined=False, has_state=False, generation=7))
    evicted = [a.uid for a in machine.wait(machine.state.options.patience + 1) if isinstance(a, Evict)]
    assert evicted == ["a", "b"]


def test_a_restarted_master_ends_a_job_that_was_done() -> None:
    machine = restarted()
    machine.tell(said.hello(seat("a"), plan(7, "ab"), 90, done=True))
    assert machine.tell(said.hello(seat("b"), plan(7, "ab"), 90, done=True)) == (Finish(("a", "b"), 90),)


def test_a_plan_of_which_somebody_is_already_known_to_be_dead_is_replaced() -> None:
    machine = restarted()
    machine.tell(Lost("b", "is gone"))
    machine.tell(said.hello(seat("a"), plan(7, "ab"), 40))
    machine.wait(20.0)
    assert machine.ring == "a"


# ------------------------------------------------------------------------------ rings that never step


def fails_before_its_first_step(machine: Machine, uids: str, step: int) -> tuple[Action, ...]:
    """All join and all leave: their models do not fit together."""
    machine.join(uids, step)
    orders: tuple[Action, ...] = ()
    for uid in uids:
        orders = machine.out(uid, step, "sizes differ")
    return orders


def two_and_a_newcomer() -> Machine:
    """a and b made 40 steps, then c came."""
    machine = training("ab")
    machine.arrive("c")
    assert machine.ring == "abc"
    return machine


def test_a_newcomer_with_whom_three_rings_in_a_row_fail_is_left_out() -> None:
    machine = two_and_a_newcomer()
    for _ in range(2):
        assert isinstance(fails_before_its_first_step(machine, "abc", 40)[-1], Publish)
        assert machine.ring == "abc"
    evict, publish = fails_before_its_first_step(machine, "abc", 40)
    assert isinstance(evict, Evict) and evict.uid == "c" and evict.cause is Cause.INVALID
    assert evict.reason.startswith("is left out: 3 rings in a row with it broke within their first steps")
    assert "worker 0 reports: sizes differ" in evict.reason
    assert isinstance(publish, Publish) and machine.ring == "ab"


def test_a_newcomer_to_whom_nobody_can_connect_is_left_out() -> None:
    machine = two_and_a_newcomer()
    for _ in range(3):
        g = machine.state.generation
        machine.tell(*(said.entered(uid, g) for uid in "abc"))
        for uid in "abc":
            machine.out(uid, 0 if uid == "c" else 40, "no route to host")
    assert machine.ring == "ab"


def test_a_ring_that_made_steps_before_it_broke_is_no_reason_to_blame_anybody() -> None:
    machine = two_and_a_newcomer()
    for step in (40, 42, 44, 46, 48):
        machine.join("abc", step)
        for uid in "abc":
            machine.out(uid, step + 2, "reset")
        assert machine.ring == "abc"
    assert machine.state.stalls == ()


def test_a_single_step_does_not_show_that_a_ring_works() -> None:
    machine = two_and_a_newcomer()
    for step in (40, 41, 42):
        machine.join("abc", step)
        for uid in "abc":
            machine.out(uid, step + 1, "sizes differ")
    assert machine.ring == "ab"


def test_a_death_explains_a_broken_ring_and_the_count_begins_anew() -> None:
    machine = two_and_a_newcomer()
    fails_before_its_first_step(machine, "abc", 40)
    fails_before_its_first_step(machine, "abc", 40)
    machine.join("abc", 40)
    machine.lose("b")
    assert machine.ring == "ac" and machine.state.stalls == ()
    fails_before_its_first_step(machine, "ac", 40)
    assert machine.ring == "ac"


def test_when_nobody_ever_made_a_step_the_first_one_goes_on_alone() -> None:
    machine = Machine(wanted=3)
    machine.arrive("abc")
    for _ in range(2):
        fails_before_its_first_step(machine, "abc", 0)
    orders = fails_before_its_first_step(machine, "abc", 0)
    assert [order.uid for order in orders if isinstance(order, Evict)] == ["b", "c"]
    assert machine.ring == "a"


def test_the_job_can_be_stopped_while_no_ring_comes_about() -> None:
    machine = two_and_a_newcomer()
    machine.tell(Stopping())
    for _ in range(3):
        fails_before_its_first_step(machine, "abc", 40)
    machine.join("ab", 40)
    machine.tell(said.done("a", machine.state.generation, 41))
    assert machine.tell(said.done("b", machine.state.generation, 41)) == (Finish(("a", "b"), 41),)


# ---------------------------------------------------------------------------------------------- standing


def test_standings_are_what_people_see() -> None:
    machine = training("ab")
    machine.tell(said.hello(seat("c")))
    machine.tell(said.done("a", 1, 3))
    standings = {uid: member.standing for uid, member in machine.state.members.items()}
    assert standings == {"a": Standing.DONE, "b": Standing.RING, "c": Standing.PREPARING}


# ------------------------------------------------------------------------------------------ what cannot be


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (said.entered("a", 9), "speaks of generation 9, and the newest plan is 1"),
        (said.out("a", 9, 0), "speaks of generation 9, and the newest plan is 1"),
        (said.joined("a", 1, 0), "joined the ring of generation 1, which it never entered"),
        (said.done("a", 1, 5), "finished in the ring of generation 1, which it never joined"),
    ],
)
def test_what_no_worker_can_say_is_told_and_ignored(message: Event, text: str):
    machine = Machine(wanted=2)
    machine.tell(*(said.hello(seat(uid), has_state=False) for uid in "ab"))
    machine.tell(said.ready("a"), said.ready("b"))
    before = machine.state
    assert machine.tell(message) == (Anomaly("a", text),)
    assert machine.state.members == before.members


def test_what_is_stale_by_its_number_is_no_anomaly():
    machine = Machine(wanted=2)
    machine.tell(*(said.hello(seat(uid), has_state=False) for uid in "ab"))
    machine.tell(said.ready("a"), said.ready("b"))
    machine.tell(*(said.entered(uid, 1) for uid in "ab"), *(said.joined(uid, 1, 0) for uid in "ab"))
    machine.tell(Lost("b", "is gone"))
    assert machine.tell(said.done("a", 1, 5), said.out("a", 1, 5, "connection reset")) == ()
