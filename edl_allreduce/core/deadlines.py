"""Every wait's deadline, derived from one setting; and the pauses between tries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import ceil

ALONE_FACTOR = 10
"""How much longer a slow rank may take when nobody waits for it, or nobody else holds the model."""


@dataclass(frozen=True)
class Deadlines:
    """All in seconds. `failure_detection` is what the user sets."""

    failure_detection: float = 10.0

    def __post_init__(self) -> None:
        if not self.failure_detection > 0:
            raise ValueError(f"failure_detection_seconds must be positive, got {self.failure_detection}")

    @property
    def heartbeat(self) -> float:
        """How often a worker is heard; five chances before it is given up."""
        return self.failure_detection / 5

    @property
    def silent(self) -> float:
        """A worker that was not heard for so long is frozen or cut off."""
        return self.failure_detection

    @property
    def silent_import(self) -> float:
        """While a worker imports native libraries its heartbeat may be held up, and nobody depends on it."""
        return max(60.0, 6 * self.failure_detection)

    @property
    def rejoin(self) -> float:
        """How long after a master's restart the members of the old ring may take to report."""
        return 2 * self.failure_detection

    @property
    def reunion(self) -> float:
        """How much longer a restarted master waits for workers that live, when nobody else has the model."""
        return ALONE_FACTOR * self.rejoin

    @property
    def prepare(self) -> float:
        """How long a worker may import, build, trace and open data: not its network but its disk is slow."""
        return max(600, 60 * self.failure_detection)

    @property
    def collective(self) -> int:
        """Horovod's own limit (whole seconds): the last resort when the master cannot order an abort."""
        return max(2, ceil(3 * self.failure_detection))

    def stuck(self, usual_step: float, *, alone: bool = False) -> float:
        """How long all others may wait for one rank's part of a step.

        Heartbeats tell that the process lives, so user code gets far more time than a silent process:
        an unusually long step is no failure. `alone`: ending the rank would help nobody or lose the model.
        """
        limit = max(6 * self.failure_detection, 20 * usual_step)
        return ALONE_FACTOR * limit if alone else limit


def doubled(first: float, times: int, longest: float) -> float:
    """The pause before the next try, after so many that failed: twice as long each time."""
    return min(first * float(2 ** min(times, 16)), longest)  # bounded: a float overflows at 2**1024


def growing(first: float, longest: float) -> Iterator[float]:
    """The pauses between tries, one after the other, without end."""
    return (doubled(first, times, longest) for times in count())
