"""Workers whose weights differ although they must not: they are replaced, as `core.differing` decides."""

from __future__ import annotations

from dataclasses import replace

from edl_allreduce.core import differing, events, protocol
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.differing import Doubt, GiveUp, GoBack, Holder
from edl_allreduce.core.job import keeping, ring
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.turn import Turn


def differ(turn: Turn, message: protocol.Differs) -> None:
    """Every member of the ring names the same ones: the first who says it counts. The next ring may be
    planned already: whoever was found wrong must not get there: its state could be the one all take."""
    members = ring.members_of(turn.state)
    known = members.members if members is not None else {}
    named = [uid for uid in message.uids if uid in known]
    if message.decided:
        keeping.evict(turn, *((uid, Cause.CORRUPT, differing.words(message.step)) for uid in named))
        return
    if not any(uid not in turn.state.gone for uid in named):
        return
    prints = dict(zip(message.uids, message.fingerprints, strict=False))
    seats = [known[uid].seat for uid in named]
    holders = tuple(Holder(seat.worker_id, seat.host, prints.get(seat.uid, "")) for seat in seats)
    doubt = Doubt(message.step, holders)
    match differing.decide(doubt, turn.state.doubt):
        case GiveUp(reason):
            turn.end(Phase.FAILED, reason)
        case GoBack(reason):
            turn.change(doubt=doubt)
            turn.tell(events.Noted(protocol.NoteKind.WARNING, reason))
            why = differing.doubtful(message.step)
            keeping.evict(turn, *((uid, Cause.DOUBTED, why) for uid in named))


def weighed(turn: Turn, message: protocol.Weighed) -> None:
    """Those who made the steps again came to where others differed."""
    doubt = turn.state.doubt
    if doubt is None or not doubt.is_open or message.step != doubt.step:
        return
    turn.change(doubt=replace(doubt, is_open=False))
    turn.tell(events.Noted(protocol.NoteKind.WARNING, differing.verdict(doubt, message.fingerprint)))
