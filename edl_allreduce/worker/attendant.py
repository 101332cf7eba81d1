"""The worker's end of the master's stream: the thin shell around `core.attendance`.

One thread owns the machine. Whatever happens is put into its inbox: by the stream's reader, by signals, by
the ring's helpers and by the training thread, which waits only where it needs the answer. Questions are
answered from the last snapshot, by whatever thread asks: `vote()` is asked at each step and neither locks
nor waits.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Protocol

import msgspec

from edl_allreduce import clock
from edl_allreduce.contract import LAST_WORDS_SECONDS
from edl_allreduce.core import protocol
from edl_allreduce.core.attendance import events, machine, queries
from edl_allreduce.core.attendance.queries import HERE, NEXT
from edl_allreduce.core.attendance.state import NextOrder, Pulled, State
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.goodput import Bucket
from edl_allreduce.core.health import Activity
from edl_allreduce.core.protocol import NoteKind, Plan, Seat
from edl_allreduce.errors import MasterUnreachable
from edl_allreduce.worker.loop.orders import Progress, StartPoint
from edl_allreduce.worker.ring.base import Ring
from edl_allreduce.worker.ring.store import LoopbackStore
from edl_allreduce.worker.threads import supervised

log = logging.getLogger(__name__)


class Stream(Protocol):
    """One connection to a master. Iterate it for what the master says; it ends when the master is gone."""

    clean: bool
    """Known when it has ended: whether the master ended it in order, after all that was said to it."""

    def send(self, message: protocol.FromWorker) -> None: ...

    def close(self) -> None:
        """Say everything that was sent, then end the stream."""

    def __iter__(self) -> Iterator[protocol.FromMaster]: ...


Dial = Callable[[protocol.Hello], Stream]
"""Opens a connection, with its first message."""


class Attendant:
    """Talks with the master."""

    def __init__(
        self,
        dial: Dial,
        seat: Seat,
        *,
        deadlines: Deadlines,
        master_grace: float,
        address: str = "",
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self.seat = seat
        self.progress = Progress()
        self._dial = dial
        self._address = address
        """For people."""
        self._deadlines = deadlines
        self._end = end
        self._state = State(seat, deadlines, master_grace)
        """The last snapshot. Only the owner's thread replaces it."""
        self._inbox: SimpleQueue[tuple[events.Event, SimpleQueue[State] | None]] = SimpleQueue()
        self._changed = threading.Condition()
        """Told after each event, for those who wait until a snapshot answers their question."""
        self._stream: Stream | None = None
        self._store: LoopbackStore | None = None
        self._ring: Ring | None = None
        self._failing = False
        self._hung_up = threading.Event()

    def start(self) -> None:
        self._put(events.Begun())
        supervised("attend", self._attend, self._failed)

    def watch(self, ring: Ring) -> None:
        """From now on prepare plans with this ring, and break it when it is doomed."""
        self._ring = ring

    @property
    def store(self) -> LoopbackStore:
        """Where Horovod's ring meets; opened when first asked for."""
        if self._store is None:
            self._store = LoopbackStore(self.send, longest_wait=self._deadlines.collective)
        return self._store

    # ---------------------------------------------------------------------- for the training thread

    def ready(self, message: protocol.Ready) -> None:
        self.progress.activity = Activity.IDLE
        self.progress.ledger.close(Bucket.STARTUP, then=Bucket.WAITING)
        self._put(events.IsReady(message))

    def next_order(self, generation: int) -> NextOrder:
        """Wait for what to do after the ring of `generation`. The last word of the master wins."""
        state = self._wait_until(lambda state: queries.pending(state, generation, clock.now()))
        order = queries.pending(state, generation, clock.now())
        assert order is not None
        if isinstance(order, protocol.Export):
            self._ask(events.TookOrder())
        return order

    def next_task(self) -> Pulled:
        """Wait for the next task, or for the end, where work is pulled."""
        task = queries.next_task(self._wait_until(queries.next_task))
        assert task is not None
        self._ask(events.TookTask())
        return task

    def entering(self, plan: Plan, place: StartPoint | None) -> bool:
        """Say that this worker goes into the ring of `plan`; False when that ring is doomed already.

        Whoever holds the model tells newcomers its place.
        """
        written = None if place is None else msgspec.json.encode(place)
        return not queries.doomed(self._ask(events.Entering(plan, written)), plan.generation)

    def joined(self, generation: int, step: int, position: int) -> None:
        """Say that the ring stands and that all agree on the state."""
        self._put(events.HasJoined(generation, step, position))

    def left(self, step: int, reason: str) -> None:
        """Say that this worker is out of its ring before its time and waits."""
        self.progress.activity = Activity.IDLE
        self._beat()  # so that the master knows where the time went until here
        self._put(events.HasLeft(step, reason))

    def switching(self, step: int) -> None:
        """The ring ended at a voted boundary: the next plan is on its way or here, unless a worker without
        a master voted. A master that planned already ignores this by its number."""
        self.left(step, "")

    def declined(self, plan: Plan, step: int) -> None:
        """Say that this worker will not come to the ring of `plan`: it was called off before it entered."""
        self._put(events.HasDeclined(plan, step))

    def done(self, step: int, *, stopped: bool, failure: str, warning: str, fingerprint: str = "") -> None:
        last = self.progress
        self._beat()
        self._put(events.IsDone(step, stopped, last.position, last.loss, failure, warning, fingerprint))

    def announce(self, plan: Plan, place: StartPoint) -> None:
        """Tell newcomers where the ring of `plan` will begin, so that they read their records before."""
        self.send(protocol.KvSet(plan.generation, NEXT, msgspec.json.encode(place)))

    def wait_for_place(self, generation: int) -> StartPoint | None:
        """Where the ring will begin, when a member of the old one says so; None if it never comes about."""
        return self._wait_for_key(generation, queries.place)

    def wait_for_company(self, generation: int) -> bool:
        """Until the old ring's members come, after a long step maybe; False if they never do."""
        return self._wait_for_key(generation, queries.company) is not None

    def _wait_for_key(self, generation: int, key: Callable[[State, int], bytes | None]) -> StartPoint | None:
        def answer(state: State) -> object | None:
            return key(state, generation) or queries.superseded(state, generation, clock.now()) or None

        told = key(self._wait_until(answer), generation)
        return None if told is None else msgspec.json.decode(told, type=StartPoint)

    def vote(self, generation: int) -> tuple[bool, bool]:
        """Whether this ring should end here (the next one is at hand, or the master is gone for good), and
        whether this worker was told to stop."""
        return queries.vote(self._state, generation)

    def upcoming(self, generation: int) -> Plan | None:
        """The plan after this generation, if there is one with a seat for this worker."""
        return queries.upcoming(self._state, generation)

    def doomed(self, generation: int) -> bool:
        """Whether the ring of this generation is to be left at once."""
        return queries.doomed(self._state, generation)

    @property
    def draining(self) -> bool:
        """Whether this worker was asked to leave."""
        return self._state.draining

    @property
    def deserted(self) -> bool:
        """Whether no master can let this worker go, although it was asked to leave."""
        return queries.deserted(self._state, clock.now())

    # --------------------------------------------------------------------------------- for any thread

    def send(self, message: protocol.FromWorker) -> None:
        """Say this to the master, now or when there is one again."""
        if isinstance(message, protocol.KvSet | protocol.KvPart):
            # Worth something only now, while a ring forms, and others wait for it.
            stream = self._stream
            if stream is not None:
                stream.send(message)
        else:
            if isinstance(message, protocol.Reformed):
                self._beat()  # its parts are in the ledger now
            self._put(events.Said(message))

    def drain(self) -> None:
        """Leave at a step boundary (SIGTERM). The master hears of it before this process can end."""
        self._put(events.Drained())

    def close(self) -> None:
        """Say what is still to be said, then hang up."""
        self._put(events.HangUp())

    def wait_closed(self, seconds: float) -> bool:
        """Give the last words time to arrive; returns whether they did."""
        self._hung_up.wait(seconds)
        return self._state.parted

    def _put(self, event: events.Event) -> None:
        self._inbox.put((event, None))

    def _ask(self, event: events.Event) -> State:
        """Put it into the inbox and wait for what it changed."""
        reply: SimpleQueue[State] = SimpleQueue()
        self._inbox.put((event, reply))
        return reply.get()

    def _wait_until(self, answer: Callable[[State], object | None]) -> State:
        """The first snapshot that has an answer."""
        with self._changed:
            while answer(state := self._state) is None:
                self._changed.wait()
            return state

    # ---------------------------------------------------------------------------------- the owner's thread

    def _attend(self) -> None:
        beat_at = clock.now()
        while True:
            now = clock.now()
            if now >= beat_at and not self._state.over:
                self._beat()
                beat_at = now + self._deadlines.heartbeat
            times = [queries.wakes_at(self._state, now), None if self._state.over else beat_at]
            wakes_at = min((at for at in times if at is not None), default=None)
            try:
                event, reply = self._inbox.get(timeout=None if wakes_at is None else max(0.0, wakes_at - now))
            except Empty:
                event, reply = events.Tick(), None
            self._handle(event)
            if reply is not None:
                reply.put(self._state)

    def _handle(self, event: events.Event) -> None:
        self._state, instructions = machine.handle(self._state, event, clock.now())
        for instruction in instructions:
            self._perform(instruction)
        if self._state.over:
            self._hung_up.set()
        with self._changed:
            self._changed.notify_all()

    def _perform(self, instruction: events.Instruction) -> None:
        match instruction:
            case events.Connect(link):
                self._connect(link)
            case events.Send(message):
                if self._stream is not None:
                    self._stream.send(message)
            case events.CloseConnection():
                if self._stream is not None:
                    self._stream.close()
            case events.OpenStore(plan):
                if self._store is not None:
                    rank = plan.rank_of(self.seat.uid) or 0
                    self._store.coordinates = {"worker": self.seat.worker_id, "rank": rank}
                    self._store.open(plan.generation)
            case events.CloseStore(generation):
                if self._store is not None:
                    self._store.close(generation)
            case events.Prepare(plan):
                self._prepare(plan)
            case events.Abort(generation):
                if self._ring is not None:
                    self._ring.abort(generation)
            case events.TellLost():
                where = f"the master at {self._address}" if self._address else "the master"
                log.warning("%s is gone; training goes on, trying to reach it", where)
            case events.Anomaly(text):
                log.error("this cannot happen: %s", text)
                self._put(events.Said(protocol.Note(NoteKind.WARNING, f"this cannot happen: {text}")))

    def _connect(self, link: int) -> None:
        hello, *more = queries.introduction(self._state, self.progress.step)
        assert isinstance(hello, protocol.Hello)
        stream = self._dial(hello)
        for message in more:
            stream.send(message)
        self._stream = stream
        supervised("listen", lambda: self._listen(stream, link), self._failed)

    def _prepare(self, plan: Plan) -> None:
        def at_hand() -> None:
            self._put(events.Prepared(plan.generation))

        if self._ring is None:
            at_hand()
        else:
            self._ring.prepare(plan, self.seat.uid, at_hand)

    def _beat(self) -> None:
        p, plan, stream = self.progress, self._state.plan, self._stream
        if stream is not None:
            generation = plan.generation if plan is not None else 0
            times = (p.ledger.read(), p.compute_seconds, p.best_compute_seconds)
            stream.send(
                protocol.Pulse(
                    p.activity, generation, p.step, p.position, p.loss, p.step_seconds, p.done, *times
                )
            )

    # ----------------------------------------------------------------------------------------- helpers

    def _listen(self, stream: Stream, link: int) -> None:
        """A thread for each stream."""
        try:
            for message in stream:
                self._heard(message)
        except MasterUnreachable as error:
            self._put(events.Refused(str(error)))
        self._put(events.Closed(link, stream.clean))
        if self._failing:
            self._hung_up.set()

    def _heard(self, message: protocol.FromMaster) -> None:
        if isinstance(message, protocol.KvEntry) and message.key not in (NEXT, HERE):  # Horovod's own
            if self._store is not None:
                self._store.arrived(message.generation, message.key, message.value)
        else:
            self._put(events.Heard(message))

    def _failed(self, thread: str, error: Exception) -> None:
        """Without its helpers this worker would wait for ever: it ends, and the others go on without it."""
        self._failing = True  # maybe it is the owner of the inbox that failed
        summary = f"its thread {thread!r} ended with {type(error).__name__}: {error}"
        stream = self._stream
        if stream is not None:
            stream.send(protocol.Failed(False, summary, summary))
            stream.close()
            self.wait_closed(LAST_WORDS_SECONDS)
        self._end(1)
