"""What can be asked of a snapshot, by any thread and without waiting."""

from __future__ import annotations

from collections.abc import Iterator

from edl_allreduce.core import protocol
from edl_allreduce.core.attendance.state import RING, Leave, MasterGone, NextOrder, Pulled, Stage, State
from edl_allreduce.core.protocol import Plan

NEXT, HERE = "/next", "/here"
"""Keys under which newcomers to a ring find the place where it will begin, and where it begins now."""

LEAD_STEPS = 2
"""Steps of the old ring between the vote for the next one and the boundary: meanwhile all its members read
their first records. Whoever drains is not made to wait."""


def boundary(step: int, *, draining: bool) -> int:
    """The step after which a ring ends, when its members voted for that in this step."""
    return step + (0 if draining else LEAD_STEPS)


# ------------------------------------------------------------------------------- for the training thread


def vote(state: State, generation: int) -> tuple[bool, bool]:
    """Whether this ring should end here (the next one is at hand, or the master is gone for good), and
    whether this worker was told to stop."""
    newest = state.newest
    newer = newest is not None and newest.plan.generation > generation and _at_hand(state, newest)
    return newer or isinstance(state.last, MasterGone), bool(state.stop)


def _at_hand(state: State, order: protocol.NewPlan) -> bool:
    """Whether its members need not train here any longer; who leaves lets them decide."""
    stays = order.plan.rank_of(state.uid) is not None
    if order.abort or stays:
        return order.abort or state.prepared >= order.plan.generation
    ring = state.plan.members if state.plan is not None else ()
    return all(order.plan.rank_of(seat.uid) is None for seat in ring)


def upcoming(state: State, generation: int) -> Plan | None:
    """The plan after this generation, if there is one with a seat for this worker."""
    newest = state.newest
    if newest is None or newest.plan.generation <= generation:
        return None
    return newest.plan if newest.plan.rank_of(state.uid) is not None else None


def pending(state: State, generation: int, now: float) -> NextOrder | None:
    """What to do after the ring of `generation`, if that is known. The last word of the master wins."""
    if state.last is not None:
        return state.last
    newest = state.newest
    if newest is not None and newest.plan.generation > generation:
        seated = newest.plan.rank_of(state.uid) is not None
        if seated or state.draining:
            return newest if seated else Leave()
        return None  # a newcomer whose turn has not come
    if deserted(state, now):
        return MasterGone(state.deadlines.silent)
    return Leave() if state.draining and generation == 0 else None


def next_task(state: State) -> Pulled | None:
    """What to do next, where work is pulled."""
    return state.pulled[0] if state.pulled else None


def deserted(state: State, now: float) -> bool:
    """Whether no master can let this worker go, although it was asked to leave."""
    return state.draining and state.lost_at is not None and now >= state.lost_at + state.deadlines.silent


def doomed(state: State, generation: int) -> bool:
    """Whether the ring of this generation is to be left at once."""
    return generation <= state.doomed


def place(state: State, generation: int) -> bytes | None:
    """Where the ring will begin, if a member of the old one has said so."""
    return _of(generation, state.next_place) or _of(generation, state.here)


def company(state: State, generation: int) -> bytes | None:
    """Where the ring begins, if somebody of the old one has come to it."""
    return _of(generation, state.here)


def _of(generation: int, known: tuple[int, bytes] | None) -> bytes | None:
    return known[1] if known is not None and known[0] == generation else None


def superseded(state: State, generation: int, now: float) -> bool:
    """Whether nobody will come to the ring of this generation any more, or this worker cannot hear of it."""
    newer = state.newest is not None and state.newest.plan.generation > generation
    return newer or doomed(state, generation) or state.last is not None or deserted(state, now)


# ------------------------------------------------------------------------------------- for the connection


def hello(state: State, step: int) -> protocol.Hello:
    """The first message of a connection. `step`: how far the training thread is."""
    plan, newest = state.plan, state.newest
    if newest is not None and newest.plan.rank_of(state.uid) is not None:
        plan = newest.plan if newest.plan.generation > state.gave_up else plan
    inside = plan is not None and plan == state.plan
    done = inside and state.stage is Stage.DONE
    return protocol.Hello(
        seat=state.seat,
        plan=plan,
        step=step,
        done=done and not _failure(state),
        joined=inside and state.stage in (Stage.TRAINING, Stage.DONE),
        has_state=state.has_state,
        generation=newest.plan.generation if newest is not None else 0,
        stopping=state.stop,
        tasks=tuple((task.number, task.attempt) for task in _tasks(state)),
    )


def _tasks(state: State) -> Iterator[protocol.DoTask | protocol.TaskDone]:
    """What was given to this worker and is not lost."""
    yield from (task for task in state.pulled if isinstance(task, protocol.DoTask))
    yield from (report for report in state.unsaid if isinstance(report, protocol.TaskDone))
    if state.task is not None:
        yield state.task


def _failure(state: State) -> str:
    """Why this worker has nothing to export. It says so right after its hello: nobody is to ask for it."""
    return next((report.failure for report in state.lasting if isinstance(report, protocol.Done)), "")


def introduction(state: State, step: int) -> Iterator[protocol.FromWorker]:
    """Everything that is said right after a connection opened, whatever was said over the one before."""
    yield hello(state, step)
    if state.ready is not None:
        yield state.ready
    if state.draining:
        yield protocol.Draining()
    yield from (report for report in state.lasting if report not in state.unsaid)


# ------------------------------------------------------------------------------------------ for the shell


def breaking(state: State) -> bool:
    """Whether this worker is in a doomed ring, or connects to one."""
    inside = state.stage in RING and state.plan is not None and state.plan.generation <= state.doomed
    return inside or state.prepared < state.preparing <= state.doomed


def wakes_at(state: State, now: float) -> float | None:
    """When the machine wants to hear the time next, if it does."""
    times = [state.retry_at, state.abort_at]
    if state.lost_at is not None and not state.over:
        deserted_at = state.lost_at + state.deadlines.silent
        times += [state.lost_at + state.grace, deserted_at if deserted_at > now else None]
    return min((at for at in times if at is not None), default=None)
