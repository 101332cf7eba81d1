"""Rings that break at every point, boundaries that are voted, newcomers: the state is that of a quiet run."""

from __future__ import annotations

import threading

import pytest

from edl_allreduce.core import protocol
from edl_allreduce.core.attendance.queries import LEAD_STEPS
from edl_allreduce.testing.fake_ring import Break
from edl_allreduce.worker.loop.orders import Ending
from edl_allreduce.worker.loop.steps import StepInput

STEPS = 10


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize(
    "broken",
    [Break("join", 0), Break("gather", 0), Break("gather", 1), Break("gather", 2), Break("sum", 0),
     Break("sum", 4), Break("summed", 4), Break("sum", 9), Break("summed", 9)],
    ids=str,
)  # fmt: skip
def test_a_ring_that_breaks_loses_no_step_and_repeats_none(crew, complete, broken, rank):
    for _ in range(3):
        crew.add()
    crew.workers[rank].ring.breaks = [broken]
    crew.run()
    for worker in crew.workers:
        complete(worker)
    assert len(crew.master.plans) == 2, "the ring re-formed once"
    assert crew.said(protocol.Out)


@pytest.mark.parametrize("behind", [0, 1])
def test_who_missed_the_sum_takes_the_state_from_who_applied_it(crew, complete, behind):
    crew.add()
    crew.add()
    crew.workers[behind].ring.breaks = [Break("summed", 4)]
    crew.run()
    again = [joined for joined in crew.said(protocol.Joined) if joined.generation == 2]
    assert [joined.step for joined in again] == [5, 5], "nobody computes step 4 again"
    assert [worker.ring.shared for worker in crew.workers] == [2, 2], "when the job began, and then"
    for worker in crew.workers:
        complete(worker)


def test_a_break_while_the_state_is_sent_sends_it_again(crew, complete):
    crew.add()
    crew.add()
    crew.workers[1].ring.breaks = [Break("summed", 4), Break("share", 1)]
    crew.run()
    assert len(crew.master.plans) == 3
    for worker in crew.workers:
        complete(worker)


def test_nothing_is_sent_when_all_have_the_same_state(crew, complete):
    crew.add()
    crew.add()
    crew.workers[0].ring.breaks = [Break("sum", 4)]
    crew.run()
    assert [worker.ring.shared for worker in crew.workers] == [1, 1], "only when the job began"
    for worker in crew.workers:
        complete(worker)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_the_survivors_of_a_lost_worker_take_over_its_records(crew, complete, lost):
    for index in range(3):
        crew.add(computing=crew.dies_at(4, index) if index == lost else lambda step: None)
    crew.run()
    for index, worker in enumerate(crew.workers):
        if index != lost:
            complete(worker)
            assert worker.ending is Ending.RELEASED
    assert crew.master.plans[1].plan.size == 2


def test_where_a_pause_went_is_told_by_survivors_only(crew):
    crew.add(computing=crew.at_step(3, lambda: crew.master.plan(*(w.orders for w in crew.workers))))
    crew.add()
    newcomer = crew.add()
    crew.run(*crew.workers[:2])
    told = crew.said(protocol.Reformed)
    assert [(pause.generation, pause.size) for pause in told] == [(2, 3), (2, 3)]
    assert not newcomer.said(protocol.Reformed)
    assert all(pause.notice == 0 and pause.pause > 0 for pause in told)


def test_a_newcomer_comes_at_a_voted_boundary_and_takes_the_state(crew, complete):
    """Voted with step 3, so the ring ends so many steps later; meanwhile the newcomer reads its records."""
    crew.add(computing=crew.at_step(3, lambda: crew.master.plan(*(w.orders for w in crew.workers))))
    crew.add()
    newcomer = crew.add()
    crew.run(*crew.workers[:2])
    boundary = 3 + 1 + LEAD_STEPS
    assert crew.master.starts[2] == (boundary, boundary * 6)
    assert [j.step for j in crew.said(protocol.Joined) if j.generation == 2] == [boundary] * 3
    assert newcomer.fed == [(boundary, boundary * 6)], "read once, before it joined"
    assert crew.workers[0].fed == [(0, 0), (boundary, boundary * 6)]
    assert not [out for out in crew.said(protocol.Out) if out.reason], "no ring broke"
    for worker in crew.workers:
        complete(worker)


def test_a_worker_that_drains_is_not_made_to_wait(crew, complete):
    planned = threading.Event()

    def plan_without_it() -> None:
        crew.master.plan(crew.workers[0].orders)
        planned.set()

    def drain_and_see_the_plan(step: StepInput) -> None:
        if step.number == 3:
            crew.workers[1].orders.drain()
        if step.number == 4:
            assert planned.wait(60)

    crew.add(computing=crew.at_step(4, plan_without_it))
    crew.add(computing=drain_and_see_the_plan)
    crew.run()
    stays, leaves = crew.workers
    (joined,) = [j for j in stays.said(protocol.Joined) if j.generation == 2]
    assert joined.step == 5, "voted with step 4, and no step more"
    assert leaves.ending is Ending.LEFT
    assert leaves.engine.state.step == joined.step
    complete(stays)


def test_a_newcomer_to_a_ring_that_is_called_off_declines(crew, complete):
    def change_twice() -> None:
        old = [worker.orders for worker in crew.workers[:2]]
        crew.master.plan(*old, crew.workers[2].orders)
        crew.master.plan(*old, abort=True)

    crew.add(computing=crew.at_step(3, change_twice))
    crew.add()
    newcomer = crew.add()
    crew.run(*crew.workers[:2])
    assert [out.reason for out in newcomer.said(protocol.Out)] in ([], ["called off before it entered"])
    assert not newcomer.said(protocol.Joined)
    for worker in crew.workers[:2]:
        complete(worker)


def test_a_ring_that_is_doomed_before_it_is_entered_is_not_joined(crew, complete):
    worker = crew.add()
    refused = []
    entering = worker.orders.entering

    def once(plan, place) -> bool:
        if refused:
            return entering(plan, place)
        refused.append(plan.generation)
        entering(plan, place)
        return False

    worker.orders.entering = once
    crew.run()
    assert refused == [1]
    assert [joined.generation for joined in crew.said(protocol.Joined)] == [2]
    complete(worker)
