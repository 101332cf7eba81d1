"""All orders of commands, deaths and restarts in small jobs with a standby (`testing/search.py`)."""

from __future__ import annotations

import pytest

from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import JobOptions
from edl_allreduce.testing.job_world import JobWorld
from edl_allreduce.testing.search import explore
from edl_allreduce.testing.world import Action, Doing

KILL, KILL_STANDBY, DRAIN = ("kill", "u0"), ("kill", "u1"), ("drain", "u0")
STOP, RESTART, SCALE_UP = ("stop", ""), ("restart", ""), ("scale", "2")


def small_job() -> JobWorld:
    """A job of one worker that trains, and of one that is ready."""
    options = JobOptions("job", 1, 1, 1.0, Deadlines(10.0), crash_budget=3, standby=1)
    world = JobWorld(options, steps=1, lockstep=True)
    while world.workers["u0"].doing is not Doing.TRAINING:
        world.do(*world.enabled()[0])
    while world.workers["u1"].doing is not Doing.IDLE:
        world.do(*next(action for action in world.enabled() if action[1] == "u1"))
    return world


@pytest.mark.search
@pytest.mark.parametrize(
    ("faults", "ends"),
    [
        ((KILL,), {Phase.SUCCEEDED}),
        ((KILL_STANDBY,), {Phase.SUCCEEDED}),
        ((DRAIN,), {Phase.SUCCEEDED}),
        ((RESTART,), {Phase.SUCCEEDED}),
        ((STOP,), {Phase.SUCCEEDED, Phase.STOPPED}),
        ((SCALE_UP,), {Phase.SUCCEEDED}),
    ],
    ids=lambda value: (
        " and ".join(f"{verb} {uid}".strip() for verb, uid in value) if isinstance(value, tuple) else ""
    ),
)
def test_no_order_breaks_a_promise(faults: tuple[Action, ...], ends: set[Phase]) -> None:
    world = small_job()
    assert explore(world, faults) > 0
    assert ends <= world.ends, "the search does not come where it should"


def one_cut_off() -> JobWorld:
    """Two workers have agreed on a model when one loses its connection: the third takes its place."""
    options = JobOptions("job", 2, 1, 1.0, Deadlines(10.0), crash_budget=3, standby=1)
    world = JobWorld(options, steps=2, lockstep=True)
    while world.workers["u0"].doing is not Doing.TRAINING:
        world.do(*world.enabled()[0])
    while world.workers["u2"].doing is not Doing.IDLE or world.workers["u2"].outbox:
        world.do(*next(action for action in world.enabled() if action[1] == "u2"))
    while world.workers["u1"].outbox:
        world.do("deliver", "u1")
    world.do("cut off", "u0")
    world.do("notice", "0")
    assert world.state.plan is not None and {seat.uid for seat in world.state.plan.members} == {"u1", "u2"}
    return world


@pytest.mark.search
def test_no_order_breaks_a_promise_where_a_member_comes_back_to_a_full_ring() -> None:
    assert explore(one_cut_off(), ()) > 0


@pytest.mark.search
def test_no_order_breaks_a_promise_after_it_found_no_place() -> None:
    world = one_cut_off()
    while world.state.without_a_place() == [] or not all(m.joined for m in world.state.alive()):
        world.do(*next(action for action in world.enabled() if action[0] != "step"))
    world.do("while")
    assert "a model without a place" in world.visited
    assert explore(world, ()) > 0


@pytest.mark.soak
@pytest.mark.parametrize(
    "faults",
    [(KILL, KILL_STANDBY), (KILL, RESTART), (STOP, KILL), (DRAIN, KILL_STANDBY), (SCALE_UP, KILL)],
    ids=str,
)
def test_no_order_of_more_breaks_a_promise(faults: tuple[Action, ...]) -> None:
    """Minutes."""
    assert explore(small_job(), faults) > 0
