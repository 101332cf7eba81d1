"""What happens to a job, where users of Kubernetes look: Events of its master's pod, and a short state on it.

`kubectl describe pod`, `kubectl get events` and `kubectl get pods -L elasticdl-phase,elasticdl-ring` show
them. Events are an extra: they are few (what several workers do at once is one, and there is a limit for
all), and a cluster that refuses them costs one line in the log.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from edl_allreduce import outside
from edl_allreduce.clock import SYSTEM, Clock
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.core import event_data, events
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.digest import digest
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.errors import ApiRefused, ClusterError
from edl_allreduce.logs import Harmless

log = logging.getLogger(__name__)

NORMAL, WARNING = "Normal", "Warning"
COMPONENT: Final = "elasticdl-master"
STATE_ANNOTATION: Final = "elasticdl.org/state"
PHASE_LABEL: Final = "elasticdl-phase"
RING_LABEL: Final = "elasticdl-ring"

GATHER_SECONDS: Final = 1.0
"""What happens within it is told together."""
STATE_SECONDS: Final = 5.0
"""Between two changes of the state on the pod."""
BURST: Final = 25
"""Events at once; then one in `REFILL_SECONDS`, as Kubernetes' own components do it."""
REFILL_SECONDS: Final = 12.0
MOST_PENDING: Final = 100
"""Of those that wait for their turn; the oldest are left out first."""
MOST_CHARACTERS: Final = 1000
"""Of a message; Kubernetes takes 1024 bytes."""
KNOWN: Final = 200
"""Events whose repetitions are counted instead of told again."""


@dataclass(frozen=True)
class Announcement:
    """One Event of Kubernetes."""

    reason: str
    message: str
    kind: str = NORMAL
    wall: float = 0.0
    """Of the first that it is about."""


_EXITS: Final = {Cause.DISRUPTED: ("WorkerDisrupted", WARNING), Cause.DRAINED: ("WorkerDrained", NORMAL)}
_REASONS: Final[dict[type, tuple[str, str]]] = {
    events.WorkerLaunched: ("WorkerLaunched", NORMAL),
    events.WorkerEvicted: ("WorkerEvicted", WARNING),
    events.WorkerFailed: ("WorkerFailed", WARNING),
    events.WorkerSlow: ("WorkerSlow", WARNING),
    events.RingReformed: ("RingReformed", NORMAL),
    events.StepsSetBack: ("StepsSetBack", WARNING),
    events.WorkersShort: ("WorkersShort", WARNING),
    events.CheckpointWritten: ("Checkpoint", NORMAL),
    events.CheckpointMissing: ("CheckpointFailed", WARNING),
    events.ModelEvaluated: ("Evaluated", NORMAL),
    events.JobWaits: ("Waiting", WARNING),
    events.JobScaled: ("Scaled", NORMAL),
    events.JobStops: ("Stopping", NORMAL),
    events.TimeAccounted: ("Goodput", NORMAL),
    events.Anomaly: ("Anomaly", WARNING),
}


def reason_of(event: events.Event) -> tuple[str, str] | None:
    """In one word for machines, and whether it is a warning; None for what only the job's own log tells."""
    match event:
        case events.WorkerExited(cause=cause):
            return _EXITS.get(Cause(cause), ("WorkerDied", WARNING))
        case events.RingPlanned(cause=cause):
            return ("WorkersJoined", NORMAL) if cause in ("first", "growth") else None
        case events.JobEnded(phase=phase):
            return phase, WARNING if phase == Phase.FAILED.value else NORMAL
    return _REASONS.get(type(event))


def announcements(records: Sequence[EventRecord]) -> list[Announcement]:
    """What is to be told of these, in order: neighbours that tell the same of several workers are one."""
    found = []
    for line in digest([r for r in records if (e := event_data.from_data(r.event)) and reason_of(e)]):
        event = event_data.from_data(line.event)
        told = reason_of(event) if event is not None else None
        if told is not None:
            found.append(Announcement(told[0], outside.line(line.text, MOST_CHARACTERS), told[1], line.wall))
    return found


def manifest(told: Announcement, subject: Object, count: int, now: float) -> Object:
    """The Event, about this object."""
    meta = subject["metadata"]
    digest_of = hashlib.sha256(f"{told.reason}\0{told.message}\0{told.wall}".encode()).hexdigest()[:16]
    about = {key: meta[key] for key in ("name", "namespace", "uid") if key in meta}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{digest_of}", "namespace": meta["namespace"]},
        "involvedObject": {"apiVersion": subject["apiVersion"], "kind": subject["kind"], **about},
        "reason": told.reason,
        "message": told.message,
        "type": told.kind,
        "count": count,
        "firstTimestamp": _stamp(told.wall),
        "lastTimestamp": _stamp(now),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": "",
    }


def _stamp(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ------------------------------------------------------------------------------------------------- the limit


@dataclass(frozen=True)
class Allowance:
    """How many Events may be sent now."""

    tokens: float = BURST
    at: float = 0.0

    def refilled(self, now: float) -> Allowance:
        gained = max(0.0, now - self.at) / REFILL_SECONDS if self.at else 0.0
        return Allowance(min(BURST, self.tokens + gained), now)


def allowed(
    pending: Sequence[Announcement], allowance: Allowance
) -> tuple[list[Announcement], list[Announcement], Allowance]:
    """Which of them are sent now, and which wait. Ends of jobs and warnings go first when not all can go."""
    room = int(allowance.tokens)
    if len(pending) <= room:
        return list(pending), [], replace(allowance, tokens=allowance.tokens - len(pending))
    ranked = sorted(pending, key=lambda told: (not _is_an_end(told), told.kind != WARNING))
    chosen = {id(told) for told in ranked[:room]}
    now = [told for told in pending if id(told) in chosen]
    later = [told for told in pending if id(told) not in chosen][-MOST_PENDING:]
    return now, later, replace(allowance, tokens=allowance.tokens - room)


def _is_an_end(told: Announcement) -> bool:
    return told.reason in (Phase.SUCCEEDED.value, Phase.FAILED.value, Phase.STOPPED.value)


# ----------------------------------------------------------------------------------------------- the state


def state_of(status: JobStatus) -> Object:
    """Labels and an annotation for the master's pod: what `kubectl get` and `kubectl describe` should say."""
    ring = sum(worker.rank >= 0 for worker in status.workers)
    total = status.total_steps or "?"
    words = [f"{status.phase}: {status.counts} {status.step} of {total}"]
    if status.counts == "step":
        words.append(f"ring {ring} of {status.wanted or 'any'}, generation {status.generation}")
    if status.loss == status.loss:
        words.append(f"loss {status.loss:.4g}")
    if status.goodput.wall > 0:
        words.append(f"goodput {100 * status.goodput.share:.0f} %")
    if status.waiting_for:
        words.append(f"waiting: {outside.line(status.waiting_for)}")
    return {
        "metadata": {
            "labels": {PHASE_LABEL: status.phase, RING_LABEL: f"{ring}-of-{status.wanted or 'any'}"},
            "annotations": {STATE_ANNOTATION: "; ".join(words)},
        }
    }


# ------------------------------------------------------------------------------------------------- the hands


@dataclass
class Recorder:
    """Sends them. Belongs to the master's loop; calls run in threads. `subjects`: what the Events are about,
    the master's pod first."""

    api: Api
    subjects: Sequence[Object]
    status: Callable[[], JobStatus]
    clock: Clock = SYSTEM
    _heard: deque[EventRecord] = field(default_factory=deque)
    _pending: list[Announcement] = field(default_factory=list)
    _allowance: Allowance = field(default_factory=Allowance)
    _sent: dict[tuple[str, str], tuple[Announcement, int]] = field(default_factory=dict)
    _shown: Object = field(default_factory=dict)
    _shown_at: float = float("-inf")
    _refused: bool = False
    _task: asyncio.Task[None] | None = None
    _harmless: Harmless = field(default_factory=lambda: Harmless(log, "Events of the job could not be sent"))

    def tell(self, record: EventRecord) -> None:
        self._heard.append(record)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """The last ones, and the last state."""
        if self._task is not None:
            self._task.cancel()
        await self.flush(last=True)

    async def _run(self) -> None:
        while True:
            await self.clock.rest(GATHER_SECONDS)
            with self._harmless:
                await self.flush()

    async def flush(self, *, last: bool = False) -> None:
        """Send what may be sent now."""
        heard = [self._heard.popleft() for _ in range(len(self._heard))]
        self._pending += announcements(heard)
        now = self.clock.now()
        chosen, self._pending, self._allowance = allowed(self._pending, self._allowance.refilled(now))
        if last:  # nobody comes after it who could tell the end
            chosen += [told for told in self._pending if _is_an_end(told)]
            self._pending = [told for told in self._pending if not _is_an_end(told)]
        for told in chosen:
            await self._send(told)
        if last or now - self._shown_at >= STATE_SECONDS:
            await self._show(now)

    async def _send(self, told: Announcement) -> None:
        if self._refused:
            return
        key = (told.reason, told.message)
        first, count = self._sent.get(key, (told, 0))
        self._sent[key] = (first, count + 1)
        for surplus in list(self._sent)[:-KNOWN]:
            del self._sent[surplus]
        for subject in self.subjects:
            body = manifest(first, subject, count + 1, self.clock.wall())
            await self._try(body, again=count > 0)

    async def _try(self, body: Object, *, again: bool) -> None:
        meta = body["metadata"]
        path = names.path("events", meta["namespace"])
        try:
            if again:
                change = {"count": body["count"], "lastTimestamp": body["lastTimestamp"]}
                await asyncio.to_thread(self.api.patch, f"{path}/{meta['name']}", change)
            else:
                await asyncio.to_thread(self.api.create, path, body)
        except ApiRefused as error:
            if error.status == 403:
                self._refused = True
                log.warning("no Events are written: %s (manifests/elasticdl-rbac.yaml allows it)", error)
            elif again and error.status == 404:  # Kubernetes forgets Events after an hour
                await self._try(body, again=False)
            else:  # there already
                log.debug("the Event %s was refused: %s", meta["name"], error)
        except ClusterError as error:
            log.debug("the Event %s is lost: %s", meta["name"], error)

    async def _show(self, now: float) -> None:
        state = state_of(self.status())
        if state == self._shown:
            return
        meta = self.subjects[0]["metadata"]
        try:
            path = names.path("pods", meta["namespace"], meta["name"])
            await asyncio.to_thread(self.api.patch, path, state)
        except ClusterError as error:
            log.debug("the state could not be shown on the pod: %s", error)
        self._shown, self._shown_at = state, now
