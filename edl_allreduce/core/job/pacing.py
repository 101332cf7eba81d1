"""Slow workers of a job: people hear of them, and where they are to be replaced they drain."""

from __future__ import annotations

from edl_allreduce.core import events, straggler
from edl_allreduce.core.job import keeping, ring
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.state import JobState
from edl_allreduce.core.job.turn import Turn
from edl_allreduce.core.straggler import Times


def tick(turn: Turn) -> None:
    """Look at the ring as it trains."""
    state = turn.state
    if state.phase is not Phase.TRAINING or state.stopping:
        return
    watch, slow, quick = straggler.look(
        state.stragglers,
        times_of(state),
        turn.now,
        replace_factor=state.options.replace_stragglers,
        spare=_can_do_without(state),
    )
    if watch is not state.stragglers:
        turn.change(stragglers=watch)
    for found in slow:
        goes = found.replaces and not keeping.refusal_to_drain(turn.state, found.worker_id)
        turn.tell(events.WorkerSlow(found.worker_id, found.seconds, found.usual, goes))
        if goes:
            keeping.drain(turn, found.worker_id)
    for worker_id in quick:
        turn.tell(events.WorkerQuickAgain(worker_id))


def times_of(state: JobState) -> dict[int, Times]:
    """The members of the ring, as far as their heartbeats are of this ring."""
    plan = ring.plan_of(state)
    if plan is None:
        return {}
    known = {}
    for seat in plan.members:
        peer = state.peers.get(seat.uid)
        last = peer.last if peer is not None else None
        if last is not None and last.generation == plan.generation:
            known[seat.worker_id] = Times(last.compute_seconds, last.best_compute_seconds)
    return known


def _can_do_without(state: JobState) -> bool:
    """One leaves at a time, and enough remain until its successor is there."""
    active = [slot for slot in state.slots.values() if not slot.draining]
    whole = len(active) >= state.wanted and not any(slot.draining for slot in state.slots.values())
    return whole and len(active) > max(1, state.options.min_workers)
