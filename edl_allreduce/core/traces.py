"""Re-forms as traces: one for each, with a span for every survivor, and in it one for each of its phases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from edl_allreduce.core import event_data, events
from edl_allreduce.core.status import EventRecord

PHASES = ("notice", "plan", "join", "sync", "first_step")


@dataclass(frozen=True)
class Span:
    """A time of the calendar with a name; `parts` are within it."""

    name: str
    began: float
    ended: float
    about: dict[str, str | int | float] = field(default_factory=dict)
    parts: tuple[Span, ...] = ()


@dataclass(frozen=True)
class _Open:
    """A re-form of which not everybody has told yet."""

    planned: events.RingPlanned
    awaited: frozenset[int]
    workers: tuple[Span, ...] = ()


@dataclass
class Traces:
    """Follows a history."""

    _seated: tuple[int, ...] = ()
    _open: _Open | None = None

    def take(self, record: EventRecord) -> Iterator[Span]:
        """The re-forms that are known as a whole now."""
        event = event_data.from_data(record.event)
        match event:
            case events.RingPlanned():
                yield from self._close()
                survivors = frozenset(self._seated) & frozenset(event.workers)
                self._open = _Open(event, survivors) if survivors else None
                self._seated = event.workers
            case events.RingReformed() if self._is_of_it(event):
                assert self._open is not None
                workers = (*self._open.workers, _worker(event, record.wall))
                awaited = self._open.awaited - {event.worker_id}
                self._open = _Open(self._open.planned, awaited, workers)
                if not awaited:
                    yield from self._close()
            case events.JobEnded():
                yield from self._close()

    def _is_of_it(self, event: events.RingReformed) -> bool:
        return self._open is not None and self._open.planned.generation == event.generation

    def _close(self) -> Iterator[Span]:
        """Whoever has not told by now never will: another plan came, or the end."""
        known, self._open = self._open, None
        if known is None or not known.workers:
            return
        plan = known.planned
        yield Span(
            f"re-form {plan.generation}",
            min(span.began for span in known.workers),
            max(span.ended for span in known.workers),
            {
                "elasticdl.generation": plan.generation,
                "elasticdl.cause": plan.cause,
                "elasticdl.reason": plan.reason,
                "elasticdl.ring_size": len(plan.workers),
            },
            known.workers,
        )


def _worker(event: events.RingReformed, ended: float) -> Span:
    """Its phases follow each other without a gap, and the last one ended just now."""
    began = at = ended - event.pause
    parts = []
    for phase in PHASES:
        seconds = float(getattr(event, phase))
        parts.append(Span(phase.replace("_", " "), at, at + seconds))
        at += seconds
    about: dict[str, str | int | float] = {"elasticdl.worker": event.worker_id}
    return Span(f"worker {event.worker_id}", began, ended, about, tuple(parts))
