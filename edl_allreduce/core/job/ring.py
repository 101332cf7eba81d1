"""Training as the work of a job: the membership machine decides, this carries its decisions on."""

from __future__ import annotations

from dataclasses import replace

from edl_allreduce.core import events, protocol, ring_words
from edl_allreduce.core.goodput import reform_cause
from edl_allreduce.core.job import finishing
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import JobState, Ring, Waiting
from edl_allreduce.core.job.turn import Turn, changed
from edl_allreduce.core.membership import hearing, machine
from edl_allreduce.core.membership import types as membership
from edl_allreduce.core.membership.hearing import PROOF
from edl_allreduce.core.membership.types import Member, Standing

TELL_WAITING_SECONDS = 1.0


def handle(turn: Turn, work: Ring, event: membership.Event) -> tuple[membership.Action, ...]:
    """What the membership machine wants done now."""
    before = {m.seat.uid for m in work.members.alive() if not m.draining}
    members, actions = machine.handle(work.members, event, turn.now)
    here = {uid for uid, m in members.members.items() if m.standing is not Standing.ABSENT}
    turn.change(work=replace(work, members=members))
    progress = turn.state.progress
    turn.progress(
        losses=progress.losses + len(before - here),
        trained=progress.trained.turn(_stands(members), turn.now),
    )
    return actions


def note(turn: Turn, work: Ring, event: membership.Event) -> bool:
    """Whether that was all: nothing follows from it (`hearing.note`)."""
    members = hearing.note(work.members, event, turn.now)
    if members is not None:
        turn.change(work=changed(work, members=members))
    return members is not None


def perform(turn: Turn, work: Ring, action: membership.Action) -> None:
    """What it decided, except evictions: they are a matter of keeping workers."""
    match action:
        case membership.Publish(plan, abort, reason):
            workers = tuple(seat.worker_id for seat in plan.members)
            cause = reform_cause(work.seated, workers, abort=abort)
            turn.tell(events.RingPlanned(plan.generation, workers, abort, reason, cause.value))
            turn.move(Phase.TRAINING)
            reasons = {**work.reasons, plan.generation: reason}
            causes = {**work.causes, plan.generation: cause}
            turn.change(work=replace(work, reasons=reasons, causes=causes, seated=workers))
            turn.send_all(protocol.NewPlan(plan, abort, reason, _weigh(turn.state)))
        case membership.Abort(generation, uids, reason):
            workers = tuple(turn.state.ids.get(uid, events.NOBODY) for uid in uids)
            turn.tell(events.RingAborted(generation, workers, reason))
            for uid in uids:
                turn.send(uid, protocol.AbortRing(generation, reason))
        case membership.Finish(uids, step):
            finishing.finish(turn, uids, step)


def settle(turn: Turn, work: Ring) -> None:
    """What follows from the ring for the whole job: what it waits for, whether it trains."""
    state, text = turn.state, work.members.waiting_for
    if text != state.waiting.text:
        turn.change(waiting=Waiting(text, turn.now, state.waiting.told))
    lost = not has_model(state) and not work.members.may_report(turn.now)
    if state.stopping and state.phase is not Phase.FINISHING and lost:
        turn.end(Phase.STOPPED, state.stopping)  # nobody is left who could make a last step
    ring = work.members.alive()
    trains = any(m.joined for m in ring)
    if turn.state.phase in (Phase.TRAINING, Phase.WAITING):
        turn.move(Phase.TRAINING if trains or not text else Phase.WAITING)
    elif turn.state.phase is Phase.STARTING and any(_trains(m) for m in ring):
        turn.move(Phase.TRAINING)  # an earlier master planned it


def tell_waiting(turn: Turn) -> None:
    """A training that stands still for more than a moment says why where people look later, too."""
    state = turn.state
    waiting = state.waiting
    if state.phase is not Phase.WAITING or waiting.text in ("", waiting.told):
        return
    begun = isinstance(state.work, Ring) and state.work.members.plan is not None
    if begun and turn.now - waiting.since > TELL_WAITING_SECONDS:
        turn.change(waiting=replace(waiting, told=waiting.text))
        turn.tell(events.JobWaits(waiting.text))


def joined(turn: Turn, message: protocol.Joined) -> None:
    """A ring that begins behind what was reached before: the model was lost, and people must know."""
    progress = turn.state.progress
    if message.generation <= progress.joined:
        return
    lost = progress.reached - message.step
    if lost > PROOF:  # less is what a worker that died may have been ahead
        turn.tell(events.StepsSetBack(message.generation, progress.reached, message.step))
        redo = max(progress.redo_until, progress.reached)
        turn.progress(set_back=progress.set_back + lost, reached=message.step, redo_until=redo)
        last = turn.state.checkpoint
        if last is not None and last.step > message.step:
            turn.change(checkpoint=None)  # the ring could not begin from it, so the next one is the last
    turn.progress(joined=message.generation)


def reached(turn: Turn, generation: int, step: int) -> None:
    progress = turn.state.progress
    if generation >= progress.joined and step > progress.reached:
        turn.progress(reached=step)


# ----------------------------------------------------------------------------------------------- queries


def _weigh(state: JobState) -> int:
    """After how many steps the ring is to say what its weights are."""
    doubt = state.doubt
    return doubt.step if doubt is not None and doubt.is_open else protocol.NOT_ASKED


def members_of(state: JobState) -> membership.State | None:
    return state.work.members if isinstance(state.work, Ring) else None


def workers_known(state: JobState) -> set[int]:
    """The numbers of all who have a place, a connection or a seat in the ring."""
    members = members_of(state)
    seated = {m.seat.worker_id for m in members.members.values()} if members is not None else set()
    return seated | set(state.slots) | {peer.worker_id for peer in state.peers.values()}


def stands_by(state: JobState, uid: str) -> bool:
    """Whether it is ready and waits for somebody's place."""
    members = members_of(state)
    return members is not None and members.stands_by(uid)


def alive(state: JobState) -> list[Member]:
    members = members_of(state)
    return members.alive() if members is not None else []


def has_model(state: JobState) -> bool:
    """Whether somebody could still make a last step, in the ring or on the way to the next one. Members of a
    ring that have lost their connection may train by now, although nobody heard that they joined."""
    members = members_of(state)
    if members is None:
        return False
    if any(m.has_state for m in members.members.values()):
        return True
    return any(m.standing is Standing.RING and m.away is not None for m in members.alive())


def holders(state: JobState) -> frozenset[str]:
    members = members_of(state)
    return frozenset(uid for uid, m in members.members.items() if m.has_state) if members else frozenset()


def first_holder(state: JobState) -> int | None:
    """The lowest rank that holds the model and is connected, as the number of its worker."""
    members = members_of(state)
    if members is None or members.plan is None:
        return None
    for seat in members.plan.members:
        member = members.members.get(seat.uid)
        if member is not None and member.has_state and seat.uid in state.peers:
            return seat.worker_id
    return None


def expected(state: JobState, worker_id: int) -> str:
    """The uid of a worker that is known only from the plan of another one, after a master's restart."""
    members = members_of(state)
    known = members.members.items() if members is not None else ()
    return next((uid for uid, m in known if m.expected and m.seat.worker_id == worker_id), "")


def plan_of(state: JobState) -> protocol.Plan | None:
    members = members_of(state)
    return members.plan if members is not None else None


def generation_of(state: JobState) -> int:
    plan = plan_of(state)
    return plan.generation if plan is not None else 0


def named(state: JobState, out: protocol.Out) -> protocol.Out:
    """A rank is a place in one ring; people know the worker."""
    plan = plan_of(state)
    if plan is None or plan.generation != out.generation:
        return out
    return replace(out, reason=ring_words.with_workers(out.reason, [s.worker_id for s in plan.members]))


def _trains(member: Member) -> bool:
    return member.joined and not member.expected and member.standing is Standing.RING


def _stands(members: membership.State) -> bool:
    """Whether anybody can make a step: in the ring of the plan, or in the one before it."""
    ring = members.alive()
    still_in_the_old_one = members.leaving is not None and not any(m.entered for m in ring)
    return any(m.joined for m in ring) or still_in_the_old_one
