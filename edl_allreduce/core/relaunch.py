"""What to do when a worker ended: a pure table from its cause."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Cause(Enum):
    """Why a worker is gone."""

    FINISHED = "finished"
    DRAINED = "drained"
    """Asked to leave, and left in order. Somebody else takes its place unless the job shrinks."""
    DISRUPTED = "disrupted"
    """Preempted, evicted, deleted, killed from outside, or its node is gone."""
    REJECTED = "rejected"
    """Its node refused it after the scheduler had chosen that node."""
    SILENT = "silent"
    """Frozen or cut off: no heartbeat."""
    STUCK = "stuck"
    """Alive, but the others waited for it for too long."""
    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"
    """Its program ended with an error."""
    INVALID = "invalid"
    """The job itself cannot work: wrong model file, missing data. No worker would do better."""


@dataclass(frozen=True)
class Relaunch:
    """Start the next id after `delay` seconds."""

    delay: float
    reason: str


@dataclass(frozen=True)
class Leave:
    """Start nobody."""

    reason: str


@dataclass(frozen=True)
class GiveUp:
    """The job fails."""

    reason: str


Decision = Relaunch | Leave | GiveUp

FREE = frozenset({Cause.DRAINED, Cause.DISRUPTED, Cause.SILENT, Cause.REJECTED})
"""Not the job's fault: replaced at once, and not counted."""

SENTENCE = {
    Cause.FINISHED: "finished",
    Cause.DRAINED: "was drained",
    Cause.DISRUPTED: "was disrupted",
    Cause.REJECTED: "was rejected by its node",
    Cause.SILENT: "fell silent",
    Cause.STUCK: "was stuck",
    Cause.OUT_OF_MEMORY: "ran out of memory",
    Cause.CRASHED: "crashed",
    Cause.INVALID: "cannot run the job",
}

FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0


def decide(cause: Cause, *, failures: int, budget: int, running: int, wanted: int) -> Decision:
    """`failures` counts those before this one that were the job's own fault."""
    if cause is Cause.FINISHED:
        return Leave("it finished")
    if cause is Cause.INVALID:
        return GiveUp("the job cannot run as it is described")
    if cause not in FREE and failures >= budget:
        allowed = f"not more than {budget} failures are allowed (--max_worker_crashes)"
        return GiveUp(f"a worker {SENTENCE[cause]}, and {allowed}")
    if running >= wanted:
        return Leave(f"{running} workers are enough for {wanted} wanted")
    if cause in FREE:
        delay = FIRST_DELAY if cause is Cause.REJECTED else 0.0  # the node may refuse the next one as fast
        return Relaunch(delay, f"a worker {SENTENCE[cause]}")
    delay = min(FIRST_DELAY * 2 ** min(failures, 16), LONGEST_DELAY)  # bounded: a float overflows at 2**1024
    return Relaunch(delay, f"a worker {SENTENCE[cause]}; failure {failures + 1} of {budget} allowed")
