"""The worker's end of the master's stream, as the training thread sees it.

Three threads of its own: one reads what the master says, one sends heartbeats, one breaks the ring when it
is doomed. The training thread asks `vote()` at each step and `next_order()` when it is in no ring.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

import msgspec

from edl_allreduce import clock
from edl_allreduce.contract import LAST_WORDS_SECONDS
from edl_allreduce.core import protocol
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.health import Activity
from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.errors import MasterUnreachable
from edl_allreduce.rpc.client import WorkerStream
from edl_allreduce.worker.loop.orders import Leave, MasterGone, NextOrder, Progress, StartPoint
from edl_allreduce.worker.ring.base import Ring
from edl_allreduce.worker.ring.store import LoopbackStore
from edl_allreduce.worker.threads import supervised

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
ABORT_AGAIN_SECONDS = 0.05


NEXT, HERE = "/next", "/here"
"""Keys under which newcomers to a ring find the place where it will begin, and where it begins now."""

Pulled = protocol.DoTask | protocol.Conclude | protocol.Release | protocol.Evicted | MasterGone | Leave


class Control:
    """Talks with the master."""

    def __init__(
        self,
        address: str,
        token: str,
        seat: Seat,
        *,
        deadlines: Deadlines,
        master_grace: float,
        certificate: str = "",
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self.seat = seat
        self._end = end
        self.progress = Progress()
        self._address = address
        self._token = token
        self._certificate = certificate
        self._deadlines = deadlines
        self._grace = master_grace
        self.store = LoopbackStore(self.send, longest_wait=deadlines.collective)
        self._ring: Ring | None = None
        self._changed = threading.Condition()
        self._stream: WorkerStream | None = None
        self._closed = False
        self._hung_up = threading.Event()
        self._inbox: SimpleQueue[Pulled] = SimpleQueue()
        self._ready: protocol.Ready | None = None
        self._plan: Plan | None = None
        """The ring that this worker is in."""
        self._joined = False
        self._has_state = False
        self._gave_up = 0
        """The highest generation that this worker left before its time."""
        self._done = False
        self._newest: protocol.NewPlan | None = None
        self._prepared = 0
        """The highest generation to which this worker has connected, or tried to."""
        self._doomed = 0
        self._stop = False
        self._draining = False
        self._exports = False
        """The order to write the result was handed on."""
        self._exported: protocol.Exported | None = None
        """Said again after a reconnect: nobody else can say it."""
        self._lost_at: float | None = None
        """Since when nobody answers; None while somebody does."""
        self._last: protocol.Export | protocol.Release | protocol.Evicted | MasterGone | None = None

    def start(self) -> None:
        for target in (self._listen, self._beat, self._break):
            supervised(target.__name__.strip("_"), target, self._failed)

    def _failed(self, thread: str, error: Exception) -> None:
        """Without its helpers this worker would wait for ever: it ends, and the others go on without it."""
        summary = f"its thread {thread!r} ended with {type(error).__name__}: {error}"
        self.send(protocol.Failed(False, summary, summary))
        self.close()
        self.wait_closed(LAST_WORDS_SECONDS)
        self._end(1)

    def watch(self, ring: Ring) -> None:
        """From now on prepare plans with this ring, and break it when it is doomed."""
        self._ring = ring

    # ---------------------------------------------------------------------- for the training thread

    def send(self, message: protocol.FromWorker) -> None:
        with self._changed:  # a worker that introduces itself anew says it right after that
            if isinstance(message, protocol.Exported):
                self._exported = message
            if self._stream is not None:
                self._stream.send(message)

    def ready(self, message: protocol.Ready) -> None:
        self.progress.activity = Activity.IDLE
        with self._changed:
            self._ready = message
            self._has_state = message.has_state
            self.send(message)

    def entering(self, plan: Plan, place: StartPoint | None) -> bool:
        """Say that this worker goes into the ring of `plan`; False when that ring is doomed already.

        Whoever holds the model tells newcomers its place.
        """
        with self._changed:
            self._plan = plan
            self._done = False
            if plan.generation <= self._doomed:
                return False
            self._open_store(plan)
        self.send(protocol.Entered(plan.generation))
        if place is not None:
            self._publish_key(plan.generation, HERE, msgspec.json.encode(place))
        return True

    def upcoming(self, generation: int) -> Plan | None:
        """The plan after this generation, if there is one with a seat for this worker."""
        newest = self._newest
        if newest is None or newest.plan.generation <= generation:
            return None
        return newest.plan if newest.plan.rank_of(self.seat.uid) is not None else None

    def announce(self, plan: Plan, place: StartPoint) -> None:
        """Tell newcomers where the ring of `plan` will begin, so that they read their records before."""
        self._publish_key(plan.generation, NEXT, msgspec.json.encode(place))

    def joined(self, generation: int, step: int, position: int) -> None:
        """Say that the ring stands and that all agree on the state."""
        with self._changed:
            self._joined = self._has_state = True
            self.send(protocol.Joined(generation, step, position))

    def left(self, step: int, reason: str) -> None:
        """Say that this worker is out of its ring before its time and waits."""
        with self._changed:
            plan = self._outside(step)
            if plan is not None:
                self._gave_up = plan.generation
                self.send(protocol.Out(plan.generation, step, reason))

    def declined(self, plan: Plan, step: int) -> None:
        """Say that this worker will not come to the ring of `plan`: it was called off before it entered."""
        with self._changed:
            self._gave_up = max(self._gave_up, plan.generation)
            self.send(protocol.Out(plan.generation, step, "called off before it entered"))

    def switching(self, step: int) -> None:
        """The ring ended at a voted boundary: the next plan is on its way or here, unless a worker without
        a master voted. A master that planned already ignores this by its number."""
        self.left(step, "")

    def wait_for_place(self, generation: int) -> StartPoint | None:
        """Where the ring will begin, when a member of the old one says so; None if it never comes about."""
        return self._wait_for_key(generation, NEXT, HERE)

    def wait_for_company(self, generation: int) -> bool:
        """Until the old ring's members come, after a long step maybe; False if they never do."""
        return self._wait_for_key(generation, HERE) is not None

    def _wait_for_key(self, generation: int, *keys: str) -> StartPoint | None:
        def told() -> bytes | None:
            return next(filter(None, (self.store.known(generation, key) for key in keys)), None)

        with self._changed:
            self._changed.wait_for(lambda: told() or self._superseded(generation))
        place = told()
        return None if place is None else msgspec.json.decode(place, type=StartPoint)

    def _superseded(self, generation: int) -> bool:
        newest = self._newest
        newer = newest is not None and newest.plan.generation > generation
        return newer or self._doomed >= generation or self._last is not None

    def done(self, step: int, *, stopped: bool, failure: str, warning: str) -> None:
        last = self.progress
        with self._changed:
            self._done = True
            if self._plan is not None:
                generation = self._plan.generation
                self.send(
                    protocol.Done(generation, step, stopped, last.position, last.loss, failure, warning)
                )

    def vote(self, generation: int) -> tuple[bool, bool]:
        """Whether this ring should end here (the next one is at hand, or the master is gone for good), and
        whether this worker was told to stop."""
        newest = self._newest
        newer = newest is not None and newest.plan.generation > generation and self._at_hand(newest)
        return newer or isinstance(self._last, MasterGone), self._stop

    def _at_hand(self, order: protocol.NewPlan) -> bool:
        """Whether its members need not train here any longer; who leaves lets them decide."""
        stays = order.plan.rank_of(self.seat.uid) is not None
        if order.abort or stays:
            return order.abort or self._prepared >= order.plan.generation
        ring = self._plan.members if self._plan is not None else ()
        return all(order.plan.rank_of(seat.uid) is None for seat in ring)

    @property
    def draining(self) -> bool:
        """Whether this worker was asked to leave."""
        return self._draining

    @property
    def deserted(self) -> bool:
        """Whether no master can let this worker go, although it was asked to leave."""
        silent = self._deadlines.silent
        return self._draining and self._lost_at is not None and clock.now() - self._lost_at > silent

    def doomed(self, generation: int) -> bool:
        """Whether the ring of this generation is to be left at once."""
        return generation <= self._doomed

    def next_task(self) -> Pulled:
        """Wait for the next task, or for the end, where work is pulled."""
        return self._inbox.get()

    def next_order(self, generation: int) -> NextOrder:
        """Wait for what to do after the ring of `generation`. The last word of the master wins."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending(generation) is not None)
            order = self._pending(generation)
            assert order is not None
            if isinstance(order, protocol.Export):
                self._last = None
                self._exports = True
            return order

    def _pending(self, generation: int) -> NextOrder | None:
        if self._last is not None:
            return self._last
        newest = self._newest
        if newest is not None and newest.plan.generation > generation:
            seated = newest.plan.rank_of(self.seat.uid) is not None
            if seated or self._draining:
                return newest if seated else Leave()
            return None  # a newcomer whose turn has not come
        if self.deserted:
            return MasterGone(self._deadlines.silent)
        return Leave() if self._draining and generation == 0 else None

    def _outside(self, step: int) -> Plan | None:
        with self._changed:
            plan, self._plan = self._plan, None
            self._joined = False
            if plan is not None:
                self.store.close(plan.generation)
            if self._ready is not None:
                self._ready = dataclasses.replace(self._ready, step=step, has_state=self._has_state)
        self.progress.activity = Activity.IDLE
        return plan

    # ---------------------------------------------------------------------------- for other threads

    def drain(self) -> None:
        """Leave at a step boundary (SIGTERM). The master hears of it before this process can end."""
        with self._changed:
            self._draining = True
            self.send(protocol.Draining())
            self._changed.notify_all()
        self._inbox.put(Leave())

    def close(self) -> None:
        """Say what is still to be said, then hang up."""
        self._closed = True
        stream = self._stream
        if stream is not None:
            stream.close()

    def wait_closed(self, seconds: float) -> None:
        """Give the last words time to arrive."""
        self._hung_up.wait(seconds)

    # --------------------------------------------------------------------------------------- threads

    def _listen(self) -> None:
        try:
            self._attend()
        finally:
            self._hung_up.set()

    def _attend(self) -> None:
        pause = threading.Event()
        while True:  # at least once: who is told to leave at once says so, too
            with self._changed:  # what happens while it introduces itself is said right after that
                stream = WorkerStream(self._address, self._token, self._hello(), self._certificate)
                if self._ready is not None:  # also from a ring: a new master learns the job's length from it
                    stream.send(self._ready)
                if self._draining:
                    stream.send(protocol.Draining())
                if self._exported is not None:
                    stream.send(self._exported)
                self._stream = stream
            if self._closed:
                stream.close()
            try:
                for message in stream:
                    self._lost_at = None
                    self._hear(message)
            except MasterUnreachable as error:
                self._tell(protocol.Evicted(str(error)))
                return
            with self._changed:
                self._stream = None
            if self._closed or (self._last is not None and not isinstance(self._last, protocol.Export)):
                return
            if self._lost_at is None:
                self._lost_at = clock.now()
                log.warning("the master at %s is gone; training goes on, trying to reach it", self._address)
                continue  # at once: it may be only this connection that broke
            if clock.now() - self._lost_at > self._grace:
                self._tell(MasterGone(self._grace))
                return
            with self._changed:  # who waits outside a ring may be deserted by now
                self._changed.notify_all()
            pause.wait(RETRY_SECONDS)

    def _hello(self) -> protocol.Hello:
        plan = self._plan
        if self._newest is not None and self._newest.plan.rank_of(self.seat.uid) is not None:
            plan = self._newest.plan if self._newest.plan.generation > self._gave_up else plan
        return protocol.Hello(
            seat=self.seat,
            plan=plan,
            step=self.progress.step,
            done=self._done and plan is self._plan,
            joined=self._joined and plan is self._plan,
            has_state=self._has_state,
            generation=self._newest.plan.generation if self._newest is not None else 0,
        )

    def _hear(self, message: protocol.FromMaster) -> None:
        match message:
            case protocol.KvEntry(generation, key, value):
                self.store.arrived(generation, key, value)
                with self._changed:
                    self._changed.notify_all()
            case protocol.NewPlan():
                with self._changed:
                    if self._newest is None or message.plan.generation > self._newest.plan.generation:
                        self._newest = message
                        if message.abort:
                            self._doom(message.plan.generation - 1)
                        else:
                            self._prepare(message.plan)
                    self._changed.notify_all()
            case protocol.AbortRing(generation):
                with self._changed:
                    self._doom(generation)
                    self._changed.notify_all()
            case protocol.DoTask() | protocol.Conclude():
                self._inbox.put(message)
            case protocol.Stop():
                self._stop = True
            case protocol.Drain():
                self.drain()
            case protocol.Export() if self._exports:
                pass  # said again after a reconnect: what comes of it is said again, too
            case protocol.Export() | protocol.Release() | protocol.Evicted():
                self._tell(message)

    def _prepare(self, plan: Plan) -> None:
        """Connect to the next ring while this one trains: its members then stand still for a moment only."""
        if self._ring is None or plan.rank_of(self.seat.uid) is None:
            return

        def at_hand() -> None:
            self._prepared = plan.generation

        self._open_store(plan)
        self._ring.prepare(plan, self.seat.uid, at_hand)

    def _open_store(self, plan: Plan) -> None:
        self.store.coordinates = {"worker": self.seat.worker_id, "rank": plan.rank_of(self.seat.uid) or 0}
        self.store.open(plan.generation)

    def _doom(self, generation: int) -> None:
        self._doomed = max(self._doomed, generation)
        self.store.close(self._doomed)

    def _tell(self, last: protocol.Export | protocol.Release | protocol.Evicted | MasterGone) -> None:
        if not isinstance(last, protocol.Export):
            self._inbox.put(last)
        with self._changed:
            self._last = last
            if isinstance(last, protocol.Release | protocol.Evicted) and self._plan is not None:
                self._doom(self._plan.generation)
            self._changed.notify_all()

    def _beat(self) -> None:
        pause = threading.Event()
        while not self._closed:
            p = self.progress
            generation = self._plan.generation if self._plan is not None else 0
            self.send(
                protocol.Pulse(p.activity, generation, p.step, p.position, p.loss, p.step_seconds, p.done)
            )
            pause.wait(self._deadlines.heartbeat)

    def _break(self) -> None:
        def doomed() -> bool:
            ring = self._ring
            return ring is not None and 0 < ring.generation <= self._doomed

        while not self._closed:
            with self._changed:
                self._changed.wait_for(doomed)
            ring = self._ring
            while ring is not None and doomed():
                # Again until it took: the order may fall into the moment before init begins.
                ring.abort(self._doomed)
                threading.Event().wait(ABORT_AGAIN_SECONDS)

    def _publish_key(self, generation: int, key: str, value: bytes) -> None:
        self.send(protocol.KvSet(generation, key, value))
