"""What must hold after every event."""

from __future__ import annotations

from edl_allreduce.core.membership.machine import STALLS
from edl_allreduce.core.membership.types import Standing, State


def validate_at(state: State, now: float) -> None:
    """What time must not do."""
    ring = state.alive()
    whole = state.plan is not None and len(ring) == state.plan.size
    trains = whole and all(m.joined and m.standing is Standing.RING for m in ring)
    heard = all(m.away is None and not m.expected and not m.draining for m in ring)
    if trains and heard and now >= state.options.recover_until and not state.stopping and not state.finished:
        for member in state.without_a_place():
            waited, deadlines = now - member.since, state.options.deadlines
            late = deadlines.heartbeat  # there may be no look at the clock before
            assert waited <= deadlines.silent + late, "a worker with a model does not stand by for long"


def validate(state: State) -> None:
    """Tests call it all the time."""
    plan = state.plan
    assert not state.gone & state.members.keys(), "who is gone is no member"
    for member in state.members.values():
        if member.standing is Standing.ABSENT:
            assert member.away is not None, "who is here is not absent"
    for member in state.members.values():
        assert not member.joined or member.has_state, "who joined agreed on the model"
        assert not member.proven or member.has_state, "who made steps holds the model"
        assert not member.expected or member.standing is Standing.RING
        assert not (member.has_state and state.stands_by(member.seat.uid)), "who stands by has no model"
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
