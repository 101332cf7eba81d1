"""What a number of workers is worth to a job. The planner compares nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from edl_allreduce.core.autoscale.jobs import Job
from edl_allreduce.core.autoscale.policy import Policy, Rule

NEVER = -math.inf
MOST_LATE = 2.0
"""Who was suspended for a week is not owed all of it at once."""


def assumed(job: Job, policy: Policy) -> Job:
    """The job with guesses in place of what nobody knows: linear speed, and `guess` seconds at its size."""
    return job if job.known else replace(job, remaining=policy.guess / job.speed.step(max(job.workers, 1)))


def largest(job: Job, policy: Policy) -> int:
    """The size up to which its speed is believed."""
    if policy.rule is Rule.EQUAL:
        return job.maximum
    believed = job.speed.worth_trying if job.measured else policy.first_size
    return min(job.maximum, max(believed, job.minimum, job.workers))


class Worth:
    """The value of each size of one job, and the next size worth going to.

    Speed: -w · ln(seconds until it ends), the change included; w = weight · (seconds that are left with one
    worker)^-nearness · (how late it is)^lateness. The sum of it over jobs is largest where no worker would
    raise the speed of another job by more per cent (weighted proportional fairness). Equal: a sum whose steps
    fall with fulfilment.
    """

    def __init__(self, job: Job, policy: Policy, late: float = 1.0) -> None:
        """`late`: as `Job.lateness` says."""
        self.job = job
        self._policy = policy
        self._cap = largest(job, policy)
        self._values: dict[int, float] = {}
        self._next: dict[int, int] | None = None
        nearness: float = max(job.trained_for(1), 1.0) ** -policy.nearness
        self._weight: float = job.weight * nearness * min(late, MOST_LATE) ** policy.lateness

    def of(self, workers: int) -> float:
        if workers not in self._values:
            self._values[workers] = self._value(workers)
        return self._values[workers]

    def _value(self, workers: int) -> float:
        if workers <= 0:
            return NEVER
        job = self.job
        if self._policy.rule is Rule.EQUAL:
            span = max(job.maximum - job.minimum, 1)
            return job.weight * span * _harmonic(max(workers - job.minimum, 0))
        return -self._weight * math.log(max(job.time_left(workers, self._policy.reluctance), 1e-3))

    def _pays(self, workers: int) -> bool:
        """Whether growth to this size saves many times what it costs. By speed the value itself says so."""
        job = self.job
        if self._policy.rule is Rule.SPEED or job.workers == 0 or workers <= job.workers:
            return True
        return job.time_left(workers, self._policy.reluctance) < job.time_left(job.workers)

    def no_more_than(self, workers: int) -> None:
        """It turned out that more cannot be placed."""
        self._cap, self._next = workers, None

    def loss(self, workers: int) -> float:
        """What it loses when one of so many workers leaves."""
        return self.of(workers) - self.of(workers - 1)

    def step(self, workers: int) -> int | None:
        """The next size along the concave envelope: where the gain per worker is largest."""
        if self._next is None:
            self._next = self._envelope(workers)
        return self._next.get(workers)

    def _envelope(self, base: int) -> dict[int, int]:
        """From the right: keep the sizes that no straight line between two others lies above."""
        found: dict[int, int] = {}
        hull: list[int] = []
        for size in range(self._cap, base - 1, -1):
            if size > base and not self._pays(size):
                continue
            while len(hull) > 1 and self._slope(size, hull[-1]) <= self._slope(hull[-1], hull[-2]):
                hull.pop()
            if hull and self._slope(size, hull[-1]) > 1e-12:
                found[size] = hull[-1]
            hull.append(size)
        return found

    def _slope(self, low: int, high: int) -> float:
        return (self.of(high) - self.of(low)) / (high - low)

    def best_below(self, floor: int, workers: int) -> int:
        """The smallest size that is not worse than this one: workers that do not help are given back."""
        if self._policy.rule is Rule.EQUAL:
            return workers
        return max(range(floor, workers + 1), key=lambda size: (self.of(size), -size))


@cache
def _harmonic(number: int) -> float:
    return sum(1 / i for i in range(1, number + 1))
