"""Jobs for the page: an event at a time, or a long history with many workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edl_allreduce.core import event_data, events
from edl_allreduce.core.progress import Length
from edl_allreduce.core.status import EventRecord, JobStatus, Tally, WorkerStatus

BEGAN = 1_700_000_000.0


def record(serial: int, event: events.Event, after: float) -> EventRecord:
    """So many seconds after the job began."""
    return EventRecord(serial, BEGAN + after, event.kind, event.text(), event_data.to_data(event))


def history(*told: tuple[float, events.Event]) -> list[EventRecord]:
    return [record(serial, event, after) for serial, (after, event) in enumerate(told, start=1)]


def status(**changes: Any) -> JobStatus:
    """Half way through, on two workers."""
    given: dict[str, Any] = {
        "job_name": "digits", "phase": "Training", "wanted": 2, "minimum": 1, "generation": 3,
        "step": 100, "total_steps": 200, "loss": 0.25, "records_per_second": 500.0, "steps_per_second": 10.0,
        "waiting_for": "", "elapsed": 20.0, "position": 5000, "length": Length(1000, 10, 50),
        "workers": [worker(0), worker(1)], "events": [], "tally": Tally(100, 5000, 10.0),
        "flags": ["--job_name=digits", "--num_workers=2"],
    }  # fmt: skip
    return JobStatus(**{**given, **changes})


def worker(number: int, **changes: Any) -> WorkerStatus:
    given = {"host": "node-1", "standing": "ring", "rank": number, "activity": "computing", "step": 99}
    return WorkerStatus(number, **{**given, **changes})


def long_history(workers: int, count: int) -> Iterator[EventRecord]:
    """Workers that die and are replaced, for so many events."""
    serial, after, generation = 0, 0.0, 1

    def told(event: events.Event) -> EventRecord:
        nonlocal serial
        serial += 1
        return record(serial, event, after)

    ring = list(range(workers))
    for number in ring:
        yield told(events.WorkerLaunched(number))
        yield told(events.WorkerReady(number))
    yield told(events.RingPlanned(generation, tuple(ring), False, "all are ready"))
    while serial < count:
        after += 30.0
        victim = ring.pop(generation % len(ring))
        generation += 1
        yield told(events.WorkerExited(victim, "disrupted", "was ended by SIGKILL"))
        yield told(events.RingPlanned(generation, tuple(ring), True, f"worker {victim} is lost"))
        for number in ring:
            yield told(events.RingReformed(number, generation, len(ring), 0.02, 0.01, 0.03, 0.01, 0.02))
        newcomer = workers + generation
        yield told(events.WorkerLaunched(newcomer))
        after += 10.0
        yield told(events.WorkerReady(newcomer))
        generation += 1
        ring.append(newcomer)
        yield told(events.RingPlanned(generation, tuple(ring), False, f"worker {newcomer} is ready"))
        for number in ring[:-1]:
            yield told(events.RingReformed(number, generation, len(ring), 0.0, 0.01, 0.02, 0.01, 0.02))
