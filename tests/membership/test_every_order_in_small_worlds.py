"""All orders of a handful of events in worlds of three workers, without sampling.

Every state that can be reached is visited once. Where nothing can happen any more, time goes on; then the
job has ended, or says what it waits for. So the course of things neither stops nor runs in circles.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from simulated_world import Doing, Life, World

from edl_allreduce.core.membership import Options


def explore(world: World, faults: tuple[tuple[str, str], ...]) -> int:
    """Visit everything that is reachable when each fault may strike once, at any moment or never."""
    seen = set()
    todo = [(world, faults)]
    while todo:
        here, left = todo.pop()
        key = (here.key(), left)
        if key in seen:
            continue
        seen.add(key)
        actions = [] if here.finished else here.enabled()
        following = [(action, left) for action in actions]
        if here.finished is None:
            following += [
                (fault, tuple(f for f in left if f != fault)) for fault in left if possible(here, *fault)
            ]
        for action, rest in following:
            after = here.clone()
            try:
                after.do(*action)
            except AssertionError:
                print(after.story)
                raise
            todo.append((after, rest))
        if not actions and here.finished is None:
            last = here.clone()
            try:
                last.settle()
            except AssertionError:
                print(last.story)
                raise
    return len(seen)


def possible(world: World, verb: str, uid: str) -> bool:
    worker = world.workers.get(uid)
    if worker is None:
        return True
    if verb == "thaw":
        return worker.life is Life.FROZEN and uid not in world.state.members
    return worker.life is not Life.DEAD and not (verb == "drain" and worker.draining)


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


def names(faults: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{verb} {uid}".strip() for verb, uid in faults)
