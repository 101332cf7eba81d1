"""A job's status, built for a test."""

from __future__ import annotations

from typing import Any

from edl_allreduce.core.progress import Length
from edl_allreduce.core.status import EventRecord, JobStatus, Tally, WorkerStatus

LENGTH = Length(records=1000, epochs=10, batch=50)


def status(**changes: Any) -> JobStatus:
    """Half way through 200 steps, on two workers."""
    given: dict[str, Any] = {
        "job_name": "digits", "phase": "Training", "wanted": 2, "minimum": 1, "generation": 3,
        "step": 100, "total_steps": 200, "loss": 0.25, "records_per_second": 500.0, "steps_per_second": 10.0,
        "waiting_for": "", "elapsed": 20.0, "position": 5000, "length": LENGTH,
        "workers": [worker(0), worker(1)], "events": [EventRecord(1, 0.0, "plan", "because")],
        "tally": Tally(steps=100, records=5000, trained=10.0),
    }  # fmt: skip
    return JobStatus(**{**given, **changes})


def worker(number: int, **changes: Any) -> WorkerStatus:
    given = {"host": "127.0.0.1", "standing": "ring", "rank": number, "activity": "computing", "step": 99}
    return WorkerStatus(number, **{**given, **changes})
