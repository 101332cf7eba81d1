"""The job as Prometheus sees it. `Metrics.render()` is what `/metrics` answers.

Counts come from the history (`told`), the rest from the last status (`seen`), so nothing is counted twice and
a scrape costs no more than to write the page. Labels are of closed sets: causes, phases, buckets, ranks, and
the names of the model's own metrics. No name of a pod and no number of a worker is one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from edl_allreduce import outside
from edl_allreduce.clock import SYSTEM, Clock
from edl_allreduce.core import event_data, events
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.goodput import Bucket, ReformCause
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.logs import Harmless
from edl_allreduce.master.shell import Traffic
from edl_allreduce.version import __version__

log = logging.getLogger(__name__)

STEP_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
PAUSE_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
LONG_BOUNDS: Final = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
REFORM_PHASES: Final = ("notice", "plan", "join", "sync", "first_step")
LOOK_SECONDS: Final = 1.0
SHOWN_METRICS: Final = 20
"""Of an evaluation: a model has a handful, and a label must not grow without an end."""


@dataclass
class Histogram:
    """Observations below each bound, and their sum."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        counts = self.counts or [0] * (len(self.bounds) + 1)
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        sums = [sum(counts[: number + 1]) for number in range(len(counts))]
        return [(name, float(count)) for name, count in zip(names, sums, strict=True)]


@dataclass
class Upward:
    """A figure that may be set back, as a counter, which may not."""

    total: int = 0
    _last: int = 0

    def see(self, value: int) -> None:
        self.total += max(0, value - self._last)
        self._last = value


@dataclass
class Counts:
    """What the history adds up to."""

    launches: int = 0
    exits: Counter[str] = field(default_factory=Counter)
    relaunches: Counter[str] = field(default_factory=Counter)
    plans: Counter[str] = field(default_factory=Counter)
    reforms: dict[tuple[str, str], Histogram] = field(default_factory=dict)
    """By cause and phase; the phase `all` is the whole pause."""
    pending: Histogram = field(default_factory=lambda: Histogram(LONG_BOUNDS))
    preparing: Histogram = field(default_factory=lambda: Histogram(LONG_BOUNDS))
    checkpoints: Histogram = field(default_factory=lambda: Histogram(LONG_BOUNDS))
    missing_checkpoints: int = 0
    evaluations: int = 0
    anomalies: int = 0
    stragglers: int = 0
    _first: tuple[int, str] = (-1, ReformCause.FIRST.value)
    """Rank 0 of the last plan, and why that was made."""
    _launched: dict[int, float] = field(default_factory=dict)
    _connected: dict[int, float] = field(default_factory=dict)

    def take(self, event: events.Event, wall: float) -> None:
        match event:
            case events.WorkerLaunched(worker_id, replaces):
                self.launches += 1
                self._launched[worker_id] = wall
                if replaces:
                    self.relaunches[replaces] += 1
            case events.WorkerConnected(worker_id) if worker_id in self._launched:
                self.pending.observe(wall - self._launched.pop(worker_id))
                self._connected[worker_id] = wall
            case events.WorkerReady(worker_id) if worker_id in self._connected:
                self.preparing.observe(wall - self._connected.pop(worker_id))
            case events.WorkerExited(worker_id, cause):
                self.exits[cause] += 1
                self._launched.pop(worker_id, None)
                self._connected.pop(worker_id, None)
            case events.MasterReturned():
                self._launched.clear()
                self._connected.clear()
            case events.RingPlanned(workers=workers, cause=cause):
                self.plans[cause or ReformCause.RETRY.value] += 1
                self._first = (workers[0] if workers else -1, cause)
            case events.RingReformed(worker_id=worker_id) if worker_id == self._first[0]:
                self._reformed(event, self._first[1])
            case events.CheckpointWritten(seconds=seconds):
                self.checkpoints.observe(seconds)
            case events.CheckpointMissing():
                self.missing_checkpoints += 1
            case events.ModelEvaluated():
                self.evaluations += 1
            case events.WorkerSlow():
                self.stragglers += 1
            case events.Anomaly():
                self.anomalies += 1

    def _reformed(self, event: events.RingReformed, cause: str) -> None:
        """Rank 0 was in the ring before it and tells for all: the others waited for the same."""
        parts = {phase: float(getattr(event, phase)) for phase in REFORM_PHASES}
        for phase, seconds in {**parts, "all": event.pause}.items():
            self.reforms.setdefault((cause, phase), Histogram(PAUSE_BOUNDS)).observe(seconds)


class Metrics(Collector):
    """Of one job. Belongs to the master's loop."""

    def __init__(
        self,
        status: Callable[[], JobStatus],
        traffic: Callable[[], Traffic] = lambda: Traffic(0, 0, 0, 0),
        clock: Clock = SYSTEM,
    ) -> None:
        self._status = status
        self._traffic = traffic
        self._clock = clock
        self.counts = Counts()
        self._steps = Histogram(STEP_BOUNDS)
        self._step = -1
        self._made, self._used = Upward(), Upward()
        self._task: asyncio.Task[None] | None = None
        self._harmless = Harmless(log, "the metrics of the job could not be brought up to date")
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def start(self) -> None:
        """Look at the job every second, so that the times of steps are not only those of scrapes."""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            with self._harmless:
                self.seen(self._status())
            await self._clock.rest(LOOK_SECONDS)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def told(self, record: EventRecord) -> None:
        """Something happened."""
        event = event_data.from_data(record.event)
        if event is not None:
            self.counts.take(event, record.wall)

    def seen(self, status: JobStatus) -> None:
        """Look at the job, now and then: steps since the last look count with the time that they take."""
        self._made.see(status.step)
        self._used.see(status.position)
        if status.counts != "step":
            return
        made = status.step - self._step
        if self._step >= 0 and made > 0 and status.steps_per_second > 0:
            self._steps.observe(1 / status.steps_per_second, made)
        self._step = status.step

    def render(self) -> tuple[bytes, str]:
        """The text for Prometheus, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    # ------------------------------------------------------------------------------------------- families

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        self.seen(status)
        yield from self._progress(status)
        yield from self._ring(status)
        yield from self._workers()
        yield from self._time(status)
        yield from self._kept(status)
        yield from self._streams()

    def _progress(self, status: JobStatus) -> Iterator[Metric]:
        about = {"job_name": outside.name(status.job_name), "version": __version__}
        yield InfoMetricFamily("elasticdl_job", "The job that this master leads.", about)
        phases = _gauge("elasticdl_job_phase", "1 for the phase that the job is in.", ["phase"])
        for phase in Phase:
            phases.add_metric([phase.value.lower()], float(status.phase == phase.value))
        yield phases
        unit = "steps" if status.counts == "step" else "tasks"
        words = f"The {unit} that were made; one that had to be made again counts twice."
        yield _counter(f"elasticdl_{unit}", words, self._made.total)
        words = f"The {unit} of the job that are done, over all its runs."
        yield _gauge(f"elasticdl_done_{unit}", words, value=status.step)
        yield _gauge(f"elasticdl_planned_{unit}", f"All {unit} of the job.", value=status.total_steps)
        yield _counter("elasticdl_records", "Records that were used, over all epochs.", self._used.total)
        words = "Time of a step; those between two looks of the master count with their median."
        yield _histogram("elasticdl_step_seconds", words, [], [([], self._steps)])
        if math.isfinite(status.loss):
            yield _gauge("elasticdl_loss", "Of the last step that is known.", value=status.loss)
        measured = _gauge("elasticdl_evaluation_metric", "Of the last evaluation, by name.", ["metric"])
        for name, value in list(status.metrics.items())[:SHOWN_METRICS]:
            measured.add_metric([outside.name(name)], value)
        yield measured
        yield _counter("elasticdl_evaluations", "Evaluations of the model.", self.counts.evaluations)
        again = "Steps that were made again, because the model was lost with its last holders."
        yield _counter("elasticdl_redone_steps", again, status.tally.set_back)

    def _ring(self, status: JobStatus) -> Iterator[Metric]:
        members = [worker for worker in status.workers if worker.rank >= 0]
        yield _gauge("elasticdl_ring_size", "Workers that train together.", value=len(members))
        yield _gauge("elasticdl_workers_wanted", "Workers that the job should have.", value=status.wanted)
        yield _gauge("elasticdl_workers_minimum", "Below this the job waits.", value=status.minimum)
        standing = _gauge("elasticdl_workers", "Workers by what they are.", ["state"])
        for state, count in sorted(Counter(_state(w.standing, w.draining) for w in status.workers).items()):
            standing.add_metric([state], count)
        yield standing
        yield _gauge("elasticdl_ring_generation", "The number of the last plan.", value=status.generation)
        plans = _counter(
            "elasticdl_ring_plans", "Plans of rings, by what made them necessary.", labels=["cause"]
        )
        for cause in ReformCause:
            plans.add_metric([cause.value], self.counts.plans[cause.value])
        yield plans
        words = "Pauses of training for a re-form, by cause and phase; the phase all is the whole pause."
        known = [([cause, phase], seen) for (cause, phase), seen in sorted(self.counts.reforms.items())]
        yield _histogram("elasticdl_reform_seconds", words, ["cause", "phase"], known)
        compute = _gauge(
            "elasticdl_compute_seconds", "A rank's own part of a step, before the sum.", ["rank"]
        )
        score = _gauge(
            "elasticdl_straggler_score",
            "1: as quick as the best rank, or as its own best.",
            ["rank", "beside"],
        )
        for worker in members:
            compute.add_metric([str(worker.rank)], worker.compute_seconds)
            score.add_metric([str(worker.rank), "best_rank"], worker.best_rank_score)
            score.add_metric([str(worker.rank), "own_best"], worker.own_best_score)
        yield compute
        yield score
        yield _counter("elasticdl_stragglers", "Workers that were slow for long.", self.counts.stragglers)

    def _workers(self) -> Iterator[Metric]:
        counts = self.counts
        yield _counter("elasticdl_worker_launches", "Workers that were started.", counts.launches)
        for name, words, seen in (
            ("elasticdl_worker_exits", "Workers that ended before the job, by cause.", counts.exits),
            (
                "elasticdl_worker_relaunches",
                "Workers started in the place of others, by cause.",
                counts.relaunches,
            ),
        ):
            family = _counter(name, words, labels=["cause"])
            for cause in Cause:
                family.add_metric([cause.value.replace(" ", "_")], seen[cause.value])
            yield family
        words = "From the launch of a worker to its first word: place, image, process."
        yield _histogram("elasticdl_worker_pending_seconds", words, [], [([], counts.pending)])
        words = "From a worker's first word until it is ready: imports, model, trace, data."
        yield _histogram("elasticdl_worker_startup_seconds", words, [], [([], counts.preparing)])
        yield _counter("elasticdl_anomalies", "What should not happen; please report it.", counts.anomalies)

    def _time(self, status: JobStatus) -> Iterator[Metric]:
        seen = status.goodput
        for name, words, seconds in (
            ("elasticdl_goodput_seconds", "Wall time of the job by what it was spent on.", seen.seconds),
            (
                "elasticdl_worker_goodput_seconds",
                "Worker seconds by what they were spent on.",
                seen.worker_seconds,
            ),
        ):
            family = _counter(name, words, labels=["bucket"])
            for bucket in Bucket:
                family.add_metric([bucket.value], seconds.get(bucket, 0.0))
            yield family
        words = "The productive part of the job's wall time so far."
        yield _gauge("elasticdl_goodput_ratio", words, value=seen.share)
        words = "The productive part of the worker seconds that were wanted so far."
        yield _gauge("elasticdl_worker_goodput_ratio", words, value=seen.worker_share)

    def _kept(self, status: JobStatus) -> Iterator[Metric]:
        words = "For how long a checkpoint was written, in the background."
        yield _histogram("elasticdl_checkpoint_seconds", words, [], [([], self.counts.checkpoints)])
        words = "Checkpoints that could not be written."
        yield _counter("elasticdl_checkpoint_failures", words, self.counts.missing_checkpoints)
        if status.checkpoint is not None:
            age = max(0.0, self._clock.wall() - status.checkpoint.wall)
            yield _gauge("elasticdl_checkpoint_age_seconds", "Since the last checkpoint.", value=age)
            words = "The step of the last checkpoint."
            yield _gauge("elasticdl_checkpoint_step", words, value=status.checkpoint.step)

    def _streams(self) -> Iterator[Metric]:
        traffic = self._traffic()
        yield _gauge("elasticdl_streams_open", "Workers that are connected.", value=traffic.open_streams)
        yield _counter("elasticdl_streams", "Connections of workers so far.", traffic.streams)
        messages = _counter("elasticdl_rpc_messages", "Between master and workers.", labels=["direction"])
        messages.add_metric(["received"], traffic.received)
        messages.add_metric(["sent"], traffic.sent)
        yield messages


def _state(standing: str, draining: bool) -> str:
    return "draining" if draining else standing


def _gauge(
    name: str, words: str, labels: Sequence[str] = (), value: float | None = None
) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, words, value=value, labels=list(labels) if value is None else None)


def _counter(
    name: str, words: str, value: float | None = None, labels: Sequence[str] = ()
) -> CounterMetricFamily:
    """Its sample ends in `_total`."""
    return CounterMetricFamily(name, words, value=value, labels=list(labels) if value is None else None)


def _histogram(
    name: str, words: str, labels: Sequence[str], seen: Sequence[tuple[list[str], Histogram]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, words, labels=list(labels))
    for values, histogram in seen:
        family.add_metric(values, histogram.buckets(), histogram.total)
    return family
