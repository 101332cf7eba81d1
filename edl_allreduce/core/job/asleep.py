"""A master that was held up itself: frozen, paused with its container or its whole machine, out of memory.

Time passed and it heard nobody, or everybody slept as well: it is held against nobody.
"""

from __future__ import annotations

from dataclasses import replace

from edl_allreduce.core.job.state import JobState, Peer, Queue, Ring, Slot
from edl_allreduce.core.job.turn import Turn
from edl_allreduce.core.membership.types import State as Members

TICK_SECONDS = 0.1
"""How often time is told."""


def notice(turn: Turn) -> bool:
    """Before anything else of a turn: whether it was so. Then all that began before begins so much later."""
    state, now = turn.state, turn.now
    slept = 0.0 if state.ticked is None else now - state.ticked - _usual(state)
    if slept <= 0:
        return False
    turn.change(
        ticked=now,
        peers={uid: _peer(peer, slept) for uid, peer in state.peers.items()},
        slots={number: _slot(slot, slept) for number, slot in state.slots.items()},
        work=_work(state.work, slept),
    )
    turn.keeping(refused_at=_after(state.keeping.refused_at, slept))
    turn.ending(
        exporter_left=_after(state.ending.exporter_left, slept), over_by=_after(state.ending.over_by, slept)
    )
    return True


def _usual(state: JobState) -> float:
    """What may pass from one tick to the next on a busy machine; something may have been heard meanwhile."""
    return max(state.options.deadlines.heartbeat, 5 * TICK_SECONDS)


def _peer(peer: Peer, slept: float) -> Peer:
    pulse = peer.pulse
    return replace(peer, pulse=replace(pulse, heard=pulse.heard + slept, since=_later(pulse.since, slept)))


def _slot(slot: Slot, slept: float) -> Slot:
    return replace(slot, launched=slot.launched + slept, kill_at=_later(slot.kill_at, slept))


def _work(work: Ring | Queue, slept: float) -> Ring | Queue:
    if isinstance(work, Ring):
        return replace(work, members=_members(work.members, slept))
    return replace(work, away={uid: since + slept for uid, since in work.away.items()})


def _members(known: Members, slept: float) -> Members:
    members = {
        uid: replace(member, since=member.since + slept, away=_later(member.away, slept))
        for uid, member in known.members.items()
    }
    return replace(
        known,
        options=replace(known.options, recover_until=_after(known.options.recover_until, slept)),
        members=members,
        leaver_lost=_later(known.leaver_lost, slept),
        heard_since=_after(known.heard_since, slept),
        broken_since=_later(known.broken_since, slept),
        entered_since=_later(known.entered_since, slept),
    )


def _later(at: float | None, slept: float) -> float | None:
    return None if at is None else at + slept


def _after(at: float, slept: float) -> float:
    """0: never."""
    return at + slept if at else at
