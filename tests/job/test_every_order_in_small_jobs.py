"""All orders of commands, ends that the cluster tells, restarts and a handful of faults in whole small jobs.

The job's machine is the master, its workers are real machines. Nothing is sampled (`testing/search.py`).
"""

from __future__ import annotations

import pytest

from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import JobOptions
from edl_allreduce.testing.job_world import JobWorld
from edl_allreduce.testing.search import explore
from edl_allreduce.testing.world import Action, Doing

SCALE_UP, SCALE_DOWN = ("scale", "2"), ("scale", "1")
STOP, KILL_ALL, RESTART = ("stop", ""), ("kill all", ""), ("restart", "")
WHILE = ("while", "")
KILL, DRAIN, CUT, FREEZE = ("kill", "u0"), ("drain", "u0"), ("cut off", "u0"), ("freeze", "u0")


def small_job(wanted: int = 1, steps: int = 1) -> JobWorld:
    """A job whose first ring trains."""
    options = JobOptions("job", wanted, 1, 1.0, Deadlines(10.0), crash_budget=3)
    world = JobWorld(options, steps=steps, lockstep=True)
    while not all(w.doing is Doing.TRAINING for w in world.workers.values()):
        world.do(*world.enabled()[0])
    return world


def names(value: object) -> str:
    if isinstance(value, tuple):
        return " and ".join(f"{verb} {uid}".strip() for verb, uid in value)
    return " ".join(sorted(value)) if isinstance(value, set) else str(value)


@pytest.mark.search
@pytest.mark.parametrize(
    ("wanted", "faults", "ends"),
    [
        (1, (STOP, RESTART), {Phase.SUCCEEDED, Phase.STOPPED}),
        (1, (STOP, KILL), {Phase.SUCCEEDED, Phase.STOPPED}),
        (1, (STOP, CUT), {Phase.SUCCEEDED, Phase.STOPPED}),
        (1, (STOP, DRAIN), {Phase.SUCCEEDED, Phase.STOPPED}),
        (1, (KILL_ALL, RESTART), {Phase.SUCCEEDED, Phase.STOPPED}),
        (1, (SCALE_UP,), {Phase.SUCCEEDED}),
        (1, (KILL, RESTART), {Phase.SUCCEEDED}),
        (2, (STOP,), {Phase.SUCCEEDED, Phase.STOPPED}),
        (2, (SCALE_DOWN,), {Phase.SUCCEEDED}),
        (2, (KILL,), {Phase.SUCCEEDED}),
        (2, (FREEZE,), {Phase.SUCCEEDED}),
        (1, (STOP, RESTART, KILL), {Phase.SUCCEEDED, Phase.STOPPED, Phase.FAILED}),
        (1, (STOP, RESTART, WHILE), {Phase.SUCCEEDED, Phase.STOPPED}),
        (1, (SCALE_UP, STOP), {Phase.SUCCEEDED, Phase.STOPPED}),
        (1, (SCALE_UP, RESTART), {Phase.SUCCEEDED}),
        (1, (SCALE_UP, KILL), {Phase.SUCCEEDED}),
        (2, (STOP, RESTART), {Phase.SUCCEEDED, Phase.STOPPED}),
        (2, (SCALE_DOWN, STOP), {Phase.SUCCEEDED, Phase.STOPPED}),
        (2, (SCALE_DOWN, RESTART), {Phase.SUCCEEDED}),
    ],
    ids=names,
)
def test_no_order_of_commands_and_ends_breaks_a_promise(
    wanted: int, faults: tuple[Action, ...], ends: set[Phase]
) -> None:
    search(wanted, faults, ends)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("wanted", "faults", "ends"),
    [
        (2, (STOP, KILL), {Phase.SUCCEEDED, Phase.STOPPED}),
        (2, (KILL, RESTART), {Phase.SUCCEEDED}),
        (2, (STOP, KILL, RESTART), {Phase.SUCCEEDED, Phase.STOPPED}),
        (2, (SCALE_DOWN, KILL), {Phase.SUCCEEDED}),
    ],
    ids=names,
)
def test_no_order_of_more_commands_and_ends_breaks_a_promise(
    wanted: int, faults: tuple[Action, ...], ends: set[Phase]
) -> None:
    """Minutes."""
    search(wanted, faults, ends)


def search(wanted: int, faults: tuple[Action, ...], ends: set[Phase]) -> None:
    world = small_job(wanted)
    assert explore(world, faults) > 0
    assert ends <= world.ends, "the search does not come where it should"
