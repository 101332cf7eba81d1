"""How a job went, in a bounded number of samples: when there are too many, every second one is forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from edl_allreduce.core.status import JobStatus

MOST_SAMPLES: Final = 2000
"""More than a screen has columns for."""
FIRST_INTERVAL: Final = 0.5
"""Seconds between two samples of a job that began just now; it doubles whenever samples are forgotten."""


class Sample(NamedTuple):
    """One moment; `wall` in seconds since 1970."""

    wall: float
    step: int
    loss: float
    records_per_second: float
    ring: int
    wanted: int
    fastest: float
    """Seconds that the fastest member of the ring needs for its part of a step; 0 where that is not known."""
    slowest: float


def sample(status: JobStatus, wall: float) -> Sample:
    """Of the job as it is now."""
    ring = [worker for worker in status.workers if worker.rank >= 0]
    own = [worker.compute_seconds for worker in ring if worker.compute_seconds > 0] or [0.0]
    speed = status.records_per_second
    return Sample(wall, status.step, status.loss, speed, len(ring), status.wanted, min(own), max(own))


class Dated(Protocol):
    """Whatever was seen at a moment."""

    @property
    def wall(self) -> float: ...


Seen = TypeVar("Seen", bound=Dated)


class Series(Generic[Seen]):
    """Samples in the order of time."""

    def __init__(
        self, samples: Iterable[Seen] = (), most: int = MOST_SAMPLES, interval: float = FIRST_INTERVAL
    ) -> None:
        self._samples = list(samples)
        self._most = most
        self._interval = interval

    def due(self, wall: float) -> bool:
        """Whether it is time for another one."""
        return not self._samples or wall - self._samples[-1].wall >= self._interval

    def add(self, one: Seen) -> None:
        self._samples.append(one)
        if len(self._samples) > self._most:
            self._samples = self._samples[::2]
            self._interval *= 2

    def after(self, wall: float) -> list[Seen]:
        """Those after this moment; all of them after 0."""
        if not self._samples or self._samples[-1].wall <= wall:
            return []
        if wall < self._samples[0].wall:
            return list(self._samples)
        return [one for one in self._samples if one.wall > wall]
