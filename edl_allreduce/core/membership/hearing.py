"""What a master learns: from workers, and from those who tell it that a worker is gone."""

from __future__ import annotations

from dataclasses import replace

from edl_allreduce.core.membership.types import (
    Abort,
    Action,
    Anomaly,
    Away,
    Event,
    Evict,
    Heard,
    Lost,
    LostTogether,
    Member,
    Message,
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
MANY = 32
"""Workers from which on not every newcomer is a reason to look at all of them."""


def learn(state: State, event: Event, now: float) -> tuple[State, tuple[Action, ...]]:
    """What changes by an event alone, before anything is decided."""
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
            return (state if member is None or late else with_member(state, replace(member, away=now))), ()
        case Lost(uid, cause):
            return give_up(state, uid, cause, now), ()
        case LostTogether(losses):
            for lost in losses:
                state = give_up(state, lost.uid, lost.cause, now)
            return state, ()
        case Tick(usual_step):
            return replace(state, usual_step=usual_step), ()
        case Unheard(worker_ids):
            return replace(state, unheard=worker_ids), ()
        case Wanted(count):
            return replace(state, options=replace(state.options, wanted=count)), ()
        case Stopping():
            return replace(state, options=replace(state.options, minimum=1), stopping=True), ()


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


def _heard(state: State, member: Member, message: Message, now: float) -> State:
    match message:
        case Ready(step=step, has_state=has_state) if member.standing is Standing.PREPARING:
            ready = replace(member, standing=Standing.WAITING, since=now, step=step, has_state=has_state)
            return with_member(state, ready)
        case Draining():
            return with_member(state, replace(member, draining=True))
        case Entered(generation) if _current(member, generation):
            first = now if state.entered_since is None else state.entered_since
            return replace(with_member(state, replace(member, entered=True)), entered_since=first)
        case Joined(generation, step) if _current(member, generation):
            state, member = _progressed(state, member, step)
            state = replace(state, joined=state.joined + (not member.joined))
            return with_member(state, replace(member, entered=True, joined=True, has_state=True, step=step))
        case Joined(_, step) if member.standing is not Standing.PREPARING:
            # Too late for that ring, but true: this worker holds the model.
            return with_member(state, replace(member, has_state=True, step=max(step, member.step)))
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
            state = with_member(state, out)
            if state.broken_since is None:
                # After a loss or an abort it only tells what is known.
                news = bool(reason) and not state.losses and state.aborted != generation
                losses = (f"worker {member.seat.worker_id} reports: {reason}",) if news else state.losses
                state = replace(state, broken_since=now, losses=losses)
            return state
        case Done(generation, step) if _current(member, generation):
            state, member = _progressed(state, member, step)
            return with_member(
                state, replace(member, standing=Standing.DONE, since=now, step=step, has_state=True)
            )
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


def with_member(state: State, member: Member) -> State:
    return replace(state, members={**state.members, member.seat.uid: member})


def without(state: State, uid: str) -> State:
    return replace(state, members={u: m for u, m in state.members.items() if u != uid})


def give_up(state: State, uid: str, cause: str, now: float) -> State:
    member = state.members.get(uid)
    state = replace(without(state, uid), gone=state.gone | {uid})
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
        state, evictions = _adopt(without(state, seat.uid), plan, now)
    if plan is None:
        # Also if the plan seats it: then it has not heard that plan, or gave it up, and waits outside.
        new = Member(seat, Standing.PREPARING, now, draining=draining, link=link)
        if event.has_state and event.generation > 0:  # it was in a ring, so it is ready
            new = replace(new, standing=Standing.WAITING, has_state=True, step=event.step, proven=proven)
        return with_member(state, new), evictions
    if newer and state.leads:
        reason = f"it is in the ring of generation {plan.generation}, the job is at {state.generation}"
        return give_up(state, seat.uid, "is in another ring", now), (*evictions, Evict(seat.uid, reason))
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
        return with_member(replace(state, moved=True), outside), (*evictions, order)
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
    return with_member(state, member), evictions


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
        state = give_up(state, zombie.seat.uid, "is in an older ring", now)
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


def heard_now(state: State) -> list[Member]:
    """Those who reported and have a connection."""
    return [m for m in state.members.values() if m.away is None and not m.expected]
