"""All orders of a handful of events in a small world, without sampling.

Every state that can be reached is visited once. Where nothing can happen any more, time goes on; then the job
has ended, or says what it waits for. So the course of things neither stops nor runs in circles.
"""

from __future__ import annotations

from collections.abc import Sequence

from edl_allreduce.testing.world import Action, Life, World


def explore(world: World, faults: Sequence[Action]) -> int:
    """Visit everything that is reachable when each fault may strike once, at any moment or never."""
    seen = set()
    todo = [(world, tuple(faults))]
    while todo:
        here, left = todo.pop()
        key = (here.key(), left)
        if key in seen:
            continue
        seen.add(key)
        actions = [] if here.ended else here.enabled()
        following = [(action, left) for action in actions]
        if not here.ended:
            following += [
                (fault, tuple(f for f in left if f != fault)) for fault in left if possible(here, *fault)
            ]
        for action, rest in following:
            after = here.clone()
            after.do(*action)
            todo.append((after, rest))
        if not actions and not here.ended:
            here.clone().settle()
    return len(seen)


def possible(world: World, verb: str, uid: str) -> bool:
    """Whether this fault can strike now."""
    worker = world.workers.get(uid)
    if worker is None:
        return True
    if verb == "thaw":
        return worker.life is Life.FROZEN and uid not in world.state.members
    if verb == "cut off":
        return worker.life is Life.UP and worker.connected
    return worker.life is not Life.DEAD and not (verb == "drain" and worker.machine.draining)
