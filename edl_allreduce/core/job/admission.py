"""Who has a part in this job, by what it says when it connects."""

from __future__ import annotations

from edl_allreduce.core import protocol
from edl_allreduce.core.job.keeping import MOST_WORKERS, SPOILED
from edl_allreduce.core.job.lifecycle import FINAL, Phase
from edl_allreduce.core.job.state import JobState

HIGHEST_ID = 999_999
"""Of a worker. It is part of the names of pods, which have a limit."""


def refusal(state: JobState, hello: protocol.Hello) -> protocol.Evicted | protocol.Release | None:
    """The answer to somebody who has no part in this job, or none any more."""
    uid, worker_id = hello.seat.uid, hello.seat.worker_id
    if hello.protocol != protocol.PROTOCOL:
        return protocol.Evicted(
            f"the worker speaks protocol {hello.protocol} (version {hello.version}), the master "
            f"{protocol.PROTOCOL}; use the same version for both"
        )
    if not 0 <= worker_id <= HIGHEST_ID:
        return protocol.Evicted(f"--worker_id={worker_id}: a number from 0 to {HIGHEST_ID} is expected")
    if hello.plan is not None and hello.plan.size > MOST_WORKERS:
        return protocol.Evicted(
            f"a ring of {hello.plan.size}, where a job has at most {MOST_WORKERS} workers"
        )
    if len(state.ids) > HIGHEST_ID and uid not in state.ids:
        return protocol.Evicted(f"{len(state.ids)} workers were part of this job: there are no more numbers")
    if uid in state.gone:
        slot = state.slots.get(worker_id)
        spoiled = slot is not None and slot.uid == uid and slot.evicted in SPOILED
        return protocol.Evicted("the ring went on without this worker", keeps=not spoiled)
    finisher = uid == state.ending.exporter or uid in state.ending.finishers
    if state.phase in FINAL or (state.phase is Phase.FINISHING and not finisher):
        # Whoever is known did its part: its release may have been lost with its last connection.
        return protocol.Release() if uid in state.ids else protocol.Evicted("the job is over")
    same = (peer for peer in state.peers.values() if peer.worker_id == worker_id)
    if any(peer.hello.seat.uid != uid for peer in same):
        return protocol.Evicted(f"there is another worker {worker_id}; choose another --worker_id")
    return None
