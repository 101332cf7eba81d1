"""A job over time, told from its events: a lane per worker, the size of the ring, each pause with its phases.

The page and the report draw the same timeline. Events are added one by one, and each of them changes a few
parts only, so whoever looks again asks for what changed `since` the last event that he saw. A moment is in
seconds since 1970, as events have it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from edl_allreduce.core import event_data, events
from edl_allreduce.core.goodput import ReformCause, reform_cause
from edl_allreduce.core.status import EventRecord


class Doing(StrEnum):
    """What a worker does for a while. Whoever is gone does nothing, and has no span."""

    STARTING = "starting"
    """Its process or pod begins, imports, builds, traces."""
    READY = "ready"
    """Waits for a ring, or for the first step of its first one."""
    TRAINING = "training"
    """Or working, where work is pulled."""
    PAUSED = "paused"
    """Was in a ring, and waits for the first step of the next one."""
    LEAVING = "leaving"
    """Was asked to leave, and makes its last steps."""


@dataclass(frozen=True)
class Span:
    """A while of one worker; `number` counts those of one worker. `end` is None until it is known."""

    worker_id: int
    number: int
    doing: Doing
    begin: float
    end: float | None = None


@dataclass(frozen=True)
class Lane:
    """One worker from its beginning to its end."""

    worker_id: int
    begin: float
    host: str = ""
    end: float | None = None
    how: str = ""
    """How it ended: exit code, signal, the pod's words, the reason of an eviction."""


@dataclass(frozen=True)
class Phases:
    """Where the pause of one survivor went, in seconds."""

    worker_id: int
    notice: float
    plan: float
    join: float
    sync: float
    first_step: float

    @property
    def seconds(self) -> float:
        return self.notice + self.plan + self.join + self.sync + self.first_step


@dataclass(frozen=True)
class Pause:
    """One re-form of a ring that had survivors; `seconds` is the pause of the slowest of them."""

    generation: int
    planned: float
    cause: ReformCause
    reason: str
    size: int
    """Of the new ring."""
    came: tuple[int, ...] = ()
    went: tuple[int, ...] = ()
    seconds: float = 0.0
    """0 while nobody made a step in the new ring."""
    survivors: tuple[Phases, ...] = ()


@dataclass(frozen=True)
class RingSize:
    """From now on the ring has so many members; 0 when the job is over."""

    moment: float
    generation: int
    size: int


@dataclass(frozen=True)
class Changes:
    """The parts of a timeline that are new or other than before."""

    lanes: tuple[Lane, ...] = ()
    spans: tuple[Span, ...] = ()
    pauses: tuple[Pause, ...] = ()
    ring: tuple[RingSize, ...] = ()


Part = Lane | Span | Pause | RingSize
MOST_PARTS: Final = 50_000
"""That are kept: one re-form of a hundred workers makes about two hundred of them."""
IN_A_RING: Final = frozenset({Doing.TRAINING, Doing.PAUSED, Doing.LEAVING})


@dataclass
class Timeline:
    """Grows with every event."""

    most: int = MOST_PARTS
    _parts: dict[tuple[object, ...], tuple[int, Part]] = field(default_factory=dict)
    """By what they are called, with the event that changed them last; those that changed last stand last."""
    _open: dict[int, Span] = field(default_factory=dict)
    """What each living worker does now."""
    _plan: events.RingPlanned | None = None
    _serial: int = 0

    def since(self, serial: int) -> Changes:
        """What changed after the event of this number; everything after 0."""
        found: list[Part] = []
        for changed, part in reversed(self._parts.values()):
            if changed <= serial:
                break
            found.append(part)
        found.reverse()
        return Changes(
            tuple(part for part in found if isinstance(part, Lane)),
            tuple(part for part in found if isinstance(part, Span)),
            tuple(part for part in found if isinstance(part, Pause)),
            tuple(part for part in found if isinstance(part, RingSize)),
        )

    def add(self, record: EventRecord) -> None:
        """The next event, in the order of their numbers."""
        event = event_data.from_data(record.event)
        self._serial = record.serial
        if event is not None:
            self._take(event, record.wall)

    def _take(self, event: events.Event, now: float) -> None:
        match event:
            case events.WorkerLaunched(worker_id):
                self._begin(worker_id, now)
            case events.WorkerConnected(worker_id, host):
                self._begin(worker_id, now, host)
            case events.WorkerReady(worker_id):
                self._turn(worker_id, Doing.READY, now, only=Doing.STARTING)
            case events.WorkerDrains(worker_id):
                self._turn(worker_id, Doing.LEAVING, now)
            case events.WorkerEvicted(worker_id, cause, reason):
                self._gone(worker_id, now, f"evicted ({cause}): {reason}")
            case events.WorkerExited(worker_id, _, how):
                self._gone(worker_id, now, how)
            case events.RingPlanned():
                self._planned(event, now)
            case events.RingAborted(_, workers):
                for worker_id in workers:
                    self._turn(worker_id, Doing.PAUSED, now, only=Doing.TRAINING)
            case events.RingReformed():
                self._reformed(event, now)
            case events.TasksMade():
                for worker_id in list(self._open):
                    self._turn(worker_id, Doing.TRAINING, now, only=Doing.READY)
            case events.JobEnded() | events.MasterReturned():
                over = isinstance(event, events.JobEnded)
                for worker_id in list(self._open):
                    self._gone(worker_id, now, "the job was over" if over else "its master was lost")
                self._plan = None
                self._keep(("ring", self._serial), RingSize(now, 0, 0))

    # ------------------------------------------------------------------------------------------ workers

    def _begin(self, worker_id: int, now: float, host: str = "") -> None:
        lane = self._lane(worker_id)
        if lane is None or (lane.end is not None and worker_id not in self._open):
            lane = Lane(worker_id, now) if lane is None else replace(lane, end=None, how="")
            self._put(Span(worker_id, self._next_number(worker_id), Doing.STARTING, now))
        self._keep(("lane", worker_id), replace(lane, host=host or lane.host))

    def _turn(self, worker_id: int, doing: Doing, now: float, only: Doing | None = None) -> None:
        """From now on it does something else, if it did `only` that before."""
        before = self._open.get(worker_id)
        if before is None or before.doing is doing or (only is not None and before.doing is not only):
            return
        self._put(replace(before, end=max(before.begin, now)))
        self._put(Span(worker_id, before.number + 1, doing, max(before.begin, now)))

    def _gone(self, worker_id: int, now: float, how: str) -> None:
        span, lane = self._open.pop(worker_id, None), self._lane(worker_id)
        if span is not None:
            self._keep(("span", worker_id, span.number), replace(span, end=max(span.begin, now)))
        if lane is not None and lane.end is None:
            self._keep(("lane", worker_id), replace(lane, end=now, how=how))

    # --------------------------------------------------------------------------------------------- ring

    def _planned(self, plan: events.RingPlanned, now: float) -> None:
        before, self._plan = self._plan, plan
        self._keep(("ring", self._serial), RingSize(now, plan.generation, len(plan.workers)))
        survivors = set(plan.workers) & {i for i, span in self._open.items() if span.doing in IN_A_RING}
        if before is not None and survivors:
            came = tuple(i for i in plan.workers if i not in before.workers)
            went = tuple(i for i in before.workers if i not in plan.workers)
            cause = reform_cause(before.workers, plan.workers, abort=plan.abort)
            pause = Pause(plan.generation, now, cause, plan.reason, len(plan.workers), came, went)
            self._keep(("pause", plan.generation), pause)
        for worker_id in plan.workers:
            if not survivors:  # nobody is there who could tell of its first step
                self._turn(worker_id, Doing.TRAINING, now, only=Doing.READY)
            elif plan.abort:
                self._turn(worker_id, Doing.PAUSED, now, only=Doing.TRAINING)

    def _reformed(self, told: events.RingReformed, now: float) -> None:
        self._paused(told.worker_id, now - told.pause, now)
        for worker_id in self._plan.workers if self._plan is not None else ():
            self._turn(worker_id, Doing.TRAINING, now, only=Doing.READY)
        pause = self._pause(told.generation)
        if pause is None:
            return
        parts = (told.notice, told.plan, told.join, told.sync, told.first_step)
        own = Phases(told.worker_id, *parts)
        others = tuple(one for one in pause.survivors if one.worker_id != told.worker_id)
        survivors = (*others, own)
        slowest = max(one.seconds for one in survivors)
        self._keep(("pause", told.generation), replace(pause, seconds=slowest, survivors=survivors))

    def _paused(self, worker_id: int, begin: float, end: float) -> None:
        """It says itself for how long; a plan or an abort told only about when it began."""
        now = self._open.get(worker_id)
        if now is None or now.doing not in (Doing.TRAINING, Doing.PAUSED):
            return
        if now.doing is Doing.PAUSED:
            before = self._span(worker_id, now.number - 1)
            if before is not None and before.doing is Doing.TRAINING:
                begin = max(before.begin, begin)
                self._put(replace(before, end=begin))
                now = replace(now, begin=begin)
        else:
            begin = max(now.begin, begin)
            self._put(replace(now, end=begin))
            now = Span(worker_id, now.number + 1, Doing.PAUSED, begin)
        self._put(replace(now, end=max(now.begin, end)))
        self._put(Span(worker_id, now.number + 1, Doing.TRAINING, max(now.begin, end)))

    # -------------------------------------------------------------------------------------------- parts

    def _keep(self, name: tuple[object, ...], part: Part) -> None:
        self._parts.pop(name, None)
        self._parts[name] = (self._serial, part)
        for _ in range(len(self._parts) - self.most):
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """What a living worker does, and that it lives, is known as long as it lives."""
        name = next(iter(self._parts))
        part = self._parts.pop(name)[1]
        living = isinstance(part, Lane | Span) and part.end is None and part.worker_id in self._open
        if living:
            self._parts[name] = (self._serial, part)

    def _put(self, span: Span) -> None:
        self._keep(("span", span.worker_id, span.number), span)
        if span.end is None:
            self._open[span.worker_id] = span

    def _lane(self, worker_id: int) -> Lane | None:
        found = self._parts.get(("lane", worker_id), (0, None))[1]
        return found if isinstance(found, Lane) else None

    def _span(self, worker_id: int, number: int) -> Span | None:
        found = self._parts.get(("span", worker_id, number), (0, None))[1]
        return found if isinstance(found, Span) else None

    def _pause(self, generation: int) -> Pause | None:
        found = self._parts.get(("pause", generation), (0, None))[1]
        return found if isinstance(found, Pause) else None

    def _next_number(self, worker_id: int) -> int:
        number = 0
        while self._span(worker_id, number) is not None:
            number += 1
        return number


def timeline(history: Iterable[EventRecord]) -> Timeline:
    """Of everything that happened."""
    made = Timeline()
    for record in history:
        made.add(record)
    return made
