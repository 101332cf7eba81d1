"""The master's shell: a mailbox around the pure machine of a job, and hands for what it wants done.

One asyncio loop owns everything, so nothing is locked. Whatever happens becomes an event in the mailbox; the
machine answers with effects, and `_perform` carries them out. It decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edl_allreduce import outside
from edl_allreduce.clock import SYSTEM, Clock
from edl_allreduce.cluster.base import Cluster, Found
from edl_allreduce.core import event_data, events, protocol, rendezvous
from edl_allreduce.core.job import inbox, inheritance, keeping, machine, queries, ring, state
from edl_allreduce.core.job.asleep import TICK_SECONDS
from edl_allreduce.core.job.inheritance import Inheritance
from edl_allreduce.core.job.lifecycle import FINAL
from edl_allreduce.core.job.state import JobOptions, JobState, Result
from edl_allreduce.core.parts import Parts
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.errors import UsageError
from edl_allreduce.logs import Harmless

log = logging.getLogger(__name__)

LAST_EVENTS = 200
"""Events that a status carries, for somebody who comes late; the whole history is in a file or a log."""
HANG_UP = None
"""In an outbox: nothing more is said over this stream."""

CERTAIN = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Why a worker cannot be started, when trying again would not help."""


@dataclass(frozen=True)
class Traffic:
    """Streams of workers, and messages over them."""

    open_streams: int
    streams: int
    """That were ever opened."""
    received: int
    sent: int


class JobShell:
    """One job: its machine, the streams of its workers, the cluster that runs them."""

    def __init__(
        self,
        options: JobOptions,
        cluster: Cluster,
        on_event: Callable[[EventRecord], None] = lambda event: None,
        *,
        clock: Clock = SYSTEM,
        last_serial: int = 0,
        known: Sequence[EventRecord] = (),
    ) -> None:
        """`last_serial`, `known`: of the events that an earlier master of this job told."""
        self._clock = clock
        self._cluster = cluster
        self._on_event = on_event
        self._harmless = Harmless(log, "somebody who is told of the job failed")
        self.state: JobState = state.begin(replace(options, head_start=cluster.head_start), clock.now())
        self._mailbox: deque[inbox.Event] = deque()
        self._busy = False
        self._broken = False
        self._outboxes: dict[int, asyncio.Queue[protocol.FromMaster | None]] = {}
        self._links = 0
        self._messages = [0, 0]
        self._parts = Parts()
        self._events: list[EventRecord] = list(known[-LAST_EVENTS:])
        self._serial = last_serial
        self._over = asyncio.Event()
        self._errands: set[asyncio.Task[None]] = set()

    async def run(self) -> Result:
        """Until the job is over and no worker is left."""
        helpers = [asyncio.create_task(self._watch_cluster()), asyncio.create_task(self._tick())]
        over = asyncio.create_task(self._over.wait())
        try:
            done, _ = await asyncio.wait([*helpers, over], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a bug in a helper must not look like a job that waits
        finally:
            for task in [*helpers, over]:
                task.cancel()
            await self._cluster.close()
        return queries.result(self.state)

    # ----------------------------------------------------------------------------------- what people want

    def inherit(self, left: Inheritance, living: Sequence[int]) -> None:
        """Go on with the sums of an earlier master of this job; call before `adopt` and `run`."""
        self.deliver(inbox.Inherit(left, tuple(living), self._clock.wall()))

    def leave(self) -> Inheritance:
        """What the next master should know."""
        return inheritance.leave(self.state, self._clock.now(), self._clock.wall())

    @property
    def last_serial(self) -> int:
        """Of the events so far."""
        return self._serial

    def adopt(self, found: Found, wanted: int) -> None:
        """Take over the workers of an earlier master of this job; call before `run`."""
        self.deliver(inbox.Adopt(found.living, found.running, found.next_id, wanted))

    def stop(self, reason: str) -> None:
        """Stop at the next step boundary."""
        self.deliver(inbox.Stop(reason))

    def scale(self, count: int, leaving: tuple[int, ...] = ()) -> None:
        """Change the number of workers; `leaving` go first when they are to be fewer."""
        refusal = keeping.refusal_to_scale(self.state, count)
        if refusal:
            raise UsageError(refusal)
        self.deliver(inbox.Scale(count, leaving))

    def drain(self, worker_id: int) -> None:
        """Let one worker leave at a step boundary; another one takes its place."""
        refusal = keeping.refusal_to_drain(self.state, worker_id)
        if refusal:
            raise UsageError(refusal)
        self.deliver(inbox.Drain(worker_id))

    def kill_all(self) -> None:
        """End at once, without a result (Ctrl-C twice)."""
        self.deliver(inbox.KillAll())

    def returned(self) -> None:
        """It goes on after an earlier master whose workers are gone; call before `run`."""
        self._tell(events.MasterReturned(), quiet=False)

    def note(self, kind: protocol.NoteKind, text: str) -> None:
        """Something that people should know."""
        self.deliver(inbox.Note(kind, text))

    async def answer(self, command: protocol.Command) -> JobStatus:
        match command:
            case protocol.Scale(count):
                self.scale(count)
            case protocol.StopJob(reason):
                self.stop(reason)
            case protocol.DrainWorker(worker_id):
                self.drain(worker_id)
        return self.status()

    def status(self) -> JobStatus:
        """The job as it is now."""
        facts = {i: self._cluster.facts(i) for i in ring.workers_known(self.state)}
        seen = queries.status(self.state, self._clock.now(), self._clock.wall(), facts)
        return replace(seen, events=self._events)

    @property
    def traffic(self) -> Traffic:
        """What went over the streams so far."""
        return Traffic(len(self._outboxes), self._links, *self._messages)

    @property
    def over(self) -> bool:
        return self.state.phase in FINAL

    # ------------------------------------------------------------------------------------------- mailbox

    def deliver(self, event: inbox.Event) -> None:
        """Everything that happens comes through here, one after the other."""
        self._mailbox.append(event)
        if self._busy:  # an effect of the event before it; that one is finished first
            return
        self._busy = True
        try:
            while self._mailbox and not self._broken:
                self.state, effects = machine.handle(self.state, self._mailbox.popleft(), self._clock.now())
                for effect in effects:
                    self._perform(effect)
        except Exception as error:  # noqa: BLE001  a bug must end the job, and not look like one that waits
            self._break(error)
        finally:
            self._busy = False

    def _break(self, error: Exception) -> None:
        log.critical("a bug in the master ends the job", exc_info=error)
        self._broken = True
        why = f"a bug in the master: {type(error).__name__}: {error} (its log has the traceback)"
        self.state = machine.broken(self.state, why)
        for outbox in self._outboxes.values():
            outbox.put_nowait(protocol.Release())
        self._over.set()

    def _perform(self, effect: inbox.Effect) -> None:
        match effect:
            case inbox.Send(link, message):
                self._post(link, message)
            case inbox.HangUp(link):
                self._post(link, HANG_UP)
            case inbox.Launch(worker_id):
                self._later(self._launch(worker_id))
            case inbox.Terminate(worker_id):
                self._later(self._cluster.terminate(worker_id))
            case inbox.Kill(worker_id):
                self._later(self._cluster.kill(worker_id))
            case inbox.ReadLog(worker_id):
                self._later(self._read_log(worker_id))
            case inbox.Tell(event, quiet):
                self._tell(event, quiet=quiet)
            case inbox.Over():
                self._over.set()

    def _post(self, link: int, message: protocol.FromMaster | None) -> None:
        outbox = self._outboxes.get(link)
        if outbox is not None:  # otherwise it hung up a moment ago, and the machine will hear of it
            self._messages[1] += 1
            outbox.put_nowait(message)

    # -------------------------------------------------------------------------------------------- streams

    async def attend(
        self, requests: AsyncIterator[protocol.FromWorker], address: str
    ) -> AsyncIterator[protocol.FromMaster]:
        """One worker's stream, from hello to the end of its process."""
        hello = await anext(requests, None)
        if not isinstance(hello, protocol.Hello):
            log.debug("%s did not say hello", outside.name(address))
            return
        self._links += 1
        link, uid = self._links, hello.seat.uid
        outbox: asyncio.Queue[protocol.FromMaster | None] = asyncio.Queue()
        self._outboxes[link] = outbox
        reader: asyncio.Task[None] | None = None
        try:
            self.deliver(inbox.Connected(hello, link))
            peer = self.state.peers.get(uid)
            if peer is not None and peer.link == link:  # not refused
                reader = asyncio.create_task(self._read(uid, link, requests))
            while (message := await outbox.get()) is not HANG_UP:
                yield message
        finally:
            if reader is not None:
                reader.cancel()
            del self._outboxes[link]
            self.deliver(inbox.HungUp(uid, link))

    async def _read(self, uid: str, link: int, requests: AsyncIterator[protocol.FromWorker]) -> None:
        try:
            async for message in requests:
                self._messages[0] += 1
                if isinstance(message, protocol.KvSet | protocol.KvPart) and self._rendezvous(uid, message):
                    continue
                self.deliver(inbox.Heard(uid, link, message))
        finally:
            self._post(link, HANG_UP)

    def _rendezvous(self, uid: str, message: protocol.KvSet | protocol.KvPart) -> bool:
        """Past the mailbox, since all wait for it; False when it is no member's word."""
        plan = ring.plan_of(self.state)
        if plan is None or rendezvous.is_stale(plan, message):
            return True
        if rendezvous.refusal(plan, uid, message):
            return False
        if not self._parts.may_speak(plan.generation, uid):
            log.debug("worker %s says more than a rendezvous needs", self.state.ids.get(uid))
            return True
        match message:
            case protocol.KvSet(_, key, value):
                self._pass_on(plan, key, value)
            case protocol.KvPart(generation, key, number, of, part):
                whole = self._parts.add(generation, key, number, of, part)
                if whole is not None:
                    self._pass_on(plan, key, whole)
        return True

    def _pass_on(self, plan: protocol.Plan, key: str, value: bytes) -> None:
        for seat in plan.members:
            peer = self.state.peers.get(seat.uid)
            if peer is not None:
                self._post(peer.link, protocol.KvEntry(plan.generation, key, value))

    # ------------------------------------------------------------------------------------------- cluster

    async def _launch(self, worker_id: int) -> None:
        try:
            await self._cluster.launch(worker_id)
        except Exception as error:  # noqa: BLE001  whatever it is: the machine must hear that nobody starts
            self.deliver(inbox.LaunchFailed(worker_id, isinstance(error, CERTAIN), str(error)))

    async def _read_log(self, worker_id: int) -> None:
        """The log may be far away, and everybody else goes on meanwhile."""
        words = ""
        try:
            words = await self._cluster.last_words(worker_id)
        finally:
            self.deliver(inbox.LogRead(worker_id, words))

    async def _watch_cluster(self) -> None:
        while True:
            self.deliver(await self._cluster.next_news())

    async def _tick(self) -> None:
        while True:
            self.deliver(inbox.Tick())
            await self._clock.rest(TICK_SECONDS)

    def _later(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the cluster could not do what it was told: %s", error, exc_info=error)

    # ------------------------------------------------------------------------------------------- telling

    def _tell(self, event: events.Event, *, quiet: bool) -> None:
        kind, text = outside.name(event.kind), outside.story(event.text())  # workers and users said it
        if quiet:
            log.debug("%s: %s", kind, text)
            return
        self._serial += 1
        facts = outside.facts(event_data.to_data(event))
        record = EventRecord(self._serial, self._clock.wall(), kind, text, facts)
        self._events = [*self._events[-LAST_EVENTS + 1 :], record]
        level = logging.WARNING if kind in (protocol.NoteKind.WARNING, events.ANOMALY) else logging.INFO
        log.log(level, "%s: %s", kind, text)
        with self._harmless:
            self._on_event(record)
