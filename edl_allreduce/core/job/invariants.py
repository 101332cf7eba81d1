"""What must hold after every event of a job. Tests call it all the time."""

from __future__ import annotations

from collections.abc import Sequence

from edl_allreduce.core import events, protocol
from edl_allreduce.core.job.inbox import Effect, Launch, Over, Send, Tell
from edl_allreduce.core.job.lifecycle import FINAL, Phase
from edl_allreduce.core.job.state import JobState, Queue, Ring
from edl_allreduce.core.membership import invariants as membership


def validate(before: JobState, after: JobState, effects: Sequence[Effect]) -> None:
    """One turn: the state from before it, the one that it made, and what is to be done."""
    _phases(before, after, effects)
    _workers(before, after, effects)
    _streams(after, effects)
    match after.work:
        case Ring(members):
            membership.validate(members)
        case Queue(tasks=tasks, waiting=waiting, away=away):
            if tasks is not None:
                tasks.validate()
                workers = [lease.worker for lease in tasks.leases.values()]
                assert len(set(workers)) == len(workers), "who has a task gets no other"
                assert not waiting & set(workers), "who has a task does not wait for one"
            assert not waiting & away.keys(), "who has no connection does not wait for a task"


def _phases(before: JobState, after: JobState, effects: Sequence[Effect]) -> None:
    if before.phase in FINAL:
        assert (after.phase, after.reason) == (before.phase, before.reason), "final phases stay final"
    assert (after.phase in FINAL) == bool(after.reason), "an end has a reason, and only an end"
    overs = sum(isinstance(effect, Over) for effect in effects)
    assert overs == (after.ending.over and not before.ending.over), "a job is over once"
    told = [effect.event for effect in effects if isinstance(effect, Tell)]
    anomalies = [event.text() for event in told if isinstance(event, events.Anomaly)]
    assert not anomalies, anomalies  # a move that is not in the table is one


def _workers(before: JobState, after: JobState, effects: Sequence[Effect]) -> None:
    launched = [effect.worker_id for effect in effects if isinstance(effect, Launch)]
    assert after.keeping.next_id >= before.keeping.next_id
    assert all(worker_id >= before.keeping.next_id for worker_id in launched), "ids are never used again"
    assert len(set(launched)) == len(launched)
    assert all(worker_id < after.keeping.next_id for worker_id in after.slots)
    if launched:
        active = sum(not slot.draining for slot in after.slots.values())
        assert active <= after.launched, "nobody is started who is not wanted"
        assert not (after.stopping or after.failing), "a job that ends starts nobody"
        assert after.phase not in FINAL and after.phase is not Phase.FINISHING
    assert before.gone <= after.gone, "whoever is gone stays gone"


def _streams(after: JobState, effects: Sequence[Effect]) -> None:
    links = [peer.link for peer in after.peers.values()]
    assert len(set(links)) == len(links), "a connection belongs to one worker"
    assert after.peers.keys() <= after.ids.keys()
    numbers = [peer.worker_id for uid, peer in after.peers.items() if uid not in after.gone]
    assert len(set(numbers)) == len(numbers), "two workers with one number are not told apart"
    if any(isinstance(effect, Tell) and isinstance(effect.event, events.JobEnded) for effect in effects):
        released = {effect.link for effect in effects if isinstance(effect, Send) and _ends(effect.message)}
        assert released >= set(links), "everybody may go when the job is over"


def _ends(message: protocol.FromMaster) -> bool:
    return isinstance(message, protocol.Release | protocol.Evicted)
