"""A history for people: what several workers do at once is one line, and nothing is said twice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl_allreduce.core import event_data, events
from edl_allreduce.core.status import EventRecord

BARS = "▁▂▃▄▅▆▇█"
MOST_POINTS = 60
STEEP = 20
"""Of a curve: with so many times between its ends it is drawn on a logarithmic scale."""


@dataclass(frozen=True)
class Line:
    """One line of a digest."""

    wall: float
    """Of the first that it is about."""
    kind: str
    text: str
    event: dict[str, Any] = field(default_factory=dict)
    """The facts of the first."""


def digest(records: Iterable[EventRecord]) -> list[Line]:
    """In order. Neighbours that tell the same of several workers become one line."""
    lines: list[Line] = []
    group: list[EventRecord] = []
    for record in records:
        if group and _alike(group[-1], record):
            group.append(record)
            continue
        if group:
            lines.append(_together(group))
        group = [record]
    if group:
        lines.append(_together(group))
    return lines


def _alike(one: EventRecord, other: EventRecord) -> bool:
    return one.kind == other.kind and _theme(one) == _theme(other)


def _theme(record: EventRecord) -> tuple[object, ...]:
    """What must be the same for two to be told together: all but the worker."""
    facts = record.event
    kind = facts.get(event_data.TYPE, "")
    if kind == events.RingReformed.__name__:
        return kind, facts.get("generation")
    if kind == events.WorkerConnected.__name__:
        return (kind,)
    if "worker_id" in facts:
        return kind, *(str(value) for name, value in sorted(facts.items()) if name != "worker_id")
    return kind, record.text


def _together(group: Sequence[EventRecord]) -> Line:
    first = group[0]
    if len(group) == 1:
        return Line(first.wall, first.kind, first.text, first.event)
    ids = [record.event["worker_id"] for record in group if "worker_id" in record.event]
    if len(ids) != len(group) or events.NOBODY in ids:
        return Line(first.wall, first.kind, f"{first.text} ({len(group)} times)", first.event)
    workers = f"workers {', '.join(str(i) for i in sorted(set(ids)))}"
    last = event_data.from_data(max(group, key=_pause).event)
    match last:
        case events.RingReformed():
            text = f"{workers} go on in generation {last.generation} after {last.pause:.3f} s"
        case events.WorkerLaunched():
            text = f"{workers} start"
        case events.WorkerConnected():
            text = f"{workers} connected"
        case events.WorkerReady():
            text = f"{workers} are ready"
        case events.WorkerDrains():
            text = f"{workers} drain"
        case _:
            said = first.text.removeprefix(f"worker {ids[0]}").lstrip(": ")
            text = f"{workers}: {said}"
    return Line(first.wall, first.kind, text, first.event)


def _pause(record: EventRecord) -> float:
    event = event_data.from_data(record.event)
    return event.pause if isinstance(event, events.RingReformed) else 0.0


# -------------------------------------------------------------------------------------------- small curves


@dataclass(frozen=True)
class Curve:
    """The values of a job's steps so far, in few points: of too many, every second is forgotten."""

    points: tuple[float, ...] = ()
    next_step: int = 0
    stride: int = 1

    def add(self, step: int, value: float) -> Curve:
        """Steps that come too early are left out; a job that was set back goes on where it is."""
        if not math.isfinite(value) or self.next_step - self.stride < step < self.next_step:
            return self
        points, stride = (*self.points, value), self.stride
        if len(points) > MOST_POINTS:
            points, stride = points[::2], stride * 2
        return Curve(points, step + stride, stride)


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve in one row of characters, at most so wide, the newest value last."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2 or width < 2:
        return ""
    count = min(width, len(known))
    shown = [known[round(number * (len(known) - 1) / (count - 1))] for number in range(count)]
    if min(shown) > 0 and max(shown) > STEEP * min(shown):  # else all but the first would lie flat
        shown = [math.log(value) for value in shown]
    low, high = min(shown), max(shown)
    if high == low:
        return BARS[0] * count
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in shown)
