"""What happens after a worker ended, by its cause."""

from __future__ import annotations

import pytest

from edl_allreduce.core.relaunch import (
    FREE,
    LONGEST_DELAY,
    SENTENCE,
    Cause,
    Decision,
    GiveUp,
    Leave,
    Relaunch,
    decide,
)


def after(cause: Cause, *, failures: int = 0, budget: int = 3, running: int = 1, wanted: int = 2) -> Decision:
    return decide(cause, failures=failures, budget=budget, running=running, wanted=wanted)


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
