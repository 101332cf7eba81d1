"""How rings behave: who connects, agrees on a model and makes a step, and what breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edl_allreduce.core.attendance import queries
from edl_allreduce.core.protocol import Plan
from edl_allreduce.testing.world.worker import Course, Doing, Worker, ids

if TYPE_CHECKING:
    from edl_allreduce.testing.world.play import World


def connects(world: World, plan: Plan) -> bool:
    """Whether all members take part in connecting this ring beforehand."""
    return all(w.up and w.begun(plan) for w in (world.workers[seat.uid] for seat in plan.members))


def fails(world: World, plan: Plan) -> bool:
    peers = [world.workers[seat.uid] for seat in plan.members]
    return any(peer.gave_up(plan) or peer.failed == plan.generation for peer in peers)


def broken(world: World, plan: Plan) -> bool:
    """Somebody closed its connections to this ring; a frozen worker does not."""
    return any(world.workers[seat.uid].gave_up(plan) for seat in plan.members)


def at_odds(world: World, plan: Plan) -> bool:
    return len({world.workers[seat.uid].odd for seat in plan.members}) > 1


def can_agree(world: World, w: Worker, plan: Plan) -> bool:
    if plan.generation in world.roots:
        root = world.workers[world.roots[plan.generation]]
        return w.uid == root.uid or (root.up and (root.ring == plan or root.finished(plan)))
    return all(
        peer.up
        and peer.ring == plan
        and peer.doing is Doing.JOINING
        and peer.connecting is None
        and peer.failed != plan.generation
        and peer.aborted < plan.generation
        for peer in (world.workers[seat.uid] for seat in plan.members)
    )


def can_step(world: World, w: Worker, plan: Plan) -> bool:
    course = world.courses.get(plan.generation)
    if course is not None and course.step > w.step:
        return True
    if at_odds(world, plan):
        return False
    return all(
        peer.up
        and peer.ring == plan
        and peer.doing is Doing.TRAINING
        and peer.step == w.step
        and peer.aborted < plan.generation
        for peer in (world.workers[seat.uid] for seat in plan.members)
    )


def root(world: World, plan: Plan) -> str:
    peers = [world.workers[seat.uid] for seat in plan.members]
    holders = [w for w in peers if w.has_state]
    if holders:
        return max(holders, key=lambda w: w.step).uid
    # Before the first step everybody's model is a fresh one: nothing is lost with it.
    waiting = [
        w.uid
        for w in world.workers.values()
        if w.step > 0 and w.uid in world.state.members and world.could_go_on(w)
    ]
    waiting = [] if plan.generation in world.inherited else waiting
    assert not waiting, f"training begins anew in {ids(plan)} although {waiting} still holds the model"
    return peers[0].uid


def settled(world: World, plan: Plan, step: int, before: Course | None) -> Course:
    """What the sum over all ranks' wishes says."""
    before = before or Course(0)
    peers = [world.workers[seat.uid] for seat in plan.members]
    draining = sum(w.machine.draining for w in peers)
    deserted = any(queries.deserted(w.machine, world.now) for w in peers)
    votes, stops = zip(*(queries.vote(w.machine, plan.generation) for w in peers), strict=True)
    boundary = before.boundary
    if boundary is None and (any(votes) or (before.everybody_leaves and deserted)):
        boundary = queries.boundary(step, draining=draining > 0)
    return Course(step, boundary, draining == plan.size, any(stops))
