"""When two worlds have the same future, so that a search looks at one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edl_allreduce.core import protocol
from edl_allreduce.core.membership.types import Standing, State
from edl_allreduce.core.protocol import Plan, Ready
from edl_allreduce.testing.world.worker import Life, Worker, ids

if TYPE_CHECKING:
    from edl_allreduce.testing.world.play import World


def key(world: World) -> object:
    """Two worlds with the same key have the same future. Rings in which nobody is do not count."""
    counts = {0} | {g for w in world.workers.values() if w.life is not Life.DEAD for g in _generations(w)}
    if world.state.plan is not None:
        counts.add(world.state.plan.generation)
    ordered = sorted(counts)
    return (
        tuple(_worker_key(w, world.now, ordered) for w in world.workers.values()),
        frozenset(world.unnoticed),
        _master_key(world.state, world.now),
        tuple((g, c) for g, c in world.courses.items() if g in counts),
        tuple((g, root) for g, root in world.roots.items() if g in counts),
    )


def means_nothing(world: World, w: Worker) -> bool:
    """Whether what this worker said first changes nothing, now or later: it is stale by its number, or
    tells newcomers of a place where no newcomer is."""
    match w.outbox[0]:
        case protocol.Entered(generation) | protocol.Out(generation) | protocol.Done(generation):
            member = world.state.members.get(w.uid)
            said = member is not None and member.standing is Standing.DONE
            return member is None or generation < member.generation or said
        case protocol.KvSet(generation):
            plan = world.state.plan
            if plan is None or plan.generation != generation:
                return plan is not None and plan.generation > generation
            return all(world.workers[seat.uid].has_state for seat in plan.members)
        case Ready():
            member = world.state.members.get(w.uid)
            return member is not None and member.standing is not Standing.PREPARING
        case protocol.Draining():
            member = world.state.members.get(w.uid)
            return member is not None and member.draining
    return False


def _generations(w: Worker) -> Iterator[int]:
    """Rings that this worker is in, connects to, or may come to."""
    yield w.newest
    if w.order is not None:
        yield w.order.plan.generation
    if w.connecting is not None:
        yield w.connecting.generation


def _floor(generation: int, counts: list[int]) -> int:
    """The last ring that counts up to this one."""
    return max((g for g in counts if g <= generation), default=0)


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else round(now - since, 1)


def _name(plan: Plan | None) -> str:
    """Short for a plan: comparing and hashing all its seats takes most of the time otherwise."""
    if plan is None:
        return ""
    name: str | None = plan.__dict__.get("_name")
    if name is None:
        name = plan.__dict__["_name"] = f"{plan.generation}{ids(plan)}"
    return name


def _worker_key(w: Worker, now: float, counts: list[int]) -> object:
    if w.life is Life.DEAD:
        return w.connected and w.outbox, w.machine.link, w.odd
    x = w.machine
    seen = x.__dict__.get("_key")
    if seen is None or seen[0] != now:
        machine = (
            x.stage, _name(x.plan), x.newest and (_name(x.newest.plan), x.newest.abort),
            x.preparing, x.prepared, x.doomed, x.gave_up, x.has_state, x.here and x.here[0], x.draining,
            x.last, x.link, x.linked, _age(x.lost_at, now), x.retry_at is None, x.over,
        )  # fmt: skip
        seen = x.__dict__["_key"] = now, machine
    return (
        seen[1], w.life, w.doing, w.order and (_name(w.order.plan), w.order.abort),
        w.generation, w.step, w.has_state, w.odd, _floor(w.aborted, counts),
        _name(w.connecting), w.stands if w.stands in counts else 0, w.failed if w.failed in counts else 0,
        w.connected, w.attended, w.inbox, w.outbox,
    )  # fmt: skip


def _master_key(state: State, now: float) -> object:
    members = tuple(
        (uid, _age(x.since, now), x.standing, x.generation, x.has_state, x.step, x.entered, x.joined,
         x.proven, x.draining, x.expected, x.link, _age(x.away, now))
        for uid, x in sorted(state.members.items())
    )  # fmt: skip
    return (
        members,
        _name(state.plan),
        state.generation,
        state.leads,
        _name(state.leaving),
        _age(state.leaver_lost, now),
        state.gone,
        _age(state.broken_since, now),
        _age(state.entered_since, now),
        min(_age(state.heard_since, now) or 0.0, 1000.0),
        state.aborted,
        state.moved,
        state.stalls,
        state.finished,
        state.unheard,
        max(0.0, state.options.recover_until - now),
    )
