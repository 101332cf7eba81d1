"""Words of a TrainingJob's status, which its schema declares and its controller writes."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """Where a TrainingJob stands, in one word for people. Programs read the conditions."""

    PENDING = "Pending"
    """Nothing trains yet: no room, or workers start."""
    RUNNING = "Running"
    SCALING = "Scaling"
    """It trains while workers come or leave."""
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    """Somebody stopped it at a step boundary; what was trained so far is written."""
    FAILED = "Failed"


FINAL: Final = frozenset({Phase.SUCCEEDED, Phase.STOPPED, Phase.FAILED})


class Condition(StrEnum):
    """What `kubectl wait --for=condition=…` can wait for."""

    CREATED = "Created"
    """The objects of the job are made; False with the cure when its spec cannot be used."""
    RUNNING = "Running"
    SCALING = "Scaling"
    SUSPENDED = "Suspended"
    DEGRADED = "Degraded"
    """It trains with less than was asked for, or part of its spec has no effect; the message says what."""
    SUCCEEDED = "Succeeded"
    """It came to its end, also when somebody stopped it."""
    FAILED = "Failed"


def moment(text: object) -> float | None:
    """Seconds since 1970 of a time as Kubernetes writes it; None when it is none."""
    try:
        read = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return read.timestamp() if read.tzinfo is not None else None
