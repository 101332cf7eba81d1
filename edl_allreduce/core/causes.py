"""Why a worker is gone: the words that cluster, master and relaunch policy share."""

from __future__ import annotations

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
    CORRUPT = "corrupt"
    """It holds other weights than the rest, although all must have the same."""
    DOUBTED = "doubted"
    """It and others hold different weights, and nobody can tell which are right."""
    INVALID = "invalid"
    """The job itself cannot work: wrong model file, missing data. No worker would do better."""


FREE = frozenset({Cause.DRAINED, Cause.DISRUPTED, Cause.SILENT, Cause.REJECTED, Cause.DOUBTED})
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
    Cause.CORRUPT: "held other weights than the rest",
    Cause.DOUBTED: "held weights that others contradicted",
    Cause.INVALID: "cannot run the job",
}
