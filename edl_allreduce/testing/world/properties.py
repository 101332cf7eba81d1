"""What must be true of every decision of a master, whatever happened before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edl_allreduce.core.membership import types as m
from edl_allreduce.core.membership.types import Standing, State
from edl_allreduce.core.protocol import Plan, Ready
from edl_allreduce.testing.world import rings
from edl_allreduce.testing.world.worker import Doing, Life, ids

if TYPE_CHECKING:
    from edl_allreduce.testing.world.play import World


def check_plan(world: World, before: State, event: m.Event, publish: m.Publish) -> None:
    plan, after = publish.plan, world.state
    assert plan.generation > before.generation, "generations grow"
    # A number of an earlier master that only the dead and the never heard know does no harm: those who
    # know it and come are turned away.
    met = [w for w in world.workers.values() if w.life is not Life.DEAD and w.uid in after.members]
    numbers = {number for w in met for number in (w.newest, w.generation)}
    assert plan.generation not in numbers, f"generation {plan.generation} exists already"
    world.plans[plan.generation] = plan
    seated = {seat.uid for seat in plan.members}
    for w in (world.workers[uid] for uid in seated):
        assert plan.generation > w.newest, f"{w.uid} knows generation {w.newest} and would ignore this one"
    assert len(seated) >= max(1, world.options.minimum), "a ring has at least the minimum"
    assert not seated & after.gone, "nobody who is gone is planned"
    known = after.members
    assert seated <= known.keys()
    for uid in seated & before.members.keys():
        was = before.members[uid]
        ready = isinstance(event, m.Heard) and isinstance(event.message, Ready) and event.uid == uid
        assert ready or was.standing is not Standing.PREPARING, f"{uid} still prepares"
    holders = {uid for uid, member in known.items() if member.has_state}
    if holders:
        assert plan.members[0].uid in holders, "rank 0 holds the model if anybody does"
    waiting = {u for u, x in known.items() if x.standing is Standing.WAITING and x.away is None}
    for uid in waiting - seated:
        assert known[uid].draining, f"{uid} is ready and was left out"
    assert all(known[uid].away is None for uid in seated), "who cannot hear of a plan is not part of it"
    taken_over = not publish.abort and before.plan is None
    assert not taken_over or world.now >= before.options.recover_until, "it goes on as it is for a while"
    if not publish.abort and before.plan is not None:
        old = {seat.uid for seat in before.plan.members}
        assert old != seated, "a needless plan"
        told = getattr(event, "uid", "")
        assert all(x.joined or x.seat.uid == told for x in before.alive()), "the last one is not joined"
        real = [world.workers[x.seat.uid] for x in before.alive()]
        assert all(w.has_state and w.generation >= before.plan.generation for w in real), "only believed"
        assert any(known[uid].has_state and not known[uid].draining for uid in seated) or any(
            known[uid].draining for uid in seated
        )
    assert publish.reason, "a decision has a reason"


def check_one_ring(world: World, plan: Plan) -> None:
    """Nobody trains beside this ring, but for those who were given up and do not know it yet."""
    for w in world.workers.values():
        ring = w.ring
        if w.up and w.doing is Doing.TRAINING and ring not in (None, plan) and ring is not None:
            beside = w.uid not in world.state.gone and rings.can_step(world, w, ring)
            assert not beside, f"{ids(plan)} and {ids(ring)} train side by side"


def check_finish(world: World, finish: m.Finish) -> None:
    alive = {member.seat.uid for member in world.state.alive()}
    assert set(finish.uids) == alive and alive, "the finish is for all living members of the last ring"
    for uid in finish.uids:
        w = world.workers[uid]
        assert w.step >= world.steps, f"{uid} has {w.step} steps of {world.steps}"
    assert finish.step >= world.steps


def check_eviction(world: World, uid: str, reason: str) -> None:
    w, since = world.workers[uid], world.faultless_since
    behaves = w.up and since is not None and world.now > since
    stray = "of generation" in reason or "given up" in reason
    if "its place was taken" in reason:
        ring = world.state.plan.members if world.state.plan is not None else ()
        held = [seat.uid for seat in ring if world.workers[seat.uid].up and world.workers[seat.uid].has_state]
        assert held, f"{uid} holds the last model"
        world.visited.add("a model without a place")
        return
    unproven = "rings in a row" in reason and any(x.odd for x in world.workers.values()) and w.step == 0
    assert not behaves or stray or w.odd or unproven, f"{uid} did nothing wrong: {reason}"


def check_holder(world: World, before: State, uid: str) -> None:
    """Whoever holds the model and cannot be heard is given up last."""
    w, member = world.workers[uid], before.members.get(uid)
    silent = member is not None and (member.expected or member.away is not None)
    if not silent or not world.could_go_on(w) or uid not in world.silent_since:
        return
    heard = [u for u, x in before.members.items() if x.away is None and not x.expected]
    waited = world.now - world.silent_since[uid]
    last = not any(world.workers[u].has_state for u in heard)
    assert not last or waited >= world.options.patience, f"{uid} holds the model: only {waited:.0f} s"


def check_end(world: World) -> None:
    usable = [w for w in world.workers.values() if w.up and not w.machine.draining]
    if world.finished is None:
        minimum = max(1, world.options.minimum)
        able = [w.uid for w in usable]
        assert len(usable) < minimum, f"{able} could train, but nothing happens\n{world.story}"
        assert world.state.waiting_for, f"waits without saying for what\n{world.story}"
