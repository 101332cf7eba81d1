"""Where the time of the job goes: what its machine knows of it, for `core.goodput`."""

from __future__ import annotations

from edl_allreduce.core import goodput, protocol
from edl_allreduce.core.goodput import Bucket, Witness
from edl_allreduce.core.job import ring
from edl_allreduce.core.job.lifecycle import FINAL, Phase
from edl_allreduce.core.job.state import JobState, Peer, Queue, Ring
from edl_allreduce.core.job.turn import Turn


def launched(turn: Turn, worker_id: int) -> None:
    turn.change(goodput=goodput.launched(turn.state.goodput, worker_id, turn.now))


def connected(turn: Turn, hello: protocol.Hello) -> None:
    """Whoever knows a generation when it is first heard was started by an earlier master."""
    seat, account = hello.seat, turn.state.goodput
    seen = goodput.connected(account, seat.worker_id, turn.now, uid=seat.uid, taken_over=hello.generation > 0)
    turn.change(goodput=seen)


def heard(turn: Turn, uid: str, worker_id: int, pulse: protocol.Pulse) -> None:
    state = turn.state
    if not pulse.ledger or not isinstance(state.work, Ring):
        return
    if ring.stands_by(state, uid):
        turn.change(goodput=goodput.stands_by(state.goodput, worker_id, pulse.ledger, turn.now))
    else:
        witness = _witness(state, pulse.generation, turn.now)
        seen = goodput.heard(state.goodput, worker_id, pulse.ledger, turn.now, witness)
        turn.change(goodput=seen)


def ended(turn: Turn, worker_id: int) -> None:
    if not turn.over:  # the account is closed with the job
        turn.change(goodput=goodput.gone(turn.state.goodput, worker_id, turn.now))


def tick(turn: Turn) -> None:
    """Time passed: places may be empty, and maybe nobody trains."""
    state, now = turn.state, turn.now
    # The cluster tells of the ends of those that it started, and nobody of the others.
    seen = goodput.only(state.goodput, ring.workers_known(state), now)
    seen = goodput.tick(seen, state.wanted, len(state.slots), now)
    bucket = _without_witness(state, now)
    if bucket is not None:
        seen = goodput.waits(seen, bucket, now)
    if isinstance(state.work, Queue):
        for uid, peer in state.peers.items():
            seen = goodput.works(seen, peer.worker_id, _pulling(state.work, uid, peer), now)
    turn.change(goodput=seen)


def _witness(state: JobState, generation: int, now: float) -> Witness | None:
    """The first in the ring who holds the model and is heard; `generation`: of which it tells."""
    first = ring.first_holder(state)
    if first is None or not isinstance(state.work, Ring) or _without_witness(state, now) is not None:
        return None
    redoes = state.progress.place.step < state.progress.redo_until
    cause = state.work.causes.get(generation, goodput.ReformCause.FIRST)
    return Witness(first, cause, redoes)


def _without_witness(state: JobState, now: float) -> Bucket | None:
    """What the job does while nobody can tell; None when somebody can, or will."""
    if state.phase in FINAL or state.phase is Phase.FINISHING:
        return Bucket.FINISHING
    if isinstance(state.work, Queue):
        return Bucket.STEP if state.phase is Phase.WORKING else _beginning(state)
    begun = state.progress.joined > 0 or state.progress.reached > 0
    ready = sum(peer.course is not None for peer in state.peers.values())
    if begun and state.phase is Phase.WAITING and ready < state.options.min_workers:
        return Bucket.RECOVERY
    if ring.has_model(state) or _may_be_heard(state, now):
        return None
    if begun:
        return Bucket.RECOVERY
    return _beginning(state) if state.phase is Phase.STARTING else Bucket.PREP


def _may_be_heard(state: JobState, now: float) -> bool:
    """Workers of an earlier master train on; what they did meanwhile they tell when they are heard."""
    return now < state.options.recover_until and any(
        slot.accepted and not slot.uid for slot in state.slots.values()
    )


def _beginning(state: JobState) -> Bucket:
    if not state.peers:
        return Bucket.LAUNCH
    return Bucket.WAITING if any(p.course is not None for p in state.peers.values()) else Bucket.STARTUP


def _pulling(work: Queue, uid: str, peer: Peer) -> Bucket:
    if peer.course is None:
        return Bucket.STARTUP
    return Bucket.WAITING if uid in work.waiting else Bucket.STEP
