"""Looks at the cluster every two seconds, as the published collector did, and works out its figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean

from edl_allreduce import clock
from experiments.stage import Stage

EVERY = 2.0
COLUMNS = (
    "time", "cpu %", "running trainers", "jobs not existing", "jobs pending", "jobs running", "jobs done",
    "nginx pods", "trainers per job", "cpu % per job",
)  # fmt: skip
"""The published ones; lists are joined by |."""


@dataclass(frozen=True)
class Sample:
    """One look."""

    time: float
    load: float
    """CPUs that running pods ask for, as a share of all."""
    workers: tuple[int, ...]
    """By job, in their order."""
    submitted: int
    running: int
    service: int
    loads: tuple[float, ...]
    wanted: int = 0
    """Pods that the service should have."""

    def row(self) -> dict[str, object]:
        values = (
            f"{self.time:.1f}",
            f"{100 * self.load:.2f}",
            sum(self.workers),
            len(self.workers) - self.submitted,
            self.submitted - self.running,
            self.running,
            0,  # no job ends in these experiments
            self.service,
            "|".join(map(str, self.workers)),
            "|".join(f"{100 * one:.2f}" for one in self.loads),
        )
        return dict(zip(COLUMNS, values, strict=True))


@dataclass
class Collector:
    """Samples of one run."""

    stage: Stage
    names: Sequence[str]
    """Of all jobs that will come."""
    cpus: int
    wanted: Callable[[], int] = lambda: 0
    began: float = field(default_factory=clock.now)
    samples: list[Sample] = field(default_factory=list)

    @property
    def now(self) -> float:
        return clock.now() - self.began

    async def run(self) -> None:
        while True:
            self.samples.append(self.look())
            await asyncio.sleep(EVERY - self.now % EVERY)

    def look(self) -> Sample:
        stage = self.stage
        workers = tuple(stage.running(name) for name in self.names)
        return Sample(
            self.now,
            stage.cpus() / self.cpus,
            workers,
            sum(name in stage.jobs for name in self.names),
            sum(count > 0 for count in workers),
            stage.service(),
            tuple(stage.cpus(name) / self.cpus for name in self.names),
            self.wanted(),
        )

    def pendings(self, pace: float = 1.0) -> list[float]:
        """Seconds from a job's submission to its first worker; of one that never had any, to the end, as if
        the run had been as long as the published one."""
        jobs = [self.stage.jobs[name] for name in self.names if name in self.stage.jobs]
        end = self.began + self.now
        return [
            (end - one.at) / pace if one.first_worker is None else one.first_worker - one.at for one in jobs
        ]


def between(samples: Sequence[Sample], begin: float, end: float) -> list[Sample]:
    return [one for one in samples if begin <= one.time <= end]


def load(samples: Sequence[Sample]) -> float:
    """Its mean; 0 where there are no samples."""
    return mean([one.load for one in samples] or [0.0])


def workers_per_job(samples: Sequence[Sample]) -> list[float]:
    return [mean(column) for column in zip(*(one.workers for one in samples), strict=True)]


def jain(values: Sequence[float]) -> float:
    """1 when all are equal, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0
