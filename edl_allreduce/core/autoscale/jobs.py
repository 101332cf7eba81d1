"""A training job as the autoscaler sees it, and how fast it would be with another number of workers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from edl_allreduce.core.autoscale.cluster import Template

BUMP = 1.1
"""So much slower than the best size may be chance, or the first worker on another machine."""


@dataclass(frozen=True)
class Speed:
    """Seconds per step by number of workers: T(n) = a/n + b, fitted to the sizes that the job has run.

    The part `a` shrinks with more workers (each has a smaller share of the batch), `b` does not (the sum of
    the gradients, Python, the slowest disk). At sizes that were run the measured time itself counts, between
    two of them the curve of this form through both, and beyond the largest the fitted one, moved to meet it.
    """

    a: float
    b: float
    measured: Mapping[int, float] = field(default_factory=dict)

    def step(self, workers: int) -> float:
        if workers in self.measured:
            return self.measured[workers]
        below = max((size for size in self.measured if size < workers), default=None)
        above = min((size for size in self.measured if size > workers), default=None)
        if below is None:
            return self.a / workers + self.b
        here = self.measured[below]
        if above is None:
            return max(here + self.a / workers - self.a / below, here * below / workers)
        part = (1 / below - 1 / workers) / (1 / below - 1 / above)
        return here + part * (self.measured[above] - here)

    @property
    def largest(self) -> int:
        """The largest size that was measured, 0 when none was."""
        return max(self.measured, default=0)

    @property
    def worth_trying(self) -> int:
        """Twice the largest size that was measured; not beyond it when a smaller one was clearly faster.

        Speed is bumpy where one more worker needs one more machine, so a little slower says nothing yet.
        """
        best = min(self.measured.values(), default=0.0)
        return 2 * self.largest if self.measured.get(self.largest, 0.0) <= BUMP * best else self.largest


def fit(measured: Mapping[int, float]) -> Speed:
    """Least squares of the relative error, with a and b not below zero.

    One size alone says nothing about b: it counts as 0 (linear) until a second size was run.
    """
    points = {workers: seconds for workers, seconds in measured.items() if workers > 0 and seconds > 0}
    if not points:
        return Speed(1.0, 0.0)
    # Relative errors a·x + b·y - 1 with x = 1/(n·T), y = 1/T: two normal equations.
    pairs = [(1 / (workers * seconds), 1 / seconds) for workers, seconds in points.items()]
    xx, xy, yy = (sum(p[i] * p[j] for p in pairs) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = sum(p[0] for p in pairs), sum(p[1] for p in pairs)
    determinant = xx * yy - xy * xy
    if determinant > 1e-12 * xx * yy:
        a, b = (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant
        if a <= 0:
            a, b = 0.0, y / yy
        elif b < 0:
            a, b = x / xx, 0.0
    else:
        a, b = x / xx, 0.0
    return Speed(a, b, points)


@dataclass(frozen=True)
class Job:
    """One elastic job: what it may have, what it has, and what it was measured to do with it."""

    name: str
    minimum: int
    maximum: int
    worker: Template
    master: Template | None = None
    """None when it has no pod: then it needs no room."""
    workers: int = 0
    """The size that was last wanted; 0 for a job that has not begun or was suspended."""
    standby: int = 0
    """Pods beyond that size, which wait until a worker is lost: they are nobody's to give."""
    settling: bool = False
    """Workers still start: it is left in peace until they train."""
    managed: bool = True
    """False when somebody else sets its size (a queue, a person): it is only counted."""
    weight: float = 1.0
    """Its share beside others: with weight 2 it counts twice."""
    priority: int = 0
    """The value of its PriorityClass: whose minimum comes first."""
    remaining: float | None = None
    """Steps that are left; None when nobody knows."""
    made: float = 0.0
    """Steps that it has made."""
    measured: Mapping[int, float] = field(default_factory=dict)
    """Seconds per step, by number of workers, at the sizes that it has run."""
    pause: float = 0.1
    """Seconds for which training stands still in a re-form."""
    start_up: float = 30.0
    """Seconds from the order for a worker until it trains."""
    submitted: float = 0.0
    deadline: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum:
            raise ValueError(
                f"{self.name}: minimum {self.minimum}, maximum {self.maximum}; expected 1 ≤ minimum ≤ maximum"
            )
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ValueError(f"{self.name}: weight {self.weight}; expected a number above 0")

    @cached_property
    def speed(self) -> Speed:
        return fit(self.measured)

    @property
    def known(self) -> bool:
        """Whether its time can be predicted: some size was measured, and what is left is known."""
        return bool(self.measured) and self.remaining is not None

    def trained_for(self, workers: int) -> float:
        """Seconds of training that are left with so many workers, if nothing changes."""
        assert self.remaining is not None
        return self.remaining * self.speed.step(workers)

    def time_left(self, workers: int, reluctance: float = 1.0) -> float:
        """Seconds until it ends when its size becomes `workers` now, the change included.

        A ring that grows trains on while newcomers start, then pauses; one that shrinks only pauses.
        `reluctance` multiplies what the change costs: whoever wants a saving of so many times the cost sees
        the cost so many times larger.
        """
        if workers == self.workers:
            return self.trained_for(workers)
        if self.workers == 0:
            return self.start_up + self.trained_for(workers)
        if workers < self.workers:
            return reluctance * self.pause + self.trained_for(workers)
        waiting = reluctance * self.start_up
        before = self.trained_for(self.workers)
        if waiting >= before:
            return before + reluctance * self.pause
        return waiting + reluctance * self.pause + (1 - waiting / before) * self.trained_for(workers)

    def lateness(self, share: float, now: float) -> float:
        """How late it is: 1 when it got `share` workers since its submission, 2 when it will take twice as
        long even if it gets them from now on. Never below 1."""
        if not self.known or share <= 0:
            return 1.0
        assert self.remaining is not None
        share = min(share, self.maximum)
        whole = max(1, int(share))
        step = self.speed.step(whole) * whole / share
        due = (self.made + self.remaining) * step + self.start_up
        return max(1.0, (now - self.submitted + self.remaining * step) / due)

    @property
    def fulfilment(self) -> float:
        """Where it stands between its minimum (0) and its maximum (1)."""
        if self.maximum == self.minimum:
            return 1.0
        return (self.workers - self.minimum) / (self.maximum - self.minimum)
