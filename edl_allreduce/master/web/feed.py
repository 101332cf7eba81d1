"""What the page and the report show, as data: everything at first, then only what changed."""

from __future__ import annotations

import asyncio
import logging
import platform
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from edl_allreduce.clock import SYSTEM, Clock
from edl_allreduce.core.course import DIGEST, Course
from edl_allreduce.core.series import Sample, Series, sample
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.core.timeline import Lane, Pause, RingSize, Span, Timeline
from edl_allreduce.logs import Harmless
from edl_allreduce.version import __version__

log = logging.getLogger(__name__)

MOST_EVENTS: Final = 20_000
"""That are kept for the page; the job's history has more."""
BEAT_SECONDS: Final = 0.5
"""Between two pictures while nothing happens."""
GATHER_SECONDS: Final = 0.1
"""What happens together is told together: a re-form makes an event per worker."""


class Update(msgspec.Struct, frozen=True):
    """What changed since an earlier one: parts replace those of the same name, events and samples add up."""

    serial: int
    """The last event that is in it; ask for what came `since`."""
    wall: float
    """Now, on the master's clock."""
    status: JobStatus
    events: list[EventRecord]
    samples: list[Sample]
    lanes: tuple[Lane, ...]
    spans: tuple[Span, ...]
    pauses: tuple[Pause, ...]
    ring: tuple[RingSize, ...]
    about: dict[str, str] = {}
    """Versions and the like."""


def encode(update: Update) -> bytes:
    """As JSON, which knows no NaN: a loss that is none becomes null."""
    return msgspec.json.encode(update)


class Feed:
    """Follows one job; belongs to the master's loop. `status`: how the job is now. `of_master`: this process
    is its master, so that its versions are the job's."""

    def __init__(
        self,
        status: Callable[[], JobStatus],
        *,
        history: Iterable[EventRecord] = (),
        about: Callable[[], Mapping[str, str]] = dict,
        clock: Clock = SYSTEM,
        of_master: bool = True,
    ) -> None:
        self._versions = versions() if of_master else {}
        self._status = status
        self._about = about
        self._clock = clock
        self._timeline = Timeline()
        self._events: deque[EventRecord] = deque(maxlen=MOST_EVENTS)
        self._series: Series[Sample] = Series()
        self._serial = 0
        self._happened = asyncio.Event()
        self._beat = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._harmless = Harmless(log, "the page of the job could not be brought up to date")
        self.over = False
        for record in history:
            self._keep(record)

    # ------------------------------------------------------------------------------------------- taking

    def tell(self, record: EventRecord) -> None:
        """Something happened to the job."""
        self._keep(record)
        self._happened.set()

    def _keep(self, record: EventRecord) -> None:
        self._events.append(record)
        self._timeline.add(record)
        self._serial = record.serial

    def look(self) -> None:
        """Take a sample if it is time for one, and let those who wait look again."""
        wall = self._clock.wall()
        if self._series.due(wall):
            self._series.add(sample(self._status(), wall))
        beat, self._beat = self._beat, asyncio.Event()
        beat.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._happened.wait(), BEAT_SECONDS)
                await self._clock.rest(GATHER_SECONDS)
            except TimeoutError:
                pass  # nothing happened: only the figures moved
            self._happened.clear()
            with self._harmless:
                self.look()

    def close(self) -> None:
        """The job is over: whoever still looks gets the last picture."""
        if self._task is not None:
            self._task.cancel()
        self.over = True
        self.look()

    # ------------------------------------------------------------------------------------------- giving

    async def next_beat(self) -> None:
        """Until there is something to show."""
        if not self.over:
            await self._beat.wait()

    def update(self, since: int = 0, sampled: float = 0.0) -> Update:
        """What changed after the event `since` and the sample taken at `sampled`; everything by default."""
        if since > self._serial:  # known of another master, whose history is not here
            since = 0
        changes, status = self._timeline.since(since), self._status()
        return Update(
            serial=self._serial,
            wall=self._clock.wall(),
            status=replace(status, events=[], flags=[without_values(flag) for flag in status.flags]),
            events=self._after(since),
            samples=self._series.after(sampled),
            lanes=changes.lanes,
            spans=changes.spans,
            pauses=changes.pauses,
            ring=changes.ring,
            about={**self._versions, **self._about()} if since == 0 else {},
        )

    def _after(self, serial: int) -> list[EventRecord]:
        found: list[EventRecord] = []
        for record in reversed(self._events):
            if record.serial <= serial:
                break
            found.append(record)
        found.reverse()
        return found


def without_values(flag: str) -> str:
    """Variables of the environment may be secrets, and reports are shown to others."""
    return "--envs=(not shown)" if flag.startswith("--envs=") else flag


def in_common(course: Course | None) -> dict[str, str]:
    """What all workers of a job share, as far as it says something to people."""
    return {name: value for name, value in (course or {}).items() if not value.startswith(DIGEST)}


def versions() -> dict[str, str]:
    """Of the master's process; those of the workers come with what they train."""
    return {
        "elasticdl": __version__,
        "Python": platform.python_version(),
        "master": f"{platform.system()} {platform.machine()}, {socket.gethostname()}",
    }
