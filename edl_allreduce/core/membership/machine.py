"""The decisions. `handle` is the one door."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edl_allreduce.core.causes import Cause
from edl_allreduce.core.membership import hearing
from edl_allreduce.core.membership.types import (
    Abort,
    Action,
    Event,
    Evict,
    Finish,
    Lost,
    LostTogether,
    Member,
    Publish,
    Standing,
    State,
)
from edl_allreduce.core.protocol import Plan

STALLS = 3
"""Rings in a row that may break within their first steps (`hearing.PROOF`), without a loss, before
somebody is to blame."""
RESTART_GAP = 1000
"""Numbers that a restarted master leaves free: its predecessor's last plans may have reached only workers
that it has not heard yet, and no generation may mean two rings."""


def handle(state: State, event: Event, now: float) -> tuple[State, tuple[Action, ...]]:
    """The one door through which state changes."""
    if state.finished:
        losses = event.losses if isinstance(event, LostTogether) else (event,)
        for lost in losses:
            state = hearing.without(state, lost.uid) if isinstance(lost, Lost) else state
        return state, ()
    state, evictions = hearing.learn(state, event, now)
    state, actions = _decide(state, now)
    return state, (*evictions, *actions)


def _decide(state: State, now: float) -> tuple[State, tuple[Action, ...]]:
    """The whole policy, most urgent first."""
    expected = [m for m in state.members.values() if m.expected]
    missing = [m for m in expected if _waited(state, m, now) > _absence(state, m)]
    if missing:
        return _evict(state, missing, "was not heard after the master's restart", Cause.SILENT, now)
    away = [m for m in state.members.values() if m.away is not None]
    overdue = [m for m in away if _waited(state, m, now) > _absence(state, m)]
    if overdue:
        waited = max(_waited(state, m, now) for m in overdue)
        why = f"is gone: its connection ended, and it did not come back within {waited:.0f} s"
        return _evict(state, overdue, why, Cause.SILENT, now)

    state = _go_on_without(state)
    ring = state.alive()
    if state.plan is None or not ring:
        return _form(state, now)
    if all(m.standing is Standing.DONE for m in ring):
        finish = Finish(tuple(m.seat.uid for m in ring), max(m.step for m in ring))
        return replace(state, finished=True, waiting_for=""), (finish,)
    unheard = [m for m in ring if m.expected]
    if unheard:
        return _wait(state, f"the master restarted; worker {_ids(unheard)} has not reported yet")
    if now < state.options.recover_until:  # who reported first may be a straggler of an older ring
        return _wait(state, "the master restarted and waits for a newer ring to report")

    inside = [m for m in ring if m.standing is Standing.RING]
    done = [m for m in ring if m.standing is Standing.DONE]
    if len(ring) < state.plan.size:
        return _replace_ring(state, ring, inside, now)
    if len(inside) + len(done) < len(ring):
        return _settle(state, ring, inside, now)
    if not all(m.joined for m in inside):
        return _watch_joining(state, ring, inside, now)
    if done:  # a change now would only delay the end
        return _wait(state, f"worker {_ids(inside)} has yet to report the last step")

    away = [m for m in ring if m.away is not None]
    if away:
        return _wait(state, f"worker {_ids(away)} trains, but has lost its connection to the master")
    draining = [m for m in ring if m.draining]
    newcomers = _taken(state, len(ring) - len(draining))
    seats = _seats(state, ring + newcomers)
    if draining:
        if len(seats) == len(ring) and not newcomers:
            return _wait(state, f"worker {_ids(draining)} wants to leave, but nobody is ready to take over")
        kept = [m for m in seats if m.draining]
        handover = f"; worker {_ids(kept)} stays until others can do without" if kept else ""
        return _publish(state, seats, False, f"worker {_ids(draining)} drains{handover}", now)
    whole = len(newcomers) == state.takes(len(ring))
    if newcomers and (whole or _gathered(state, newcomers, now)):
        return _publish(state, seats, False, f"worker {_ids(newcomers)} joins", now)
    return _turn_out_the_old(replace(state, waiting_for=""), now)


def _turn_out_the_old(state: State, now: float) -> tuple[State, tuple[Action, ...]]:
    """Whoever came back to a full ring holds a model that gets older with each of its steps. A new worker
    can stand by, this one cannot: it goes, once all members were heard for as long as a dead one could pass
    for a living one, so that its model is not the last."""
    limit = state.options.deadlines.silent
    old = [m for m in state.without_a_place() if now - m.since > limit]
    if not old or state.stopping:
        return state, ()
    why = f"was cut off; its place was taken, and for {limit:.0f} s no other one became free"
    return _evict(state, old, why, Cause.SILENT, now)


def _go_on_without(state: State) -> State:
    """A ring that broke, or that cannot complete, while a member has no connection: most likely that one is
    dead, and the others go on at once. If it lives, it comes back as somebody who waits."""
    ring = state.alive()
    away = [m for m in ring if m.away is not None and m.standing is Standing.RING]
    here = [m for m in state.members.values() if m.away is None and m.standing is not Standing.PREPARING]
    if state.plan is None or not away or any(m.expected for m in ring):
        return state
    broken = (
        len(ring) < state.plan.size
        or any(m.standing in (Standing.WAITING, Standing.PREPARING) for m in ring)
        or not all(m.joined for m in ring if m.standing is Standing.RING)
    )
    if not broken or _on_its_own(state) or not any(m.has_state for m in here):
        return state  # it may train, or it is the last that holds the model: it is waited for
    for member in away:
        state = hearing.with_member(
            state, replace(member, standing=Standing.ABSENT, joined=False, entered=False)
        )
    gone = tuple(f"worker {m.seat.worker_id} is gone (its connection ended)" for m in away)
    return replace(state, losses=(*state.losses, *gone), stalls=())


def _waited(state: State, member: Member, now: float) -> float:
    """Seconds without a word of a worker that has no connection, or did not report to this master."""
    since = member.since if member.expected else member.away
    return now - max(now if since is None else since, state.heard_since)


def _on_its_own(state: State) -> bool:
    """Whether nobody is heard of the ring, or of the one that its members have yet to leave.

    Then it may train, and nobody must train beside it.
    """

    def unheard(plan: Plan | None, *, old: bool) -> bool:
        known = [state.members.get(seat.uid) for seat in plan.members] if plan is not None else []
        return bool(known) and all(
            m is not None and m.away is not None and m.standing is Standing.RING and not (old and m.entered)
            for m in known
        )

    return unheard(state.plan, old=False) or unheard(state.leaving, old=True)


def _absence(state: State, member: Member) -> float:
    """How long a worker may be without a connection, or not report to a new master, before it is given up.

    A master that hears nobody doubts itself first, and whoever holds the only model is given up last: after
    the time in which it ends by itself.
    """
    deadlines = state.options.deadlines
    heard = hearing.heard_now(state)
    alone = member.standing is Standing.RING and _on_its_own(state)
    if alone or not heard or (member.may_hold and not any(m.has_state for m in heard)):
        return state.options.patience
    if member.expected:
        return deadlines.rejoin
    return deadlines.silent_import if member.standing is Standing.PREPARING else deadlines.silent


def _seats(state: State, candidates: list[Member]) -> list[Member]:
    """All who do not drain, and of those who do only as many as the others cannot do without.

    They are needed to reach the minimum, and while nobody else is known to hold the model: a member that
    was about to join may hold it already, so then all of them stay.
    """
    staying = [m for m in candidates if not m.draining]
    for member in sorted((m for m in candidates if m.draining), key=_seniority):
        if len(staying) >= state.options.minimum and any(m.has_state for m in staying):
            break
        staying.append(member)
    uids = {m.seat.uid for m in staying}
    return [m for m in candidates if m.seat.uid in uids]


def _taken(state: State, staying: int) -> list[Member]:
    """The newcomers that get a place beside so many who stay, first those who hold a model: they cannot stand
    by, as the others do."""
    places = state.takes(staying)
    newcomers = state.newcomers()
    if places is None:
        return newcomers
    return sorted(sorted(newcomers, key=lambda m: not m.has_state)[:places], key=lambda m: m.seat.worker_id)


def _form(state: State, now: float) -> tuple[State, tuple[Action, ...]]:
    """The first ring, or the first after everybody was lost."""
    ready = [
        m
        for m in state.members.values()
        if m.standing is Standing.WAITING and not m.draining and m.away is None
    ]
    options = state.options
    minimum = max(1, options.minimum)
    if now < options.recover_until:
        return _wait(state, "the master restarted and waits for the ring to report")
    holders = any(m.has_state for m in ready)
    if state.may_report(now) and not holders:
        silent = ", ".join(map(str, sorted(state.unheard)))
        who = f"worker {silent} of an earlier master lives and" if silent else "a ring of an earlier master"
        return _wait(state, f"{who} may hold the model")
    cut_off = [m for m in state.members.values() if m.away is not None and m.may_hold]
    if cut_off and not holders:
        return _wait(state, f"worker {_ids(cut_off)} may hold the model and has lost its connection")
    leaving = [] if holders else state.let_go()
    if state.stopping:  # nobody is started who could take over from them
        ready, leaving = ready + leaving, []
    if len(ready) < minimum:
        return _wait(state, f"{len(ready)} of at least {minimum} workers are ready{_preparing(state)}")
    enough = 0 < options.wanted <= len(ready) or bool(leaving) or state.stopping  # who leaves does not wait
    if not (enough or now - min(m.since for m in ready) >= options.cool_down):
        return _wait(state, f"{len(ready)} workers are ready, others may follow in a moment")
    ready = sorted(ready, key=_seniority)[: state.takes(0)]
    lost = f" ({'; '.join(state.losses)})" if state.losses else ""
    reason = f"{len(ready)} workers are ready{lost}"
    return _publish(state, sorted(ready + leaving, key=lambda m: m.seat.worker_id), True, reason, now)


def _replace_ring(
    state: State, ring: list[Member], inside: list[Member], now: float
) -> tuple[State, tuple[Action, ...]]:
    """The ring is no more: go on with the others, or hold them until the minimum is there again."""
    present = [m for m in ring if m.standing is not Standing.PREPARING and m.away is None]
    newcomers = _taken(state, sum(not m.draining for m in present))
    candidates = present + newcomers
    if not any(m.has_state for m in candidates):
        candidates += state.let_go()
    cut_off = [m for m in state.members.values() if m.away is not None and m.may_hold]
    if cut_off and not any(m.has_state for m in candidates):
        state, order = _order_abort(state, inside, "; ".join(state.losses))
        state, _ = _wait(state, f"worker {_ids(cut_off)} may hold the model and has lost its connection")
        return state, order
    seats = _seats(state, candidates)
    minimum = max(1, state.options.minimum)
    if len(seats) >= minimum:
        reasons = state.losses or ("the ring broke",)
        if state.options.standby and newcomers:
            reasons = (*reasons, f"worker {_ids(newcomers)} stood by and takes over")
        return _publish(state, seats, True, "; ".join(reasons), now)
    state, order = _order_abort(state, inside, "; ".join(state.losses))
    why = f" ({'; '.join(state.losses)})" if state.losses else ""
    state, _ = _wait(state, f"{len(seats)} of at least {minimum} workers remain{why}{_preparing(state)}")
    return state, order


def _settle(
    state: State, ring: list[Member], inside: list[Member], now: float
) -> tuple[State, tuple[Action, ...]]:
    """The ring broke although nobody is known to be gone: wait until every member has left it."""
    if not inside:
        return _start_over(state, ring, now)
    since = now if state.broken_since is None else state.broken_since
    state = replace(state, broken_since=since)
    limit = _patience(state, ring, inside)
    if now - since > limit:
        why = f"did not leave the broken ring within {limit:.0f} s"
        return _evict(state, inside, why, Cause.STUCK, now)
    state, order = _order_abort(state, inside, "; ".join(state.losses) or "a member left the ring")
    state, _ = _wait(state, f"the ring broke; worker {_ids(inside)} has not left it yet")
    return state, order


def _start_over(state: State, ring: list[Member], now: float) -> tuple[State, tuple[Action, ...]]:
    """Everybody left, nobody is gone: try again, but not for ever with the same members."""
    assert state.plan is not None
    generation = state.plan.generation
    if state.moved or len(ring) == 1 or any(m.standing is Standing.DONE for m in ring):
        state = replace(state, stalls=())  # a ring of one says nothing about whoever comes next
    elif generation not in state.stalls:
        state = replace(state, stalls=(*state.stalls, generation)[-STALLS:])
    blamed = _blamed(ring) if len(state.stalls) == STALLS else []
    if not blamed:
        return _replace_ring(state, ring, [], now)
    last = f" ({'; '.join(state.losses)})" if state.losses else ""
    why = f"is left out: {STALLS} rings in a row with it broke within their first steps{last}"
    return _evict(state, blamed, why, Cause.INVALID, now)


def _blamed(ring: list[Member]) -> list[Member]:
    """Those without whom the ring worked. If that tells nobody apart, all but the one that is furthest."""
    proven = [m for m in ring if m.proven]
    if not 0 < len(proven) < len(ring):
        proven = sorted(ring, key=_seniority)[:1]
    return [m for m in ring if m not in proven]


def _watch_joining(
    state: State, ring: list[Member], inside: list[Member], now: float
) -> tuple[State, tuple[Action, ...]]:
    """A ring is forming: name and drop who does not come, and start over if it does not complete."""
    absent = [m for m in inside if not m.entered]
    state, order = _free(state, absent, now)
    if state.entered_since is None:
        state, _ = _wait(state, "the members finish their step before they switch")
        if now - min(m.since for m in inside) > _patience(state, ring, inside):
            return _order_abort(state, inside, "nobody entered the new ring")
        return state, order
    waited = now - state.entered_since
    if absent:
        limit = _patience(state, ring, absent)
        if waited > limit:
            why = f"did not enter the new ring within {limit:.0f} s"
            state, actions = _evict(state, absent, why, Cause.STUCK, now)
            return state, (*order, *actions)
        state, _ = _wait(state, f"worker {_ids(absent)} has not entered the new ring yet")
        return state, order
    unjoined = [m for m in inside if not m.joined]
    limit = 2 * state.options.deadlines.stuck(state.usual_step)
    longest = limit + _patience(state, ring, unjoined)
    if waited > longest:
        why = f"did not join within {longest:.0f} s, nor give up when told to"
        return _evict(state, unjoined, why, Cause.STUCK, now)
    if waited > limit:
        return _order_abort(state, inside, "the ring did not form in time")
    return _wait(state, f"worker {_ids(unjoined)} is connecting")


def _free(state: State, absent: list[Member], now: float) -> tuple[State, tuple[Action, ...]]:
    """Whoever leaves the old ring for good may fall silent before the boundary: free those who wait for it.

    Most leavers end in order at the very boundary, so the others get a moment to arrive.
    """
    old, lost = state.leaving, state.leaver_lost
    if old is None or lost is None or now - lost <= state.options.deadlines.heartbeat:
        return state, ()
    state = replace(state, leaving=None, leaver_lost=None)
    held = tuple(m.seat.uid for m in absent if old.rank_of(m.seat.uid) is not None)
    return state, (Abort(old.generation, held, "a worker that was leaving is lost"),) if held else ()


def _patience(state: State, ring: list[Member], suspects: list[Member]) -> float:
    """How long to wait for these; much longer when nobody else holds the model."""
    holders = sum(m.has_state for m in suspects)
    alone = 0 < holders == sum(m.has_state for m in ring)
    return state.options.deadlines.stuck(state.usual_step, alone=alone)


def _evict(
    state: State, members: list[Member], why: str, cause: Cause, now: float
) -> tuple[State, tuple[Action, ...]]:
    evictions = tuple(Evict(m.seat.uid, why, cause) for m in members)
    for member in members:
        state = hearing.give_up(state, member.seat.uid, why, now)
    state, actions = _decide(state, now)
    return state, (*evictions, *actions)


def _order_abort(state: State, inside: list[Member], reason: str) -> tuple[State, tuple[Action, ...]]:
    if not inside or state.plan is None or state.aborted == state.plan.generation:
        return state, ()
    order = Abort(state.plan.generation, tuple(m.seat.uid for m in inside), reason)
    return replace(state, aborted=state.plan.generation), (order,)


def _seniority(member: Member) -> tuple[bool, int]:
    """Whoever holds the model comes first, the furthest at the very front."""
    return not member.has_state, -member.step if member.has_state else 0


def _publish(
    state: State, members: list[Member], abort: bool, reason: str, now: float
) -> tuple[State, tuple[Action, ...]]:
    ordered = sorted(members, key=_seniority)  # otherwise order is kept
    gap = RESTART_GAP if state.options.recover_until > 0 and not state.leads else 1
    plan = Plan(state.generation + gap, tuple(m.seat for m in ordered))
    seated = {
        m.seat.uid: replace(
            m,
            standing=Standing.RING,
            since=now,
            generation=plan.generation,
            entered=False,
            joined=False,
            sat_in_ring=True,
        )
        for m in ordered
    }
    left = {
        uid: replace(m, standing=Standing.WAITING, since=now)
        for uid, m in state.members.items()
        if uid not in seated and m.standing in (Standing.RING, Standing.DONE)
    }
    state = replace(
        state,
        plan=plan,
        generation=plan.generation,
        leads=True,
        leaving=None if abort else state.plan,
        leaver_lost=None,
        members={**state.members, **left, **seated},
        broken_since=None,
        entered_since=None,
        joined=0,
        moved=False,
        losses=(),
        waiting_for="",
    )
    return state, (Publish(plan, abort, reason),)


def _gathered(state: State, newcomers: list[Member], now: float) -> bool:
    preparing = any(m.standing is Standing.PREPARING for m in state.members.values())
    return not preparing or now - min(m.since for m in newcomers) >= state.options.cool_down


def _preparing(state: State) -> str:
    preparing = [m for m in state.members.values() if m.standing is Standing.PREPARING]
    return f"; worker {_ids(preparing)} prepares" if preparing else ""


def _wait(state: State, why: str) -> tuple[State, tuple[Action, ...]]:
    return replace(state, waiting_for=why), ()


def _ids(members: Iterable[Member]) -> str:
    return ", ".join(str(m.seat.worker_id) for m in members)
