"""How far a job is, how long it will take, and where its time went. Time is an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from edl_allreduce.core.schedule import Order, Schedule


@dataclass(frozen=True)
class Length:
    """How much a job trains: passes over its records, one batch per step."""

    records: int
    """Of the data set."""
    epochs: int
    batch: int
    max_step: int = 0
    """0: as many steps as the epochs take."""
    per_worker: bool = False
    """`batch` is that of one worker, so a step of a larger ring takes more records."""

    def __post_init__(self) -> None:
        if self.records < 1:
            raise ValueError(f"a training has records, not {self.records}")

    def batch_of(self, ring: int) -> int:
        """Records of a step in a ring of so many."""
        return self.batch * max(1, ring) if self.per_worker else self.batch

    def total(self, step: int, position: int, ring: int) -> int:
        """Steps of the whole job: those that were made, whatever their batch, and those that are left."""
        schedule = Schedule(Order(self.records), self.epochs, self.max_step)
        return step + schedule.steps_left(step, position, self.batch_of(ring))

    def epoch(self, position: int) -> int:
        """The epoch that is trained after so many records, counted from 1."""
        return min(position // self.records + 1, self.epochs)


@dataclass(frozen=True)
class Place:
    """How far the ring is, from the heartbeats of its members: the freshest counts, not the last."""

    generation: int = 0
    step: int = 0
    position: int = 0
    loss: float = math.nan
    """Of the last step that is known."""

    def heard(self, generation: int, step: int, position: int, loss: float = math.nan) -> Place:
        """A newer ring may have been set back to a checkpoint; within one, steps only grow."""
        if generation < self.generation or (generation == self.generation and step < self.step):
            return self
        known = self.loss if math.isnan(loss) else loss
        return Place(generation, step, position, known)


@dataclass(frozen=True)
class Stopwatch:
    """Seconds in which something was so."""

    total: float = 0.0
    since: float | None = None

    def turn(self, on: bool, now: float) -> Stopwatch:
        if on == (self.since is not None):
            return self
        return replace(self, since=now) if on else Stopwatch(self.read(now))

    def read(self, now: float) -> float:
        return self.total + (now - self.since if self.since is not None else 0.0)


def duration(seconds: float) -> str:
    """As people say it: 4.1 s, 49 s, 3 min 20 s, 2 h 05 min, 3 d 4 h."""
    if not math.isfinite(seconds):
        return "? s"
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 24 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // (24 * 3600)} d {whole % (24 * 3600) // 3600} h"
