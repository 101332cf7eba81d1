"""Workers whose weights differ although they must not: they are replaced, as `core.differing` decides."""

from __future__ import annotations

from dataclasses import replace

from edl_allreduce.core import differing, events, protocol
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.differing import Doubt, GiveUp, GoBack, Holder
from edl_allreduce.core.job import keeping, ring
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.job.turn import Turn
from edl_allreduce.core.membership.types import Standing

LONGEST_PRINT = 64
"""Digits of a fingerprint."""


def differ(turn: Turn, uid: str, message: protocol.Differs) -> None:
    """Every member of the ring names the same ones: the first who says it counts. The next ring may be
    planned already: whoever was found wrong must not get there: its state could be the one all take."""
    members = ring.members_of(turn.state)
    known = members.members if members is not None else {}
    if said := _impossible(turn, uid, message):
        turn.tell(events.Anomaly(said, turn.state.ids.get(uid, events.NOBODY)))
        return
    named = [uid for uid in message.uids if uid in known]
    if message.decided:
        keeping.evict(turn, *((uid, Cause.CORRUPT, differing.words(message.step)) for uid in named))
        return
    if not any(uid not in turn.state.gone for uid in named):
        return
    prints = dict(zip(message.uids, message.fingerprints, strict=False))
    seats = [known[uid].seat for uid in named]
    holders = tuple(Holder(seat.worker_id, seat.host, prints.get(seat.uid, "")) for seat in seats)
    doubted = [(uid, Cause.DOUBTED, differing.doubtful(message.step)) for uid in named]
    earlier = turn.state.doubt
    if earlier is not None and message.generation <= earlier.generation:
        # A master that is new hears of it from one after the other, and knew only some of them at first.
        if (message.generation, message.step) == (earlier.generation, earlier.step):
            turn.change(doubt=replace(earlier, holders=(*earlier.holders, *holders)))
        keeping.evict(turn, *doubted)
        return
    rounds = 1 if earlier is None else earlier.rounds + 1
    doubt = Doubt(message.step, holders, generation=message.generation, rounds=rounds)
    match differing.decide(doubt, earlier, replaces=turn.state.options.num_workers > 0):
        case GiveUp(reason):
            turn.end(Phase.FAILED, reason)
        case GoBack(reason):
            turn.change(doubt=doubt)
            turn.tell(events.WeightsDoubted(reason))
            keeping.evict(turn, *doubted)


def weighed(turn: Turn, uid: str, message: protocol.Weighed) -> None:
    """Those who made the steps again came to where others differed."""
    doubt = turn.state.doubt
    if doubt is None or not doubt.is_open or message.step != doubt.step:
        return
    if uid not in ring.holders(turn.state) or len(message.fingerprint) > LONGEST_PRINT:
        said = "the fingerprint of weights that it cannot know"
        turn.tell(events.Anomaly(said, turn.state.ids.get(uid, events.NOBODY)))
        return
    turn.change(doubt=replace(doubt, is_open=False))
    turn.tell(events.WeightsDoubted(differing.verdict(doubt, message.fingerprint)))


def _impossible(turn: Turn, uid: str, message: protocol.Differs) -> str:
    """What is wrong with a message that no worker of this job can say."""
    state = turn.state
    members, length = ring.members_of(state), state.progress.total_steps
    member = members.members.get(uid) if members is not None else None
    newest = members.generation if members is not None else 0
    if member is None or member.standing is Standing.PREPARING:
        return "different weights in a ring, and it was in none"
    if not state.options.reproducible:
        return "speaks of different weights, which nobody compares without --reproducible"
    if not 0 < message.generation <= newest:
        return f"different weights in generation {message.generation}, and the newest plan is {newest}"
    if message.step < 0 or 0 < length < message.step:
        return f"different weights after {message.step} steps of a job that has {length}"
    if any(len(text) > LONGEST_PRINT for text in message.fingerprints):
        return f"a fingerprint of more than {LONGEST_PRINT} digits"
    return ""
