"""What happens after a worker ended, by its cause and by who is left."""

from __future__ import annotations

import pytest

from edl_allreduce.core.causes import FREE, SENTENCE, Cause
from edl_allreduce.core.relaunch import (
    LONGEST_DELAY,
    Around,
    Decision,
    GiveUp,
    Leave,
    Relaunch,
    Unreplaced,
    Worker,
    decide,
    is_refusal,
)


def after(
    cause: Cause,
    *,
    failures: int = 0,
    budget: int = 3,
    running: int = 1,
    wanted: int = 2,
    repeats: int = 0,
) -> Decision:
    """A worker that took part ended."""
    around = Around(running, wanted, healthy=running, begun=True, failures=failures, budget=budget)
    return decide(Worker(cause, repeats=repeats), around)


def after_newcomer(
    cause: Cause = Cause.INVALID,
    *,
    healthy: int = 2,
    refusals: int = 0,
    begun: bool = True,
    wanted: int = 3,
    running: int = 2,
    budget: int = 3,
) -> Decision:
    """A worker that was never ready ended."""
    around = Around(running, wanted, healthy=healthy, begun=begun, budget=budget, refusals=refusals)
    return decide(Worker(cause, accepted=False), around)


@pytest.mark.parametrize(
    ("cause", "decision"),
    [
        (Cause.FINISHED, Leave("it finished")),
        (Cause.DRAINED, Relaunch(0.0, "a worker was drained")),
        (Cause.DISRUPTED, Relaunch(0.0, "a worker was disrupted")),
        (Cause.SILENT, Relaunch(0.0, "a worker fell silent")),
        (Cause.STUCK, Relaunch(1.0, "a worker was stuck; failure 1 of 3 allowed")),
        (Cause.OUT_OF_MEMORY, Relaunch(1.0, "a worker ran out of memory; failure 1 of 3 allowed")),
        (Cause.CRASHED, Relaunch(1.0, "a worker crashed; failure 1 of 3 allowed")),
        (Cause.INVALID, GiveUp("the job cannot run as it is described")),
    ],
)
def test_each_cause_has_its_answer(cause: Cause, decision: Decision) -> None:
    assert after(cause) == decision


def test_every_cause_has_a_sentence() -> None:
    assert SENTENCE.keys() == set(Cause)


@pytest.mark.parametrize("cause", sorted(FREE, key=lambda cause: cause.value))
def test_what_is_not_the_jobs_fault_is_replaced_at_once_however_often(cause: Cause) -> None:
    assert after(cause, failures=10_000, budget=0) == after(cause)


@pytest.mark.parametrize("cause", [Cause.CRASHED, Cause.OUT_OF_MEMORY, Cause.STUCK])
def test_own_failures_end_the_job_after_the_budget(cause: Cause) -> None:
    decisions = [after(cause, failures=failures) for failures in range(4)]
    assert [type(decision) for decision in decisions] == [Relaunch, Relaunch, Relaunch, GiveUp]
    assert decisions[3].reason == (
        f"a worker {SENTENCE[cause]}, and not more than 3 failures are allowed (--max_worker_crashes)"
    )


def test_with_a_budget_of_none_the_first_crash_ends_the_job() -> None:
    assert isinstance(after(Cause.CRASHED, budget=0), GiveUp)


def test_the_same_failure_in_the_same_place_is_not_tried_a_third_time() -> None:
    assert isinstance(after(Cause.CRASHED), Relaunch)
    assert after(Cause.CRASHED, failures=1, repeats=1) == GiveUp(
        "it is the same failure in the same place at the same step as before"
    )


def test_a_crash_loop_slows_down_but_not_without_limit() -> None:
    delays = []
    for failures in [0, 1, 2, 3, 6, 7, 5000]:
        decision = after(Cause.CRASHED, failures=failures, budget=10_000)
        assert isinstance(decision, Relaunch)
        delays.append(decision.delay)
    assert delays == [1, 2, 4, 8, LONGEST_DELAY, LONGEST_DELAY, LONGEST_DELAY]


@pytest.mark.parametrize("cause", [Cause.DRAINED, Cause.DISRUPTED, Cause.CRASHED])
def test_nobody_is_started_when_the_job_shrank(cause: Cause) -> None:
    assert after(cause, running=2, wanted=2) == Leave("2 workers are enough for 2 wanted")
    assert after(cause, running=0, wanted=0) == Leave("0 workers are enough for 0 wanted")


def test_a_job_that_cannot_run_ends_even_when_enough_workers_are_left() -> None:
    assert isinstance(after(Cause.INVALID, running=5, wanted=2), GiveUp)


# -------------------------------------------------------------------------------------------- newcomers


@pytest.mark.parametrize("cause", [Cause.INVALID, Cause.CRASHED, Cause.OUT_OF_MEMORY, Cause.STUCK])
@pytest.mark.parametrize("refusals", [0, 5, 5000])
def test_a_newcomer_that_cannot_begin_never_ends_a_job_that_others_carry(cause: Cause, refusals: int) -> None:
    decision = after_newcomer(cause, healthy=1, refusals=refusals, budget=0)
    assert isinstance(decision, Relaunch)
    assert decision.reason == f"a newcomer {SENTENCE[cause]}; 1 train on"


def test_newcomers_are_tried_more_and_more_seldom() -> None:
    decisions = [after_newcomer(refusals=refusals) for refusals in range(6)]
    assert [d.delay for d in decisions if isinstance(d, Relaunch)] == [5, 10, 20, 40, 60, 60]


def test_before_anybody_was_ready_what_is_certain_to_fail_ends_the_job_at_once() -> None:
    assert after_newcomer(begun=False, healthy=0) == GiveUp("the job cannot run as it is described")


def test_before_anybody_was_ready_a_crash_counts_as_one() -> None:
    assert after_newcomer(Cause.CRASHED, begun=False, healthy=0) == Relaunch(
        1.0, "a worker crashed; failure 1 of 3 allowed"
    )


def test_when_nobody_is_left_newcomers_have_a_few_tries() -> None:
    decisions = [after_newcomer(healthy=0, running=0, refusals=refusals) for refusals in range(3)]
    assert [type(decision) for decision in decisions] == [Relaunch, Relaunch, GiveUp]
    assert decisions[2].reason == "nobody trains any more, and 3 newcomers in a row could not begin"


def test_a_newcomer_that_nobody_needs_any_more_is_not_tried_again() -> None:
    assert after_newcomer(running=3, wanted=3) == Leave("3 workers are enough for 3 wanted")


@pytest.mark.parametrize("cause", sorted(FREE, key=lambda cause: cause.value))
def test_a_newcomer_that_is_disrupted_did_not_fail_to_begin(cause: Cause) -> None:
    around = Around(running=1, wanted=2, healthy=1, begun=True)
    assert not is_refusal(Worker(cause, accepted=False), around)
    assert is_refusal(Worker(Cause.CRASHED, accepted=False), around)
    assert not is_refusal(Worker(Cause.CRASHED, accepted=True), around)


@pytest.mark.parametrize("cause", sorted(FREE | {Cause.CRASHED, Cause.STUCK}, key=str))
@pytest.mark.parametrize("accepted", [True, False])
def test_a_lost_worker_is_not_replaced_where_the_user_wants_it_so(cause, accepted):
    around = Around(running=2, wanted=3, healthy=2, begun=True, budget=3, minimum=2, replaces=False)
    decision = decide(Worker(cause, accepted), around)
    assert isinstance(decision, Unreplaced) and "disable_relaunch=true" in decision.reason


def test_too_few_who_are_not_replaced_are_too_few_for_ever():
    around = Around(running=1, wanted=3, healthy=1, begun=True, budget=3, minimum=2, replaces=False)
    decision = decide(Worker(Cause.DISRUPTED), around)
    assert isinstance(decision, GiveUp) and decision.reason.endswith("1 of at least 2 workers are left")
