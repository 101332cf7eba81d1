"""The account of a job, in simulated time: whatever is heard and whenever, the parts add up to the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_allreduce.core import goodput
from edl_allreduce.core.goodput import Bucket, ReformCause, Witness, reform_cause

T0 = 1000.0


def whole(seconds) -> float:
    return sum(seconds.values())


def started() -> goodput.Account:
    """Two workers that said hello after two seconds."""
    account = goodput.begin(T0)
    for worker_id in (0, 1):
        account = goodput.launched(account, worker_id, T0)
    account = goodput.waits(account, Bucket.LAUNCH, T0 + 2)
    for worker_id in (0, 1):
        account = goodput.connected(account, worker_id, T0 + 2)
    return account


def test_the_witness_splits_the_wall_time_and_every_worker_its_own():
    account = started()
    first = {Bucket.STARTUP: 3.0, Bucket.STEP: 4.0, Bucket.INPUT: 1.0}
    account = goodput.heard(account, 0, first, T0 + 10, Witness(0))
    account = goodput.heard(account, 1, {Bucket.STARTUP: 8.0}, T0 + 10, Witness(0))
    seen = goodput.report(account)
    assert seen.wall == 10 and whole(seen.seconds) == pytest.approx(10)
    assert seen.seconds == {
        "productive_step": 4.0,
        "worker_launch": 2.0,
        "program_startup": 3.0,
        "data_loading_sync": 1.0,
    }
    assert seen.workers[1].seconds == {"worker_launch": 2.0, "program_startup": 8.0}
    assert seen.share == pytest.approx(0.4) and seen.worker_share == pytest.approx(4 / 20)


def test_a_heartbeat_that_was_held_up_loses_and_invents_no_time():
    """The ledger was read a second before it arrived: what it says is a proportion."""
    account = goodput.heard(started(), 0, {Bucket.STEP: 5.0, Bucket.INPUT: 2.0}, T0 + 10, Witness(0))
    seen = goodput.report(account)
    assert whole(seen.seconds) == pytest.approx(10)
    assert seen.seconds["productive_step"] == pytest.approx(8 * 5 / 7)


def test_a_step_that_is_under_way_is_accounted_when_it_is_over():
    account = goodput.heard(started(), 0, {Bucket.STEP: 1.0}, T0 + 3, Witness(0))
    longer = goodput.heard(account, 0, {Bucket.STEP: 1.0}, T0 + 9, Witness(0))
    assert goodput.report(longer).wall == 3
    over = goodput.heard(longer, 0, {Bucket.STEP: 8.0}, T0 + 10, Witness(0))
    assert goodput.report(over).seconds["productive_step"] == pytest.approx(8)


def test_a_re_form_is_told_by_cause_and_phase():
    account = goodput.heard(started(), 0, {Bucket.STEP: 8.0}, T0 + 10, Witness(0))
    later = {Bucket.STEP: 8.5, Bucket.NOTICE: 0.1, Bucket.PLAN: 0.1, Bucket.JOIN: 0.2, Bucket.FIRST_STEP: 0.1}
    account = goodput.heard(account, 0, later, T0 + 11, Witness(0, ReformCause.LOSS))
    reforms = goodput.report(account).reforms
    assert reforms == {
        "loss": {
            "reform_notice": pytest.approx(0.1),
            "reform_plan": pytest.approx(0.1),
            "reform_join": pytest.approx(0.2),
            "reform_first_step": pytest.approx(0.1),
        }
    }


def test_steps_that_were_made_before_are_wasted_progress():
    account = goodput.heard(started(), 0, {Bucket.STEP: 8.0}, T0 + 10, Witness(0, redoes=True))
    assert goodput.report(account).seconds["wasted_progress_from_disruption"] == pytest.approx(8)
    assert goodput.report(account).share == 0


def test_empty_places_are_missing_capacity():
    account = goodput.tick(started(), wanted=4, present=2, now=T0 + 10)
    account = goodput.heard(account, 0, {Bucket.STEP: 8.0}, T0 + 10)
    account = goodput.heard(account, 1, {Bucket.STEP: 8.0}, T0 + 10)
    seen = goodput.report(account)
    assert seen.worker_seconds["capacity_missing"] == 20
    assert seen.worker_wall == pytest.approx(4 * 10) and seen.worker_share == pytest.approx(16 / 40)


def test_what_a_lost_worker_did_after_its_last_heartbeat_is_not_known():
    account = goodput.heard(started(), 1, {Bucket.STEP: 2.0}, T0 + 4)
    account = goodput.gone(account, 1, T0 + 5)
    account = goodput.heard(account, 1, {Bucket.STEP: 9.0}, T0 + 9)  # a message that was under way
    worker = goodput.report(account).workers[1]
    assert worker.gone and worker.lived == 5 and worker.seconds["other"] == 1


def test_a_worker_of_an_earlier_master_is_accounted_from_its_first_heartbeat():
    account = goodput.connected(goodput.begin(T0), 7, T0 + 1, taken_over=True)
    account = goodput.heard(account, 7, {Bucket.STARTUP: 50.0, Bucket.STEP: 900.0}, T0 + 2, Witness(7))
    account = goodput.heard(account, 7, {Bucket.STARTUP: 50.0, Bucket.STEP: 902.0}, T0 + 4, Witness(7))
    seen = goodput.report(account)
    assert "program_startup" not in seen.seconds and seen.seconds["productive_step"] == pytest.approx(4)


def test_another_process_under_the_same_number_has_its_own_ledger():
    account = goodput.connected(goodput.begin(T0), 7, T0, uid="first")
    account = goodput.heard(account, 7, {Bucket.STEP: 100.0}, T0 + 10)
    account = goodput.connected(account, 7, T0 + 12, uid="first")  # only another connection
    assert goodput.report(account).workers[0].lived == 10
    account = goodput.connected(account, 7, T0 + 15, uid="second")
    account = goodput.heard(account, 7, {Bucket.STARTUP: 4.0}, T0 + 20)
    seen = goodput.report(account)
    assert seen.workers[0].seconds == {"program_startup": 5.0} and not seen.workers[0].gone
    assert seen.worker_seconds == {"productive_step": 10.0, "program_startup": 5.0, "other": 5.0}


def test_workers_that_are_gone_longest_stay_in_the_sums():
    account, many = goodput.begin(T0), goodput.SHOWN_WORKERS + 10
    for worker_id in range(many):
        account = goodput.launched(account, worker_id, T0)
        account = goodput.gone(account, worker_id, T0 + 1)
    seen = goodput.report(account)
    assert len(seen.workers) == goodput.SHOWN_WORKERS and seen.worker_wall == pytest.approx(many)


@pytest.mark.parametrize(
    ("before", "after", "abort", "cause"),
    [
        ((), (0, 1), False, "first"),
        ((0, 1), (0,), True, "loss"),
        ((0, 1), (0, 2), True, "loss"),
        ((0, 1), (0,), False, "drain"),
        ((0,), (0, 1), False, "growth"),
        ((0, 1), (0, 1), True, "retry"),
    ],
)
def test_why_a_ring_re_forms_follows_from_who_was_in_it(before, after, abort, cause):
    assert reform_cause(before, after, abort=abort) == cause


def test_a_line_names_what_cost_most():
    account = goodput.heard(started(), 0, {Bucket.STEP: 6.0, Bucket.STARTUP: 2.0}, T0 + 10, Witness(0))
    assert goodput.words(goodput.report(account)) == (
        "60 % of 10 s, 50 % of worker seconds; lost: launch of workers 2.0 s, start of programs 2.0 s"
    )


Happening = tuple[str, int, str, float]
HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(["launched", "connected", "heard", "gone", "waits", "tick"]),
        st.integers(0, 3),
        st.sampled_from([b.value for b in Bucket]),
        st.floats(0.0, 5.0),
    ),
    max_size=60,
)


@given(HAPPENINGS)
def test_whatever_happens_the_parts_add_up_and_nothing_shrinks(happenings: list[Happening]):
    account, now = goodput.begin(T0), T0
    ledgers: dict[int, dict[str, float]] = {}
    before = goodput.report(account)
    for what, worker_id, bucket, seconds in happenings:
        now += seconds
        match what:
            case "launched":
                account = goodput.launched(account, worker_id, now)
            case "connected":
                account = goodput.connected(account, worker_id, now)
            case "heard":
                ledger = ledgers.setdefault(worker_id, {})
                ledger[bucket] = ledger.get(bucket, 0.0) + seconds
                account = goodput.heard(account, worker_id, dict(ledger), now, Witness(worker_id % 2))
            case "gone":
                account = goodput.gone(account, worker_id, now)
            case "waits":
                account = goodput.waits(account, Bucket(bucket), now)
            case "tick":
                account = goodput.tick(account, 2, 1, now)
        seen = goodput.report(account)
        assert whole(seen.seconds) == pytest.approx(seen.wall) and seen.wall <= now - T0
        assert whole(seen.worker_seconds) == pytest.approx(seen.worker_wall)
        for worker in seen.workers:
            assert whole(worker.seconds) == pytest.approx(worker.lived)
        assert all(seen.seconds.get(name, 0.0) >= spent for name, spent in before.seconds.items())
        before = seen
