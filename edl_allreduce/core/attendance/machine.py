"""The decisions. `handle` is the one door."""

from __future__ import annotations

from dataclasses import replace

from edl_allreduce.core import protocol
from edl_allreduce.core.attendance.events import (
    Abort,
    Anomaly,
    Begun,
    CloseConnection,
    Closed,
    CloseStore,
    Connect,
    Drained,
    Entering,
    Event,
    HangUp,
    HasDeclined,
    HasJoined,
    HasLeft,
    Heard,
    Instruction,
    IsDone,
    IsReady,
    OpenStore,
    Prepare,
    Prepared,
    Refused,
    Said,
    Send,
    TellLost,
    Tick,
    TookOrder,
    TookTask,
)
from edl_allreduce.core.attendance.queries import HERE, NEXT, breaking
from edl_allreduce.core.attendance.state import FINAL, RING, LastWord, Leave, MasterGone, Stage, State

RETRY_SECONDS = 0.5
"""Between two tries to reach the master: soon enough for a short break, too seldom to be a burden."""
ABORT_AGAIN_SECONDS = 0.05
"""The order to break a ring may fall into the moment before it begins to form: it is given until it took."""
KEPT = (
    protocol.Failed, protocol.Note, protocol.Evaluated, protocol.Checkpointed, protocol.BadRecords,
    protocol.TaskDone, protocol.Concluded, protocol.Reformed, protocol.Differs, protocol.Weighed,
)  # fmt: skip
"""Reports that nobody else gives: they wait until the master listens."""
LASTING = (protocol.Done, protocol.Exported, protocol.Checkpointed, protocol.Failed)
"""Reports that nobody else gives and that stay true: the last of each kind is part of every introduction, as
nobody knows whether it arrived over a connection that ended."""
MOST_KEPT = 1000
"""Of them, oldest forgotten first: a master that is gone for hours must not fill the memory."""

Outcome = tuple[State, tuple[Instruction, ...]]


def handle(state: State, event: Event, now: float) -> Outcome:
    """The one door through which state changes."""
    before = breaking(state)
    state, instructions = _apply(state, event, now)
    if not breaking(state):
        return (state if state.abort_at is None else replace(state, abort_at=None)), instructions
    if before and state.abort_at is not None and now < state.abort_at:
        return state, instructions
    again = replace(state, abort_at=now + ABORT_AGAIN_SECONDS)
    return again, (*instructions, Abort(state.doomed))


def _apply(state: State, event: Event, now: float) -> Outcome:
    match event:
        case Heard(message):
            state = replace(state, lost_at=None, retry_at=None)
            state, arrears = _arrears(state)
            state, instructions = _heard(state, message)
            return state, (*arrears, *instructions)
        case Begun() | Closed() | Refused() | HangUp() | Tick():
            return _connection(state, event, now)
        case Drained():
            return _drain(state)
        case Prepared(generation):
            if generation > state.preparing:
                return _odd(state, f"connected to generation {generation}, to which it was not told to")
            return replace(state, prepared=max(state.prepared, generation)), ()
        case Said(message):
            return _say(state, message)
        case TookOrder():
            if isinstance(state.last, FINAL):
                return state, ()  # the end was faster than the training thread
            if not isinstance(state.last, protocol.Export):
                return _odd(state, "took an order that was not given")
            return replace(state, last=None, exports=True), ()
        case TookTask():
            if not state.pulled:
                return _odd(state, "took a task that was not given")
            task, pulled = state.pulled[0], state.pulled[1:]
            return replace(state, pulled=pulled, task=task if isinstance(task, protocol.DoTask) else None), ()
        case _:
            return _training(state, event)


# ----------------------------------------------------------------------------------------- connection


def _connection(state: State, event: Begun | Closed | Refused | HangUp | Tick, now: float) -> Outcome:
    match event:
        case Begun():
            if state.closing:
                return state, ()  # a signal was faster
            return _odd(state, "began twice") if state.link else _connect(state, now)
        case Refused(why):
            return _tell(replace(state, linked=False, over=True), protocol.Evicted(why))
        case Closed(link, clean):
            return _closed(state, clean, now) if link == state.link and not state.over else (state, ())
        case HangUp():
            if state.closing or state.over:
                return state, ()
            dial: tuple[Instruction, ...] = ()
            if state.link == 0 or state.retry_at is not None:  # say at least once that it goes
                state, dial = _connect(state, now)
            arrears = tuple(Send(message) for message in state.unsaid)
            return replace(state, closing=True, unsaid=()), (*dial, *arrears, CloseConnection())
        case Tick():
            if state.over:
                return state, ()
            if state.lost_at is not None and now >= state.lost_at + state.grace:
                return _given_up(state)
            if state.retry_at is not None and now >= state.retry_at:
                return _connect(state, now)
            return state, ()


def _connect(state: State, now: float) -> Outcome:
    state = replace(state, link=state.link + 1, linked=False, opened_at=now, retry_at=None)
    return state, (Connect(state.link),)


def _closed(state: State, clean: bool, now: float) -> Outcome:
    """The connection ended. The process lives, and so may the master: training goes on."""
    welcomed, state = state.linked, replace(state, linked=False)
    if state.closing or isinstance(state.last, FINAL):
        return replace(state, over=True, parted=welcomed and clean), ()
    if state.lost_at is None:
        state = replace(state, lost_at=now)
        if welcomed and now < state.opened_at + RETRY_SECONDS:  # a master that takes nobody for long
            return replace(state, retry_at=now + RETRY_SECONDS), (TellLost(),)
        state, instructions = _connect(state, now)  # at once: it may be only this connection that broke
        return state, (TellLost(), *instructions)
    if now >= state.lost_at + state.grace:
        return _given_up(state)
    return replace(state, retry_at=now + RETRY_SECONDS), ()


def _given_up(state: State) -> Outcome:
    """No master for the whole grace period."""
    state = replace(state, over=True, linked=False, retry_at=None)
    state, instructions = _tell(state, MasterGone(state.grace))
    return state, (*instructions, CloseConnection())


def _arrears(state: State) -> Outcome:
    """The master listens: what waited for that is said."""
    unsaid = tuple(Send(message) for message in state.unsaid)
    return replace(state, linked=True, unsaid=()), unsaid


def _say(state: State, message: protocol.FromWorker) -> Outcome:
    """Say it, now or when somebody listens."""
    if isinstance(message, protocol.TaskDone):
        state = replace(state, task=None)
    state = _lasting(state, message)
    if state.linked or state.closing or not isinstance(message, KEPT):
        return state, (Send(message),)
    return replace(state, unsaid=(*state.unsaid, message)[-MOST_KEPT:]), ()


def _lasting(state: State, message: protocol.FromWorker) -> State:
    if not isinstance(message, LASTING):
        return state
    return replace(state, lasting=(*_others(state, type(message)), message))


def _others(state: State, kind: type[protocol.FromWorker]) -> tuple[protocol.FromWorker, ...]:
    return tuple(report for report in state.lasting if not isinstance(report, kind))


# ------------------------------------------------------------------------------------ what the master says


def _heard(state: State, message: protocol.FromMaster) -> Outcome:
    match message:
        case protocol.Welcome():
            return state, ()
        case protocol.NewPlan():
            return _planned(state, message)
        case protocol.AbortRing(generation):
            if state.newest is None or generation > state.newest.plan.generation:
                return _odd(
                    state, f"told to break the ring of generation {generation}, of which it never heard"
                )
            return _doom(state, generation)
        case protocol.KvEntry(generation, key, value):
            return _placed(state, generation, key, value), ()
        case protocol.DoTask() | protocol.Conclude():
            if state.plan is not None:
                return _odd(state, "given a task while it trains")
            return replace(state, pulled=(*state.pulled, message)), ()
        case protocol.Stop(reason):
            return replace(state, stop=reason or "asked to"), ()
        case protocol.Drain():
            return _drain(state)
        case protocol.Export():
            if state.exports:
                return state, ()  # said again after a reconnect: what comes of it is said again, too
            if state.stage is not Stage.DONE:
                return _odd(state, f"told to write the result while it is {state.stage.value}")
            return _tell(state, message)
        case protocol.Release() | protocol.Evicted():
            return _tell(state, message)


def _planned(state: State, order: protocol.NewPlan) -> Outcome:
    plan = order.plan
    if state.newest is not None and plan.generation <= state.newest.plan.generation:
        return state, ()  # stale
    state = replace(state, newest=order)
    if order.abort:
        return _doom(state, plan.generation - 1)
    if plan.rank_of(state.uid) is None:
        return state, ()
    # Connect to the next ring while this one trains: its members then stand still for a moment only.
    return replace(state, preparing=plan.generation), (OpenStore(plan), Prepare(plan))


def _placed(state: State, generation: int, key: str, value: bytes) -> State:
    if key == NEXT and (state.next_place is None or generation >= state.next_place[0]):
        return replace(state, next_place=(generation, value))
    if key == HERE and (state.here is None or generation >= state.here[0]):
        return replace(state, here=(generation, value))
    return state


def _doom(state: State, generation: int) -> Outcome:
    state = replace(state, doomed=max(state.doomed, generation))
    return state, (CloseStore(state.doomed),)


def _tell(state: State, last: LastWord) -> Outcome:
    """The last word, for the training thread."""
    if not isinstance(last, protocol.Export):
        state = replace(state, pulled=(*state.pulled, last))
    state = replace(state, last=last)
    if isinstance(last, protocol.Release | protocol.Evicted) and state.plan is not None:
        return _doom(state, state.plan.generation)
    return state, ()


def _drain(state: State) -> Outcome:
    if state.draining:
        return state, ()
    state = replace(state, draining=True, pulled=(*state.pulled, Leave()))
    return state, (Send(protocol.Draining()),)


# --------------------------------------------------------------------------- what the training thread says


def _training(
    state: State, event: IsReady | Entering | HasJoined | HasLeft | HasDeclined | IsDone
) -> Outcome:
    match event:
        case IsReady(message):
            if state.stage is not Stage.PREPARING:
                return _odd(state, f"says that it is ready while it is {state.stage.value}")
            state = replace(state, stage=Stage.WAITING, ready=message, has_state=message.has_state)
            return state, (Send(message),)
        case Entering(plan, place):
            return _enter(state, plan, place)
        case HasJoined(generation, step, position):
            if state.stage is not Stage.ENTERING or state.plan is None or state.plan.generation != generation:
                return _odd(state, f"joined generation {generation} while it is {state.stage.value}")
            state = replace(state, stage=Stage.TRAINING, has_state=True)
            return state, (Send(protocol.Joined(generation, step, position)),)
        case HasLeft(step, reason):
            if state.stage not in RING or state.plan is None:
                return _odd(state, f"left a ring while it is {state.stage.value}")
            generation = state.plan.generation
            state = replace(_outside(state, step), gave_up=max(state.gave_up, generation))
            return state, (CloseStore(generation), Send(protocol.Out(generation, step, reason)))
        case HasDeclined(plan, step):
            if state.stage is not Stage.WAITING:
                return _odd(state, f"declined generation {plan.generation} while it is {state.stage.value}")
            state = replace(state, gave_up=max(state.gave_up, plan.generation))
            out = protocol.Out(plan.generation, step, "called off before it entered")
            return state, (Send(out),)
        case IsDone(step, stopped, position, loss, failure, warning, fingerprint):
            if state.stage is not Stage.TRAINING or state.plan is None:
                return _odd(state, f"finished while it is {state.stage.value}")
            generation = state.plan.generation
            done = protocol.Done(generation, step, stopped, position, loss, failure, warning, fingerprint)
            state = _lasting(replace(state, stage=Stage.DONE), done)
            return _at_step(state, step), (Send(done),)


def _enter(state: State, plan: protocol.Plan, place: bytes | None) -> Outcome:
    if state.stage not in (Stage.WAITING, Stage.DONE) or state.newest is None:
        return _odd(state, f"enters generation {plan.generation} while it is {state.stage.value}")
    state = replace(state, plan=plan, stage=Stage.ENTERING, lasting=_others(state, protocol.Done))
    if plan.generation <= state.doomed:
        return state, ()  # it will leave in a moment, and say so
    here: tuple[Instruction, ...] = ()
    if place is not None:
        here = (Send(protocol.KvSet(plan.generation, HERE, place)),)
    return state, (OpenStore(plan), Send(protocol.Entered(plan.generation)), *here)


def _outside(state: State, step: int) -> State:
    return _at_step(replace(state, plan=None, stage=Stage.WAITING), step)


def _at_step(state: State, step: int) -> State:
    if state.ready is None:
        return state
    return replace(state, ready=replace(state.ready, step=step, has_state=state.has_state))


def _odd(state: State, text: str) -> Outcome:
    return state, (Anomaly(text),)


# ----------------------------------------------------------------------------------------- invariants


def validate(state: State) -> None:
    """What must hold after every event. Tests call it all the time."""
    outside = state.stage in (Stage.PREPARING, Stage.WAITING)
    assert outside == (state.plan is None), "in a ring, or done with one, or outside"
    assert (state.stage is Stage.PREPARING) == (state.ready is None), "who is ready said so"
    assert state.stage not in (Stage.TRAINING, Stage.DONE) or state.has_state, "who trains holds the model"
    assert state.prepared <= state.preparing, "connects only where it was told to"
    newest = state.newest.plan.generation if state.newest is not None else 0
    known = (state.doomed, state.gave_up, state.preparing)
    assert max(known) <= newest, "speaks only of rings of which it heard"
    assert state.plan is None or state.plan.generation <= newest
    assert state.abort_at is None or breaking(state), "breaks only what is doomed"
    assert not (state.linked and state.lost_at is not None), "who is heard is not lost"
    assert not (state.over and state.retry_at is not None), "nobody tries after the end"
