"""The life of one worker, told from the history of its job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from edl_allreduce.core import event_data, events
from edl_allreduce.core.status import EventRecord


def story(history: Iterable[EventRecord], worker_id: int) -> list[EventRecord]:
    """What happened to this worker, in order: also the ring that went on without it, and the job's end."""
    found: list[EventRecord] = []
    seated = gone = False
    for record in history:
        event = event_data.from_data(record.event)
        if event is None:
            continue
        about = worker_id in events.workers_of(event)
        left_out = isinstance(event, events.RingPlanned) and seated and not about
        over = isinstance(event, events.JobEnded) and bool(found) and not gone
        if about or left_out or over:
            found.append(record)
        if isinstance(event, events.RingPlanned):
            seated = about
        gone = gone or (about and isinstance(event, events.WorkerExited))
    return found


@dataclass(frozen=True)
class Life:
    """One worker in a few numbers. Times are of the calendar; None: it did not come so far."""

    worker_id: int
    began: float
    ready: float | None = None
    rings: int = 0
    """Plans that seated it."""
    pauses: tuple[float, ...] = ()
    """How long it stood still for each re-form, in seconds."""
    ended: float | None = None
    end: str = ""
    """How it ended, and why: of an eviction the reason, otherwise exit code, signal or the pod's words."""


def lives(history: Iterable[EventRecord]) -> list[Life]:
    """Every worker of a job, by number."""
    known: dict[int, Life] = {}
    for record in history:
        event = event_data.from_data(record.event)
        for worker_id in sorted(events.workers_of(event)) if event is not None else ():
            life = known.get(worker_id) or Life(worker_id, record.wall)
            known[worker_id] = _lived(life, event, record.wall)
    return [known[worker_id] for worker_id in sorted(known)]


def _lived(life: Life, event: events.Event | None, wall: float) -> Life:
    match event:
        case events.WorkerReady() if life.ready is None:
            return replace(life, ready=wall)
        case events.RingPlanned():
            return replace(life, rings=life.rings + 1)
        case events.RingReformed():
            return replace(life, pauses=(*life.pauses, event.pause))
        case events.WorkerEvicted(cause=cause, reason=reason):
            return replace(life, end=f"evicted ({cause}): {reason}")
        case events.WorkerExited(how=how):
            return replace(life, ended=wall, end=life.end or how)
    return life
