"""The decisions. `handle` is the one door."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edl_allreduce.core.causes import Cause
from edl_allreduce.core.membership.types import (
    Abort,
    Action,
    Anomaly,
    Away,
    Event,
    Evict,
    Finish,
    Heard,
    Lost,
    LostTogether,
    Member,
    Message,
    Publish,
    Standing,
    State,
    Stopping,
    Tick,
    Unheard,
    Wanted,
)
from edl_allreduce.core.protocol import Done, Draining, Entered, Hello, Joined, Out, Plan, Ready, Seat

PROOF = 2
"""Steps that a ring makes if it works: the first exchange of tensors that do not fit may go unnoticed."""
STALLS = 3
"""Rings in a row that may break before that, without a loss, before somebody is to blame."""
MANY = 32
"""Workers from which on not every newcomer is a reason to look at all of them."""
RESTART_GAP = 1000
"""Numbers that a restarted master leaves free: its predecessor's last plans may have reached only workers
that it has not heard yet, and no generation may mean two rings."""


def handle(state: State, event: Event, now: float) -> tuple[State, tuple[Action, ...]]:
    """The one door through which state changes."""
    if state.finished:
        losses = event.losses if isinstance(event, LostTogether) else (event,)
        for lost in losses:
            state = _without(state, lost.uid) if isinstance(lost, Lost) else state
        return state, ()
    state, evictions = _apply(state, event, now)
    state, actions = _decide(state, now)
    return state, (*evictions, *actions)


def note(state: State, event: Event, now: float) -> State | None:
    """Take down what one of many says; None where something may follow from it, which is `handle`'s to say.

    A ring of a thousand says three thousand things while it forms. A decision looks at every member, and it
    is the same for all of them but the first and the last. Should one be missed, the next tick makes it.
    """
    if not isinstance(event, Heard) or state.finished:
        return None
    if isinstance(event.message, Hello | Ready):
        return _note_newcomer(state, event.message, event.uid, event.link, now)
    if state.plan is None:
        return None
    match event.message:
        case Entered(generation) if state.entered_since is not None:
            pass
        case Joined(generation) if 0 < state.joined < state.plan.size - 1:
            pass
        case _:
            return None
    member = state.members.get(event.uid)
    if member is None or not _current(member, generation) or _impossible(state, member, event.message):
        return None
    return _heard(state, member, event.message, now)


def _note_newcomer(state: State, message: Hello | Ready, uid: str, link: int, now: float) -> State | None:
    """One of many who come, while there are too few for the ring that is wanted."""
    member = state.members.get(uid)
    if len(state.members) < MANY or state.stopping:
        return None
    if isinstance(message, Hello):
        new = member is None and uid not in state.gone and message.plan is None and not message.has_state
        return _hello(state, message, link, now)[0] if new else None
    if state.plan is not None or member is None or member.standing is not Standing.PREPARING:
        return None
    waiting = sum(m.standing is Standing.WAITING for m in state.members.values())
    return _heard(state, member, message, now) if waiting + 1 < state.options.wanted else None


def _apply(state: State, event: Event, now: float) -> tuple[State, tuple[Action, ...]]:
    match event:
        case Heard(_, Hello() as hello, link):
            return _hello(state, hello, link, now)
        case Heard(uid, message):
            member = state.members.get(uid)
            if member is None:
                return state, ()
            impossible = _impossible(state, member, message)
            if impossible:
                return state, (Anomaly(uid, impossible),)
            return _heard(state, member, message, now), ()
        case Away(uid, link):
            member = state.members.get(uid)
            late = member is None or member.link != link  # it is back over another connection already
            return (state if member is None or late else _with(state, replace(member, away=now))), ()
        case Lost(uid, cause):
            return _lost(state, uid, cause, now), ()
        case LostTogether(losses):
            for lost in losses:
                state = _lost(state, lost.uid, lost.cause, now)
            return state, ()
        case Tick(usual_step):
            return replace(state, usual_step=usual_step), ()
        case Unheard(worker_ids):
            return replace(state, unheard=worker_ids), ()
        case Wanted(count):
            return replace(state, options=replace(state.options, wanted=count)), ()
        case Stopping():
            return replace(state, options=replace(state.options, minimum=1), stopping=True), ()


def _heard(state: State, member: Member, message: Message, now: float) -> State:
    match message:
        case Ready(step=step, has_state=has_state) if member.standing is Standing.PREPARING:
            ready = replace(member, standing=Standing.WAITING, since=now, step=step, has_state=has_state)
            return _with(state, ready)
        case Draining():
            return _with(state, replace(member, draining=True))
        case Entered(generation) if _current(member, generation):
            first = now if state.entered_since is None else state.entered_since
            return replace(_with(state, replace(member, entered=True)), entered_since=first)
        case Joined(generation, step) if _current(member, generation):
            state, member = _progressed(state, member, step)
            state = replace(state, joined=state.joined + (not member.joined))
            return _with(state, replace(member, entered=True, joined=True, has_state=True, step=step))
        case Joined(_, step) if member.standing is not Standing.PREPARING:
            # Too late for that ring, but true: this worker holds the model.
            return _with(state, replace(member, has_state=True, step=max(step, member.step)))
        case Out(generation, step, reason) if _current(member, generation):
            moved = state.moved or (member.joined and step >= member.step + PROOF)
            state, member = _progressed(replace(state, moved=moved), member, step)
            out = replace(
                member,
                standing=Standing.WAITING,
                since=now,
                step=step,
                entered=False,
                joined=False,
                sat_in_ring=False,
            )
            state = _with(state, out)
            if state.broken_since is None:
                # After a loss or an abort it only tells what is known.
                news = bool(reason) and not state.losses and state.aborted != generation
                losses = (f"worker {member.seat.worker_id} reports: {reason}",) if news else state.losses
                state = replace(state, broken_since=now, losses=losses)
            return state
        case Done(generation, step) if _current(member, generation):
            state, member = _progressed(state, member, step)
            return _with(state, replace(member, standing=Standing.DONE, since=now, step=step, has_state=True))
    return state  # stale by number: never by timing


def _impossible(state: State, member: Member, message: Message) -> str:
    """What is wrong with a message that no worker can say here. One that is stale by its number is not."""
    match message:
        case Entered(generation) | Joined(generation) | Out(generation) | Done(generation):
            if generation > state.generation:
                return f"speaks of generation {generation}, and the newest plan is {state.generation}"
    match message:
        case Joined(generation) if _current(member, generation) and not member.entered:
            return f"joined the ring of generation {generation}, which it never entered"
        case Done(generation) if _current(member, generation) and not member.joined:
            return f"finished in the ring of generation {generation}, which it never joined"
    return ""


def _current(member: Member, generation: int) -> bool:
    return member.standing is Standing.RING and member.generation == generation


def _progressed(state: State, member: Member, step: int) -> tuple[State, Member]:
    """So many steps more than it was known to hold: the ring that it was in works, and with it."""
    if not (member.has_state and step >= member.step + PROOF):
        return state, member
    return replace(state, stalls=()), replace(member, proven=True)


def _with(state: State, member: Member) -> State:
    return replace(state, members={**state.members, member.seat.uid: member})


def _without(state: State, uid: str) -> State:
    return replace(state, members={u: m for u, m in state.members.items() if u != uid})


def _lost(state: State, uid: str, cause: str, now: float) -> State:
    member = state.members.get(uid)
    state = replace(_without(state, uid), gone=state.gone | {uid})
    if member is None:
        return state
    if state.plan is not None and state.plan.rank_of(uid) is not None:
        losses = (*state.losses, f"worker {member.seat.worker_id} {cause}")
        return replace(state, losses=losses, stalls=())
    if state.leaving is not None and state.leaving.rank_of(uid) is not None:
        return replace(state, leaver_lost=now)
    return state


def _hello(state: State, event: Hello, link: int, now: float) -> tuple[State, tuple[Action, ...]]:
    seat, plan = event.seat, event.plan
    state = replace(state, unheard=state.unheard - {seat.worker_id})
    if seat.uid in state.gone:
        return state, (Evict(seat.uid, "it was given up; a new worker takes its place"),)
    state = replace(state, generation=max(state.generation, event.generation))
    holder = event.has_state or event.joined or event.done
    heard = (m for m in state.members.values() if m.away is None and not m.expected)
    if not any(m.has_state or not holder for m in heard):
        state = replace(state, heard_since=now)
    known = state.members.get(seat.uid)
    draining = known is not None and known.draining
    proven = known is not None and known.proven
    evictions: tuple[Action, ...] = ()
    newer = plan is not None and (state.plan is None or plan.generation > state.plan.generation)
    if plan is not None and newer and not state.leads:
        state, evictions = _adopt(_without(state, seat.uid), plan, now)
    if plan is None:
        # Also if the plan seats it: then it has not heard that plan, or gave it up, and waits outside.
        new = Member(seat, Standing.PREPARING, now, draining=draining, link=link)
        if event.has_state and event.generation > 0:  # it was in a ring, so it is ready
            new = replace(new, standing=Standing.WAITING, has_state=True, step=event.step, proven=proven)
        return _with(state, new), evictions
    if newer and state.leads:
        reason = f"it is in the ring of generation {plan.generation}, the job is at {state.generation}"
        return _lost(state, seat.uid, "is in another ring", now), (*evictions, Evict(seat.uid, reason))
    outside = Member(
        seat,
        Standing.WAITING,
        now,
        has_state=event.has_state,
        step=event.step,
        proven=proven and event.has_state,
        draining=draining,
        link=link,
    )
    back = known is not None and known.link > 0
    if plan != state.plan or (back and not (event.joined or event.done)):
        # Its ring is no more, or it has not heard the current plan and maybe never will. Or it connects: what
        # the others told it about their addresses was lost with its stream, so that ring cannot complete.
        order = Abort(plan.generation, (seat.uid,), "the ring went on without it")
        # The network broke that ring, none of its members.
        return _with(replace(state, moved=True), outside), (*evictions, order)
    member = replace(
        _seated(seat, plan, now),
        standing=Standing.DONE if event.done else Standing.RING,
        step=event.step,
        joined=event.joined or event.done,
        has_state=event.has_state or event.joined or event.done,
        proven=proven and (event.has_state or event.joined or event.done),
        draining=draining,
        link=link,
        expected=False,
    )
    if state.aborted == plan.generation and not event.done:  # the order may have been lost with its stream
        evictions = (*evictions, Abort(plan.generation, (seat.uid,), "the ring broke"))
    return _with(state, member), evictions


def _adopt(state: State, plan: Plan, now: float) -> tuple[State, tuple[Action, ...]]:
    """This master is younger than the ring: take the ring over as it is."""
    members: dict[str, Member] = {}
    zombies: list[Member] = []
    for uid, member in state.members.items():
        if member.standing in (Standing.PREPARING, Standing.WAITING):
            members[uid] = member  # known to be outside, seated or not
        elif plan.rank_of(uid) is not None:
            if not member.expected:  # in an older ring, and unaware of this one
                members[uid] = replace(member, standing=Standing.WAITING, since=now)
        elif not member.expected:
            zombies.append(member)
    unheard = [s for s in plan.members if s.uid not in members and s.uid not in state.gone]
    losses = tuple(f"worker {s.worker_id} is gone" for s in plan.members if s.uid in state.gone)
    state = replace(
        state,
        plan=plan,
        generation=max(state.generation, plan.generation),
        members={**members, **{s.uid: _seated(s, plan, now) for s in unheard}},
        broken_since=None,
        entered_since=now,
        joined=0,
        moved=False,
        stalls=(),
        losses=losses,
    )
    for zombie in zombies:
        state = _lost(state, zombie.seat.uid, "is in an older ring", now)
    reason = f"the ring of generation {plan.generation} goes on without it"
    return state, tuple(Evict(m.seat.uid, reason) for m in zombies)


def _seated(seat: Seat, plan: Plan, now: float) -> Member:
    return Member(
        seat,
        Standing.RING,
        now,
        generation=plan.generation,
        has_state=True,
        entered=True,
        joined=True,
        sat_in_ring=True,
        expected=True,
    )


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
    return replace(state, waiting_for=""), ()


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
        state = _with(state, replace(member, standing=Standing.ABSENT, joined=False, entered=False))
    gone = tuple(f"worker {m.seat.worker_id} is gone (its connection ended)" for m in away)
    return replace(state, losses=(*state.losses, *gone), stalls=())


def _heard_now(state: State) -> list[Member]:
    """Those who reported and have a connection."""
    return [m for m in state.members.values() if m.away is None and not m.expected]


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
    heard = _heard_now(state)
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
    """The newcomers that get a place beside so many who stay; the others stand by."""
    return state.newcomers()[: state.takes(staying)]


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
        state = _lost(state, member.seat.uid, why, now)
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


# ----------------------------------------------------------------------------------------- invariants


def validate(state: State) -> None:
    """What must hold after every event. Tests call it all the time."""
    plan = state.plan
    assert not state.gone & state.members.keys(), "who is gone is no member"
    for member in state.members.values():
        if member.standing is Standing.ABSENT:
            assert member.away is not None, "who is here is not absent"
    for member in state.members.values():
        assert not member.joined or member.has_state, "who joined agreed on the model"
        assert not member.proven or member.has_state, "who made steps holds the model"
        assert not member.expected or member.standing is Standing.RING
    assert len(state.stalls) < STALLS or len(state.alive()) <= 1, "somebody is to blame by now"
    assert list(state.stalls) == sorted(set(state.stalls)), "each ring stalls once"
    if plan is None:
        assert not state.stalls, "no ring, no stall"
        outside = (Standing.PREPARING, Standing.WAITING, Standing.ABSENT)
        assert all(m.standing in outside for m in state.members.values())
        return
    assert plan.generation <= state.generation, "no plan carries a number that was not seen"
    assert plan.size > 0, "a ring is never empty"
    assert len({seat.uid for seat in plan.members}) == plan.size, "nobody sits twice"
    for uid, member in state.members.items():
        if member.standing in (Standing.RING, Standing.DONE):
            assert plan.rank_of(uid) is not None, f"{uid} is in a ring that is not the plan"
            assert member.generation == plan.generation
