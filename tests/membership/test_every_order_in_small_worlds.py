"""All orders of a handful of events in worlds of three workers, without sampling (`testing/search.py`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edl_allreduce.core.membership.types import Options
from edl_allreduce.testing.search import explore
from edl_allreduce.testing.world import Action, World


def small_world(*, ready: int, preparing: int = 0, minimum: int = 1, steps: int = 2) -> World:
    """`ready` workers are about to form the first ring, `preparing` ones have just said hello."""
    world = World(Options(wanted=ready, minimum=minimum), steps=steps, lockstep=True)
    for _ in range(ready + preparing):
        world.do("launch")
    for uid in list(world.workers):
        world.do("deliver", uid)
    for uid in list(world.workers)[:ready]:
        world.do("get ready", uid)
        world.do("deliver", uid)
    return world


def training(world: World) -> World:
    """Let things take their course until the ring trains."""
    while not all(m.joined for m in world.state.alive()) or not world.state.alive():
        verb, uid = next(a for a in world.enabled() if a[0] not in ("step", "get ready"))
        world.do(verb, uid)
    return world


def names(value: object) -> str:
    """Test ids that read like sentences."""
    if isinstance(value, tuple):
        return " and ".join(f"{verb} {uid}".strip() for verb, uid in value) or "nothing"
    return str(getattr(value, "__name__", value)).replace("_", " ")


def three_train() -> World:
    return training(small_world(ready=3))


def three_train_and_two_are_the_minimum() -> World:
    return training(small_world(ready=3, minimum=2))


def three_form_the_first_ring() -> World:
    return small_world(ready=3, steps=1)


def two_form_the_first_ring() -> World:
    return small_world(ready=2, steps=1)


def two_train_while_one_prepares() -> World:
    return training(small_world(ready=2, preparing=1, steps=1))


def one_trains_while_one_prepares() -> World:
    return training(small_world(ready=1, preparing=1))


def one_trains_long_enough_to_vote_while_one_prepares() -> World:
    """So many steps that the next ring is connected and voted for while this one trains to the boundary."""
    return training(small_world(ready=1, preparing=1, steps=5))


def two_train_long_enough_to_vote_while_one_prepares() -> World:
    return training(small_world(ready=2, preparing=1, steps=5))


def two_train_while_an_odd_one_prepares() -> World:
    world = training(small_world(ready=2, preparing=1, steps=3))
    for _ in range(2):
        world.do("step", "a")  # so many show that the ring works
    world.do("spoil", "c")
    return world


def two_form_the_first_ring_with_an_odd_one() -> World:
    world = small_world(ready=2, preparing=1, steps=1)
    world.do("spoil", "b")
    return world


def two_train_and_both_are_the_minimum() -> World:
    return training(small_world(ready=2, minimum=2, steps=1))


def one_trains_alone() -> World:
    return training(small_world(ready=1))


KILL_A, KILL_B, KILL_C = ("kill", "a"), ("kill", "b"), ("kill", "c")
DRAIN_A, DRAIN_B, DRAIN_C = ("drain", "a"), ("drain", "b"), ("drain", "c")
FREEZE_A, FREEZE_B, FREEZE_C = ("freeze", "a"), ("freeze", "b"), ("freeze", "c")
CUT_A, CUT_B, CUT_C = ("cut off", "a"), ("cut off", "b"), ("cut off", "c")
THAW_B = ("thaw", "b")
RESTART, LAUNCH = ("restart", ""), ("launch", "")
WHILE, LATE, VERY_LATE = ("while", ""), ("long tick", ""), ("very long tick", "")
CALLED_OFF = "a hello with a plan that was called off and not given up"
AFTER_A_WHILE = "a hello after a while"
DESERTED = "a deserted worker"
BOUNDARY = "a voted boundary"


@pytest.mark.parametrize(
    ("begin", "faults"),
    [
        (three_train, ()),
        (three_train, (KILL_A, KILL_B)),
        (three_train, (KILL_A, DRAIN_B)),
        (three_train, (FREEZE_A, DRAIN_B)),
        (three_train, (FREEZE_B, THAW_B)),
        (three_train, (RESTART,)),
        (three_train, (CUT_A,)),
        (three_train, (CUT_B, KILL_B)),
        (three_form_the_first_ring, (CUT_A,)),
        (three_form_the_first_ring, (RESTART,)),
        (three_train_and_two_are_the_minimum, (KILL_A, DRAIN_B)),
        (three_form_the_first_ring, (KILL_A,)),
        (three_form_the_first_ring, (FREEZE_A,)),
        (two_train_while_one_prepares, (KILL_C,)),
        (two_train_while_one_prepares, (DRAIN_A,)),
        (two_train_while_one_prepares, (FREEZE_A,)),
        (two_train_while_one_prepares, (RESTART,)),
        (one_trains_while_one_prepares, (DRAIN_A,)),
        (one_trains_while_one_prepares, (CUT_A,)),
        (one_trains_while_one_prepares, (CUT_B,)),
        (one_trains_while_one_prepares, (DRAIN_A, KILL_B)),
        (two_train_while_an_odd_one_prepares, ()),
        (two_train_while_an_odd_one_prepares, (KILL_A,)),
        (two_train_while_an_odd_one_prepares, (DRAIN_B,)),
        (two_form_the_first_ring_with_an_odd_one, ()),
        (one_trains_long_enough_to_vote_while_one_prepares, ()),
        (one_trains_long_enough_to_vote_while_one_prepares, (CUT_A,)),
        (one_trains_long_enough_to_vote_while_one_prepares, (CUT_B,)),
        (one_trains_long_enough_to_vote_while_one_prepares, (KILL_A,)),
        (one_trains_long_enough_to_vote_while_one_prepares, (DRAIN_A,)),
        (one_trains_long_enough_to_vote_while_one_prepares, (RESTART,)),
        (two_train_long_enough_to_vote_while_one_prepares, ()),
        (two_train_long_enough_to_vote_while_one_prepares, (KILL_C,)),
        (two_train_long_enough_to_vote_while_one_prepares, (DRAIN_A,)),
        (two_train_long_enough_to_vote_while_one_prepares, (FREEZE_C,)),
    ],
    ids=names,
)
@pytest.mark.search
def test_no_order_of_events_breaks_a_promise(begin: Callable[[], World], faults: tuple[Action, ...]) -> None:
    assert explore(begin(), faults) > 0


@pytest.mark.search
@pytest.mark.parametrize(
    ("begin", "faults", "situations"),
    [
        (two_train_and_both_are_the_minimum, (KILL_A, CUT_B), {CALLED_OFF}),
        (one_trains_long_enough_to_vote_while_one_prepares, (), {BOUNDARY}),
        (two_form_the_first_ring, (CUT_A, RESTART), {CALLED_OFF}),
        (one_trains_alone, (CUT_A, WHILE), {AFTER_A_WHILE}),
        (one_trains_alone, (DRAIN_A, CUT_A, WHILE), {DESERTED}),
        (one_trains_while_one_prepares, (CUT_A, WHILE), {AFTER_A_WHILE}),
        (one_trains_while_one_prepares, (RESTART, WHILE), {AFTER_A_WHILE}),
        (one_trains_while_one_prepares, (RESTART, LATE), {AFTER_A_WHILE}),
    ],
    ids=names,
)
def test_no_order_of_events_breaks_a_promise_in_rare_situations(
    begin: Callable[[], World], faults: tuple[Action, ...], situations: set[str]
) -> None:
    world = begin()
    assert explore(world, faults) > 0
    assert situations <= world.visited, "the search does not come where it should"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("begin", "faults"),
    [
        (three_train, (CUT_A, KILL_B)),
        (one_trains_while_one_prepares, (CUT_A, CUT_B)),
        (one_trains_while_one_prepares, (CUT_A, LATE)),
        (one_trains_while_one_prepares, (CUT_A, VERY_LATE)),
        (two_train_while_one_prepares, (CUT_A,)),
        (two_train_while_one_prepares, (CUT_C,)),
        (three_train, (DRAIN_A, DRAIN_B, DRAIN_C)),
        (three_train, (LATE, KILL_A)),
        (three_train, (RESTART, KILL_A)),
        (three_form_the_first_ring, (VERY_LATE,)),
        (three_form_the_first_ring, (KILL_A, KILL_B)),
        (three_form_the_first_ring, (KILL_A, DRAIN_B)),
        (three_form_the_first_ring, (FREEZE_B, LATE)),
        (two_train_while_one_prepares, (DRAIN_A, DRAIN_B)),
        (two_train_while_one_prepares, (KILL_A, DRAIN_B)),
        (two_train_while_one_prepares, (KILL_A, KILL_B)),
        (two_train_while_one_prepares, (FREEZE_C, DRAIN_A)),
        (two_train_while_one_prepares, (RESTART, KILL_A)),
        (one_trains_while_one_prepares, (DRAIN_A, RESTART)),
        (one_trains_while_one_prepares, (DRAIN_A, LAUNCH)),
        (two_train_long_enough_to_vote_while_one_prepares, (KILL_A,)),
        (two_train_long_enough_to_vote_while_one_prepares, (CUT_A,)),
        (two_train_long_enough_to_vote_while_one_prepares, (CUT_C,)),
        (two_train_long_enough_to_vote_while_one_prepares, (RESTART,)),
        (one_trains_long_enough_to_vote_while_one_prepares, (CUT_A, LATE)),
        (one_trains_long_enough_to_vote_while_one_prepares, (RESTART, LATE)),
        (one_trains_long_enough_to_vote_while_one_prepares, (DRAIN_A, CUT_A, LATE)),
    ],
    ids=names,
)
def test_no_order_of_more_events_breaks_a_promise(
    begin: Callable[[], World], faults: tuple[Action, ...]
) -> None:
    """Hundreds of thousands of states: minutes."""
    assert explore(begin(), faults) > 0
