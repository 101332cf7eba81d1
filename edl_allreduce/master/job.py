"""The master: hears workers, asks the pure core what to do, and does it.

One asyncio loop owns all state, so nothing is locked. Every event of a worker goes through
`machine.handle`; what it answers is carried out by `_perform`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import statistics
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgspec

from edl_allreduce import clock, outside
from edl_allreduce.cluster.base import Cluster, Ended, Noted
from edl_allreduce.core import health, progress, protocol, relaunch, ring_words
from edl_allreduce.core.account import Account
from edl_allreduce.core.causes import FREE, Cause
from edl_allreduce.core.course import DIGEST, Course, differences
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.membership import machine
from edl_allreduce.core.membership import types as membership
from edl_allreduce.core.membership.types import Standing
from edl_allreduce.core.parts import Parts
from edl_allreduce.core.status import EventRecord, JobStatus, Tally, WorkerStatus, metrics_line
from edl_allreduce.errors import UsageError

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
TELL_WAITING_SECONDS = 1.0
LAST_EVENTS = 200
HANG_UP = None
SHOWN_REASON = 300
"""Characters of a reason in one line; the whole story comes at the end, once."""

CERTAIN = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Why a worker cannot be started, when trying again would not help."""


class Phase(StrEnum):
    """Of the whole job. The last three are final."""

    STARTING = "Starting"
    TRAINING = "Training"
    WORKING = "Working"
    """Workers pull tasks (evaluation, prediction)."""
    WAITING = "Waiting"
    FINISHING = "Finishing"
    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    FAILED = "Failed"


FINAL = frozenset({Phase.SUCCEEDED, Phase.STOPPED, Phase.FAILED})


@dataclass(frozen=True)
class JobOptions:
    """What the master must know of the job."""

    job_name: str
    num_workers: int
    min_workers: int
    cool_down: float
    deadlines: Deadlines
    crash_budget: int
    recover_until: float = 0.0
    master_grace: float = 60.0
    max_bad_records: int = 0


@dataclass
class Peer:
    """A connected worker."""

    hello: protocol.Hello
    link: int
    """Counts connections, over all workers."""
    outbox: asyncio.Queue[protocol.FromMaster | None] = field(default_factory=asyncio.Queue)
    pulse: health.Pulse = field(default_factory=lambda: health.Pulse(heard=clock.now()))
    last: protocol.Pulse | None = None
    course: Course | None = None
    """What it would train, when it is ready and that is what the rest train."""
    joined_at: int | None = None
    """The step at which it joined its ring."""


@dataclass
class _Slot:
    """A worker that this master started."""

    launched: float
    accepted: bool = False
    """It was ready, and nothing was wrong with it as a newcomer."""
    proved: bool = False
    """It made a step in a ring with the others, or a task."""
    draining: bool = False
    evicted: Cause | None = None
    uid: str = ""
    refusal: str = ""
    """Why it may not take part."""
    failed: protocol.Failed | None = None
    """What its code raised, in its own words."""


@dataclass(frozen=True)
class Result:
    """How the job ended."""

    phase: Phase
    reason: str
    step: int
    path: str
    reforms: list[protocol.Reformed]
    reasons: dict[int, str]
    """Why each generation was planned."""


class Job:
    """One training job."""

    def __init__(
        self,
        options: JobOptions,
        cluster: Cluster,
        on_event: Callable[[EventRecord], None] = lambda event: None,
    ) -> None:
        self.options = options
        self._cluster = cluster
        self._on_event = on_event
        self._state = membership.State(
            membership.Options(
                wanted=options.num_workers,
                minimum=options.min_workers,
                cool_down=options.cool_down,
                deadlines=options.deadlines,
                recover_until=options.recover_until,
                master_grace=options.master_grace,
            )
        )
        self._peers: dict[str, Peer] = {}
        self._parts = Parts()
        self._gone: set[str] = set()
        """Uids that were lost or evicted; they do not come back."""
        self._slots: dict[int, _Slot] = {}
        self._next_id = 0
        self._wanted = options.num_workers
        self._launch_after = 0.0
        self._failures = 0
        self._refusals = 0
        """Newcomers in a row that could not begin."""
        self._refused_at = 0.0
        self._short = ""
        """Why there are fewer workers than wanted, when newcomers cannot begin."""
        self._told_short: set[str] = set()
        self._told_once: set[tuple[str, str]] = set()
        self._repeats: dict[str, int] = {}
        """How often user code failed in the same way at the same step."""
        self._last_checkpoint = ""
        self._phase = Phase.STARTING
        self._reason = ""
        self._stopping = ""
        self._place = progress.Place()
        self._first: progress.Place | None = None
        """Where this run began."""
        self._length: progress.Length | None = None
        self._total_steps = 0
        """Of a job without a length: tasks."""
        self._trained = progress.Stopwatch()
        self._losses = 0
        self._course: Course | None = None
        self._exporter = ""
        self._exporter_left = 0.0
        """When the worker that writes the result was last seen to lose its connection."""
        self._links = 0
        self._ids: dict[str, int] = {}
        """The numbers of all workers that were ever connected, by uid."""
        self._deaf = False
        """Nobody was heard at the last tick."""
        self._finishers: list[str] = []
        self._path = ""
        self._began = clock.now()
        self._events: list[EventRecord] = []
        self._serial = 0
        self._waiting_for = ""
        self._waiting_since = 0.0
        self._told_waiting = ""
        self._reforms: list[protocol.Reformed] = []
        self._metrics: dict[int, dict[str, float]] = {}
        """By the step of the evaluation."""
        self._reasons: dict[int, str] = {}
        self._account = Account(options.max_bad_records)
        """What workers warned of; several of them see the same files."""
        self._giving_up = False
        """The job fails as soon as the log of the worker at fault was read."""
        self._over = asyncio.Event()
        self._effects: set[asyncio.Task[None]] = set()

    # -------------------------------------------------------------------------------------- life cycle

    async def run(self) -> Result:
        """Until the job is over and no worker is left."""
        helpers = [asyncio.create_task(self._watch_ends()), asyncio.create_task(self._tick())]
        over = asyncio.create_task(self._over.wait())
        try:
            done, _ = await asyncio.wait([*helpers, over], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a bug in a helper must not look like a job that waits
            await self._let_go()
        finally:
            for task in [*helpers, over]:
                task.cancel()
            await self._cluster.close()
        return Result(self._phase, self._reason, self._place.step, self._path, self._reforms, self._reasons)

    def adopt(self, living: Iterable[int], running: Iterable[int], next_id: int, wanted: int) -> None:
        """Take over the workers of an earlier master of this job; call before `run`."""
        ready = frozenset(running)
        self._slots.update({i: _Slot(clock.now(), accepted=i in ready, proved=i in ready) for i in living})
        self._next_id = max(self._next_id, next_id)
        self._wanted = wanted
        self._handle(membership.Wanted(wanted))
        self._handle(membership.Unheard(ready))

    def stop(self, reason: str) -> None:
        """Stop at the next step boundary."""
        if self._stopping or self._phase in FINAL:
            return
        self._stopping = reason
        self._tell("stop", f"stopping at the next step boundary: {reason}")
        members = {m.seat.uid for m in self._state.alive()}
        if self._has_model():
            for uid, peer in self._peers.items():
                message = protocol.Stop(reason) if uid in members else protocol.Release()
                peer.outbox.put_nowait(message)
        self._handle(membership.Stopping())

    def _has_model(self) -> bool:
        return any(m.has_state for m in self._state.alive())

    def scale(self, count: int) -> None:
        """Change the number of workers; surplus ones drain, missing ones are started."""
        self._tell("scale", f"from {self._wanted} to {count} workers")
        self._wanted = count
        self._launch_after = 0.0  # somebody may have mended what was in the way of newcomers
        self._handle(membership.Wanted(count))
        active = sorted(i for i, slot in self._slots.items() if not slot.draining)
        for worker_id in active[count:]:
            slot = self._slots[worker_id]
            slot.draining = True
            peer = self._peers.get(slot.uid)
            if peer is not None:
                peer.outbox.put_nowait(protocol.Drain())
            else:
                self._later(self._cluster.terminate(worker_id))
        self._reconcile()

    def kill_all(self) -> None:
        """End at once, without a result (Ctrl-C twice)."""
        self._end(Phase.STOPPED, "interrupted twice: workers were killed")
        for worker_id in self._slots:
            self._later(self._cluster.kill(worker_id))

    def _check_scale(self, count: int) -> None:
        if self._phase in FINAL or self._phase is Phase.FINISHING or self._stopping:
            raise UsageError(f"the job cannot be scaled: it is {self._phase.value.lower()}")
        if self.options.num_workers == 0:
            raise UsageError(
                "this master starts no workers (--num_workers=0): start more of them yourself, "
                "and end one with SIGTERM or Ctrl-C"
            )
        if count < max(1, self.options.min_workers):
            raise UsageError(f"--num_workers={count}: the job needs at least {self.options.min_workers}")

    async def answer(self, command: protocol.Command) -> JobStatus:
        match command:
            case protocol.Scale(count):
                self._check_scale(count)
                self.scale(count)
            case protocol.StopJob(reason):
                self.stop(reason)
        return self.status()

    # ------------------------------------------------------------------------------------ worker streams

    async def attend(
        self, requests: AsyncIterator[protocol.FromWorker], address: str
    ) -> AsyncIterator[protocol.FromMaster]:
        """One worker's stream, from hello to the end of its process."""
        hello = await anext(requests, None)
        if not isinstance(hello, protocol.Hello):
            return
        refusal = self._refusal(hello)
        if refusal:
            yield protocol.Evicted(refusal)
            return
        uid = hello.seat.uid
        self._links += 1
        peer = Peer(hello, self._links)
        peer.outbox.put_nowait(protocol.Welcome())
        for seat in (hello.seat, *(hello.plan.members if hello.plan is not None else ())):
            self._ids.setdefault(seat.uid, seat.worker_id)  # also those who will never be heard
        before = self._peers.get(uid)
        self._peers[uid] = peer
        if before is not None:  # it is back before the end of its last connection was noticed
            before.outbox.put_nowait(HANG_UP)
        slot = self._slots.get(hello.seat.worker_id)
        if slot is not None:
            slot.uid = uid
        self._next_id = max(self._next_id, hello.seat.worker_id + 1)
        self._tell_of_start(
            hello.seat.worker_id, "hello", f"worker {hello.seat.worker_id} connected from {hello.seat.host}"
        )
        self._handle(membership.Heard(uid, hello, peer.link))
        # What was ordered may have been lost with its last connection.
        if self._stopping and self._phase is not Phase.FINISHING:
            peer.outbox.put_nowait(protocol.Stop(self._stopping))
        if slot is not None and slot.draining:
            peer.outbox.put_nowait(protocol.Drain())
        if self._phase is Phase.FINISHING and uid == self._exporter:
            peer.outbox.put_nowait(protocol.Export())
        elif self._phase is Phase.FINISHING and not self._exporter:
            self._export_next()
        reader = asyncio.create_task(self._read(uid, peer, requests))
        try:
            while (message := await peer.outbox.get()) is not HANG_UP:
                yield message
        finally:
            reader.cancel()
            self._hung_up(uid, peer)

    def _refusal(self, hello: protocol.Hello) -> str:
        if hello.protocol != protocol.PROTOCOL:
            return (
                f"the worker speaks protocol {hello.protocol} (version {hello.version}), the master "
                f"{protocol.PROTOCOL}; use the same version for both"
            )
        if hello.seat.uid in self._gone:
            return "the ring went on without this worker"
        finisher = hello.seat.uid == self._exporter or hello.seat.uid in self._finishers
        if self._phase in FINAL or (self._phase is Phase.FINISHING and not finisher):
            return "the job is over"
        same = (p for p in self._peers.values() if p.hello.seat.worker_id == hello.seat.worker_id)
        if any(peer.hello.seat.uid != hello.seat.uid for peer in same):
            return f"there is another worker {hello.seat.worker_id}; choose another --worker_id"
        return ""

    async def _read(self, uid: str, peer: Peer, requests: AsyncIterator[protocol.FromWorker]) -> None:
        try:
            async for message in requests:
                self._hear(uid, peer, message)
        finally:
            peer.outbox.put_nowait(HANG_UP)

    def _hung_up(self, uid: str, peer: Peer) -> None:
        """The end of a connection says little about the process: the worker may come back over another."""
        if self._peers.get(uid) is not peer:
            return
        del self._peers[uid]
        if uid == self._exporter:
            self._exporter_left = clock.now()
        if self._phase not in FINAL:
            self._handle(membership.Away(uid, peer.link))

    def _hear(self, uid: str, peer: Peer, message: protocol.FromWorker) -> None:
        now = clock.now()
        worker_id = peer.hello.seat.worker_id
        match message:
            case protocol.Pulse():
                peer.pulse = peer.pulse.beat(message.activity, message.step, now, message.done)
                peer.last = message
                if message.generation:  # 0: in no ring
                    self._is_at(message.generation, message.step, message.position, message.loss)
                trains = peer.joined_at is not None and message.step >= peer.joined_at + machine.PROOF
                if trains and message.generation == self._ring_generation():
                    self._proved(worker_id)
            case protocol.Ready():
                if peer.pulse.activity is health.Activity.PREPARING:
                    # From now on its silence counts, although its next heartbeat may never come.
                    peer.pulse = peer.pulse.beat(health.Activity.IDLE, message.step, now)
                self._ready(uid, peer, message)
            case protocol.Entered():
                self._handle(membership.Heard(uid, message))
            case protocol.Joined(generation, step, position):
                self._is_at(generation, step, position)
                if generation == self._ring_generation():
                    peer.joined_at = step
                self._handle(membership.Heard(uid, message))
            case protocol.Out(generation, _, reason):
                named = replace(message, reason=self._named(generation, reason))
                self._handle(membership.Heard(uid, named))
            case protocol.Done(generation, step, _, position, loss):
                if message.failure:
                    self._end(Phase.FAILED, message.failure)
                    return
                self._is_at(generation, step, position, loss)
                self._account.warning = message.warning
                self._handle(membership.Heard(uid, message))
            case protocol.Draining():
                if worker_id in self._slots:
                    self._slots[worker_id].draining = True
                self._tell("drain", f"worker {worker_id} drains")
                self._handle(membership.Heard(uid, message))
                ring = self._state.alive()
                if ring and self._waiting_for and all(m.joined for m in ring):
                    self._tell("drain", self._waiting_for)  # whoever sent the signal may wonder
                self._launch_in(self._cluster.head_start)
            case protocol.KvSet(generation, key, value):
                self._pass_on(generation, key, value)
            case protocol.KvPart(generation, key, number, of, part):
                whole = self._parts.add(generation, key, number, of, part)
                if whole is not None:
                    self._pass_on(generation, key, whole)
            case protocol.Reformed():
                self._reforms.append(message)
                where = f"worker {worker_id} goes on in generation {message.generation}"
                self._tell("re-form", f"{where} after {message.pause:.3f} s")
            case protocol.Failed():
                if worker_id in self._slots:
                    self._slots[worker_id].failed = message
                self._tell_of_start(worker_id, "failure", f"worker {worker_id}: {_line(message.summary)}")
            case protocol.Evaluated():
                self._evaluated(message)
            case protocol.Checkpointed(step, path, error):
                text = self._account.checkpointed(step, path, error)
                if not error:
                    self._last_checkpoint = text
                self._tell(protocol.WARNING if error else "checkpoint", f"worker {worker_id}: {text}")
            case protocol.BadRecords(data, records):
                self._left_out(data, records)
            case protocol.Note():
                self._noted(worker_id, message)
            case protocol.Exported(path, error):
                self._exported(path, error)

    def _ready(self, uid: str, peer: Peer, message: protocol.Ready) -> None:
        worker_id = peer.hello.seat.worker_id
        course = _course(message)
        if self._course is None or self._leads_on(peer):
            self._course = course
            for other_uid, other in list(self._peers.items()):
                if other.course is not None and (difference := differences(course, other.course)):
                    self._refuse(other_uid, difference)
        elif difference := differences(self._course, course):
            self._refuse(uid, difference)
            return
        self._total_steps, self._length = message.total_steps, message.length
        peer.course = course
        if worker_id in self._slots:
            self._slots[worker_id].accepted = True
        self._tell("ready", f"worker {worker_id} is ready")
        self._handle(membership.Heard(uid, message))

    def _leads_on(self, peer: Peer) -> bool:
        """After a restart of the master a newcomer may be heard first; right is who holds the model."""
        heard = any(p.course is not None and p.hello.has_state for p in self._peers.values())
        return peer.hello.has_state and not heard

    def _refuse(self, uid: str, difference: str) -> None:
        """Ranks that do not mean the same records, or not the same model, must not train together."""
        cure = "give all workers the same files and flags"
        self._evict(uid, Cause.INVALID, f"differs from the rest and is refused: {difference}; {cure}")

    def _proved(self, worker_id: int) -> None:
        """A newcomer trains along, so whatever was in the way of newcomers is gone."""
        slot = self._slots.get(worker_id)
        if slot is None or slot.proved:
            return
        slot.proved = True
        if self._refusals and slot.launched > self._refused_at:
            self._tell("newcomers", f"worker {worker_id} takes part: newcomers can begin again")
            self._refusals = 0
            self._short = ""
            self._told_short.clear()
            self._reconcile()

    def _noted(self, worker_id: int, note: protocol.Note) -> None:
        if note.once:
            if (note.kind, note.text) not in self._told_once:
                self._told_once.add((note.kind, note.text))
                self._tell(note.kind, note.text)
        else:
            self._tell(note.kind, f"worker {worker_id}: {note.text}")

    def _ring_generation(self) -> int:
        plan = self._state.plan
        return plan.generation if plan is not None else 0

    def _is_at(self, generation: int, step: int, position: int, loss: float = math.nan) -> None:
        self._place = self._place.heard(generation, step, position, loss)
        if self._first is None:
            self._first = self._place

    def _ring_stands(self) -> bool:
        """Whether anybody can make a step: in the ring of the plan, or in the one before it."""
        ring = self._state.alive()
        still_in_the_old_one = self._state.leaving is not None and not any(m.entered for m in ring)
        return any(m.joined for m in ring) or still_in_the_old_one

    def _named(self, generation: int, reason: str) -> str:
        """A rank is a place in one ring; people know the worker."""
        plan = self._state.plan
        if plan is None or plan.generation != generation:
            return reason
        return ring_words.with_workers(reason, [seat.worker_id for seat in plan.members])

    def _evaluated(self, message: protocol.Evaluated) -> None:
        """Every rank reports, and a step may be evaluated again after a re-form: the first report counts."""
        if message.step not in self._metrics:
            self._metrics[message.step] = message.metrics
            self._tell("evaluation", metrics_line(message))

    def _left_out(self, data: str, records: dict[int, tuple[str, int]]) -> None:
        """Whoever met them: what counts is how many different records are bad."""
        text = self._account.left_out(data, records)
        if text:
            self._tell(protocol.WARNING, text)
        if self._account.too_many:
            self._end(Phase.FAILED, self._account.too_many)

    def _pass_on(self, generation: int, key: str, value: bytes) -> None:
        """Keys of a rendezvous go to its members only; an older generation is over."""
        plan = self._state.plan
        if plan is None or plan.generation != generation:
            return
        entry = protocol.KvEntry(generation, key, value)
        for seat in plan.members:
            peer = self._peers.get(seat.uid)
            if peer is not None:
                peer.outbox.put_nowait(entry)

    # ------------------------------------------------------------------------------------------ decisions

    def _handle(self, event: membership.Event) -> None:
        if self._phase in FINAL:
            return
        before = {m.seat.uid for m in self._state.alive() if not m.draining}
        self._state, actions = machine.handle(self._state, event, clock.now())
        here = {uid for uid, m in self._state.members.items() if m.standing is not Standing.ABSENT}
        self._losses += len(before - here)
        self._trained = self._trained.turn(self._ring_stands(), clock.now())
        for action in actions:
            self._perform(action)
        waiting = self._state.waiting_for
        if waiting != self._waiting_for:
            self._waiting_for, self._waiting_since = waiting, clock.now()
            if waiting:
                log.debug("waiting: %s", waiting)
        if self._stopping and self._phase is not Phase.FINISHING and not self._has_model():
            self._end(Phase.STOPPED, self._stopping)  # nobody is left who could make a last step
        if self._phase in (Phase.TRAINING, Phase.WAITING):
            trains = any(m.joined for m in self._state.alive())
            self._phase = Phase.TRAINING if trains or not waiting else Phase.WAITING

    def _perform(self, action: membership.Action) -> None:
        match action:
            case membership.Publish(plan, abort, reason):
                ids = ", ".join(str(seat.worker_id) for seat in plan.members)
                self._tell("plan", f"generation {plan.generation}: workers {ids}, because {reason}")
                self._phase = Phase.TRAINING
                self._reasons[plan.generation] = reason
                message = protocol.NewPlan(plan, abort, reason)
                for peer in self._peers.values():
                    peer.outbox.put_nowait(message)
            case membership.Abort(generation, uids, reason):
                self._tell("abort", f"generation {generation}: {reason}")
                for uid in uids:
                    if uid in self._peers:
                        self._peers[uid].outbox.put_nowait(protocol.AbortRing(generation, reason))
            case membership.Evict(uid, reason, refused):
                ring = self._state.plan
                seated = ring is not None and ring.rank_of(uid) is not None
                cause = Cause.STUCK if seated else Cause.SILENT
                self._evict(uid, Cause.INVALID if refused else cause, reason)
            case membership.Finish(uids, step):
                self._phase = Phase.FINISHING
                self._place = replace(self._place, step=step)  # a new master heard of no step before
                self._trained = self._trained.turn(False, clock.now())
                how = "stopped" if self._stopping else "is complete"
                self._tell("finish", f"training {how} after {step} steps")
                self._finishers = list(uids)
                self._export_next()

    def _evict(self, uid: str, cause: Cause, reason: str) -> None:
        if uid in self._gone:
            return
        self._gone.add(uid)
        peer, worker_id = self._peers.get(uid), self._ids.get(uid, -1)
        self._tell_of_start(worker_id, "evict", f"worker {worker_id} {reason}")
        if peer is not None:
            peer.outbox.put_nowait(protocol.Evicted(reason))
            peer.outbox.put_nowait(HANG_UP)
        if worker_id in self._slots:
            slot = self._slots[worker_id]
            slot.evicted = cause
            if cause is Cause.INVALID:
                slot.accepted, slot.refusal = False, reason
            self._later(self._cluster.kill(worker_id))
        self._handle(membership.Lost(uid, reason))

    # ----------------------------------------------------------------------------------------- the end

    def _export_next(self) -> None:
        """Let somebody write the result who holds the model and can hear of it."""
        here = [uid for uid in self._finishers if uid in self._peers]
        if here:
            self._exporter = here[0]
            self._finishers.remove(here[0])
            self._peers[here[0]].outbox.put_nowait(protocol.Export())
        elif self._finishers:
            self._exporter, self._exporter_left = "", clock.now()  # they may come back
        else:
            self._end(Phase.FAILED, "every worker that had the final model was lost before it was written")

    def _tell_waiting(self, now: float) -> None:
        """A training that stands still for more than a moment says why where people look later, too."""
        if self._phase is not Phase.WAITING or self._waiting_for in ("", self._told_waiting):
            return
        if self._state.plan is not None and now - self._waiting_since > TELL_WAITING_SECONDS:
            self._told_waiting = self._waiting_for
            self._tell("waiting", self._waiting_for)

    def _watch_export(self, now: float) -> None:
        """Nobody waits for ever for a worker that lost its connection with the result in its hands."""
        if self._phase is not Phase.FINISHING or self._exporter in self._peers:
            return
        others = any(uid in self._peers for uid in self._finishers)
        limit = self.options.deadlines.silent if others else self._state.options.patience
        if now - self._exporter_left <= limit:
            return
        if others and self._exporter:
            self._finishers.append(self._exporter)  # it may come back
        elif not others:
            self._finishers = []
        self._export_next()

    def _exported(self, path: str, error: str) -> None:
        self._path = path
        missing = "; ".join(filter(None, (error, self._account.shortfall)))
        remarks = f"; {self._account.remarks}" if self._account.remarks else ""
        if missing:
            self._end(Phase.FAILED, f"trained for {self._place.step} steps, but {missing}{remarks}")
        elif self._stopping:
            self._end(Phase.STOPPED, f"{self._stopping}{remarks}")
        else:
            self._end(Phase.SUCCEEDED, f"{self._place.step} steps{remarks}")

    def _end(self, phase: Phase, reason: str) -> None:
        if self._phase in FINAL:
            return
        self._phase, self._reason = phase, reason
        self._trained = self._trained.turn(False, clock.now())
        self._tell("end", f"{phase.value}: {_line(reason)}")
        for peer in self._peers.values():
            peer.outbox.put_nowait(protocol.Release())
        self._over.set()

    async def _let_go(self) -> None:
        """Give released workers time to exit by themselves."""
        deadline = clock.now() + self.options.deadlines.failure_detection
        for worker_id in [i for i, slot in self._slots.items() if not slot.uid]:
            await self._cluster.terminate(worker_id)
        while (self._peers or self._slots) and clock.now() < deadline:
            await asyncio.sleep(TICK_SECONDS / 5)

    # ------------------------------------------------------------------------------------- keeping workers

    def _reconcile(self) -> None:
        """Start what is missing."""
        if self._phase in FINAL or self._phase is Phase.FINISHING or self._stopping or self._giving_up:
            return
        if clock.now() < self._launch_after:
            return
        active = [slot for slot in self._slots.values() if not slot.draining]
        missing = self._wanted - len(active)
        if self._refusals:  # one after the other, until one takes part
            missing = min(missing, 1) if all(slot.accepted for slot in active) else 0
        for _ in range(missing):
            worker_id = self._next_id
            self._next_id += 1
            self._slots[worker_id] = _Slot(clock.now())
            self._tell_of_start(worker_id, "launch", f"worker {worker_id} starts")
            self._later(self._launch(worker_id))

    async def _launch(self, worker_id: int) -> None:
        try:
            await self._cluster.launch(worker_id)
        except Exception as error:  # noqa: BLE001  whoever never started never ends: nobody must wait for it
            cause = Cause.INVALID if isinstance(error, CERTAIN) else Cause.CRASHED
            self._ended(Ended(worker_id, cause, f"could not be started: {error}"))

    def _launch_in(self, seconds: float) -> None:
        self._launch_after = max(self._launch_after, clock.now() + seconds)
        self._reconcile()

    async def _watch_ends(self) -> None:
        while True:
            match await self._cluster.next_news():
                case Ended() as end:
                    self._ended(end)
                case Noted(kind, text):
                    self.note(kind, text)

    def _ended(self, end: Ended) -> None:
        slot = self._slots.pop(end.worker_id, None)
        if slot is None or self._phase in FINAL:
            return
        if self._phase is Phase.FINISHING:
            self._finishers = [uid for uid in self._finishers if uid != slot.uid]
            if slot.uid and slot.uid == self._exporter:
                self._export_next()
            return
        cause, text = self._cause(slot, end)
        if slot.uid:
            self._gone.add(slot.uid)
            self._handle(membership.Lost(slot.uid, text))
        else:
            self._handle(membership.Unheard(self._state.unheard - {end.worker_id}))
        worker = relaunch.Worker(cause, slot.accepted, self._count_repeats(slot))
        around = self._around(slot)
        decision = relaunch.decide(worker, around)
        if relaunch.is_refusal(worker, around):
            if not self._refusals:
                self._tell("exit", f"worker {end.worker_id} {text}")
            self._could_not_begin(end, slot, text, decision)
            return
        self._tell("exit", f"worker {end.worker_id} {text}")
        if cause not in FREE:
            self._failures += 1
        match decision:
            case relaunch.GiveUp(reason):
                self._fail(end, slot, f"worker {end.worker_id} {text}; {reason}.")
            case relaunch.Relaunch(delay, reason):
                if delay:
                    self._tell("relaunch", f"in {delay:.0f} s: {reason}")
                self._launch_in(max(delay, self._cluster.head_start))

    def _around(self, gone: _Slot) -> relaunch.Around:
        ready = sum(peer.course is not None for uid, peer in self._peers.items() if uid != gone.uid)
        return relaunch.Around(
            running=sum(not slot.draining for slot in self._slots.values()),
            wanted=self._wanted,
            healthy=ready + len(self._state.unheard),
            begun=self._course is not None,
            failures=self._failures,
            budget=self.options.crash_budget,
            refusals=self._refusals,
        )

    def _count_repeats(self, slot: _Slot) -> int:
        place = slot.failed.place if slot.failed is not None else ""
        if not place:
            return 0
        before = self._repeats.get(place, 0)
        self._repeats[place] = before + 1
        return before

    def _could_not_begin(self, end: Ended, slot: _Slot, text: str, decision: relaunch.Decision) -> None:
        """The others train on. A reason is told once, however often newcomers fail for it."""
        self._refusals += 1
        self._refused_at = clock.now()
        why = _line(slot.failed.summary) if slot.failed is not None else slot.refusal
        reason = f"{text}: {why}" if slot.failed is not None else why or text
        self._short = f"worker {end.worker_id} {reason}"
        match decision:
            case relaunch.GiveUp(verdict):
                last = f" Last word on checkpoints: {self._last_checkpoint}." if self._last_checkpoint else ""
                self._fail(end, slot, f"{self._short}; {verdict}.{last}")
            case relaunch.Relaunch(delay, circumstances):
                if reason not in self._told_short:
                    self._told_short.add(reason)
                    again = f"next try in {delay:.0f} s, then more and more seldom"
                    self._tell("short", f"{self._short} ({circumstances}; {again})")
                self._launch_in(max(delay, self._cluster.head_start))
            case relaunch.Leave():
                self._short = ""

    def _fail(self, end: Ended, slot: _Slot, told: str) -> None:
        """With what the worker's code raised, or else the end of its log; on lines of its own."""
        if slot.refusal or slot.failed is not None:
            self._end(Phase.FAILED, told + _lines(slot.failed.story if slot.failed is not None else ""))
        else:
            self._giving_up = True
            self._later(self._fail_with_log(end.worker_id, told))

    async def _fail_with_log(self, worker_id: int, told: str) -> None:
        """The log may be far away, and everybody else goes on meanwhile."""
        self._end(Phase.FAILED, told + _lines(await self._cluster.last_words(worker_id)))

    def _shortage(self) -> str:
        """For people: how many of the wanted workers take part, and what is in the way of the others."""
        present = sum(peer.course is not None for peer in self._peers.values())
        if not self._short or self._phase in FINAL or present >= self._wanted:
            return ""
        seconds = max(0.0, self._launch_after - clock.now())
        following = f"next try in {seconds:.0f} s" if seconds else "the next one is being tried"
        return f"{present} of {self._wanted} workers: {self._short}; {following}"

    def _cause(self, slot: _Slot, end: Ended) -> tuple[Cause, str]:
        """The cluster knows how a worker ended, the master knows why."""
        if slot.evicted is not None:
            return slot.evicted, "was evicted"
        if end.cause is Cause.FINISHED:
            if slot.draining or self._stopping:
                return Cause.DRAINED, "drained and left"
            return Cause.CRASHED, f"{end.text} before the job was over"
        if end.cause is Cause.INVALID and slot.accepted:
            return end.cause, "could not go on"
        return end.cause, end.text

    async def _tick(self) -> None:
        self._reconcile()
        while True:
            before = clock.now()
            await asyncio.sleep(TICK_SECONDS)
            now = clock.now()
            if now - before > max(self.options.deadlines.heartbeat, 5 * TICK_SECONDS):
                continue  # this process was held up itself: hear what waits before anybody is called silent
            pulses = {uid: peer.pulse for uid, peer in self._peers.items()}
            holders = frozenset(uid for uid, m in self._state.members.items() if m.has_state)
            deaf = health.deaf(pulses, now, self.options.deadlines, holders)
            if self._deaf and not deaf:  # those whose heartbeats come a moment later get as long again
                for peer in self._peers.values():
                    peer.pulse = replace(peer.pulse, heard=now)
                pulses = {uid: peer.pulse for uid, peer in self._peers.items()}
            self._deaf = deaf
            patience = self._state.options.patience
            for verdict in health.judge(
                pulses, now, self.options.deadlines, self._usual_step(), holders, patience
            ):
                cause = Cause.STUCK if verdict.stuck else Cause.SILENT
                self._evict(verdict.uid, cause, verdict.reason)
            self._handle(membership.Tick(self._usual_step()))
            self._watch_export(now)
            self._tell_waiting(now)
            self._reconcile()

    def _later(self, effect: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(effect)
        self._effects.add(task)
        task.add_done_callback(self._took_effect)

    def _took_effect(self, task: asyncio.Task[None]) -> None:
        self._effects.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the cluster could not do what it was told: %s", error, exc_info=error)

    # ------------------------------------------------------------------------------------------- telling

    def _usual_step(self) -> float:
        times = [p.last.step_seconds for p in self._peers.values() if p.last and p.last.step_seconds]
        return statistics.median(times) if times else 0.0

    def _tell_of_start(self, worker_id: int, kind: str, text: str) -> None:
        """While newcomers cannot begin, each try is the same story: the log has it, people need it once."""
        slot = self._slots.get(worker_id)
        if self._refusals and slot is not None and not slot.accepted:
            log.debug("%s: %s", kind, text)
        else:
            self._tell(kind, text)

    def note(self, kind: str, text: str) -> None:
        """Something that the cluster wants people to know."""
        self._tell(kind, text)

    def _tell(self, kind: str, text: str) -> None:
        kind, text = outside.name(kind), outside.story(text)  # workers and users said it
        self._serial += 1
        event = EventRecord(self._serial, clock.wall(), kind, text)
        self._events = [*self._events[-LAST_EVENTS + 1 :], event]
        log.log(logging.WARNING if kind == protocol.WARNING else logging.INFO, "%s: %s", kind, text)
        self._on_event(event)

    def status(self) -> JobStatus:
        """The job as it is now."""
        plan = self._state.plan
        workers = []
        for uid, member in self._state.members.items():
            peer = self._peers.get(uid)
            rank = plan.rank_of(uid) if plan is not None else None
            last = peer.last if peer is not None else None
            facts = self._cluster.facts(member.seat.worker_id)
            workers.append(
                WorkerStatus(
                    worker_id=member.seat.worker_id,
                    host=member.seat.host,
                    standing=member.standing.value,
                    rank=rank if rank is not None and member.standing is not Standing.WAITING else -1,
                    activity=last.activity.value if last is not None else "",
                    step=last.step if last is not None else 0,
                    pid=facts.pid,
                    draining=member.draining,
                    name=facts.name,
                )
            )
        known = {w.worker_id for w in workers}
        workers += [
            WorkerStatus(i, "", "starting", -1, facts.condition, 0, facts.pid, slot.draining, facts.name)
            for i, slot, facts in ((i, slot, self._cluster.facts(i)) for i, slot in self._slots.items())
            if i not in known
        ]
        place, tally = self._place, self._tally()
        ring = sum(w.rank >= 0 for w in workers) or len(plan.members if plan is not None else ())
        batch = self._length.batch_of(ring) if self._length is not None else 0
        steps, records = self._rates(tally, batch)
        return JobStatus(
            job_name=self.options.job_name,
            phase=self._phase.value,
            wanted=self._wanted,
            minimum=self.options.min_workers,
            generation=self._state.generation,
            step=place.step,
            total_steps=(
                self._length.total(place.step, place.position, ring) if self._length else self._total_steps
            ),
            loss=place.loss,
            records_per_second=records,
            steps_per_second=steps,
            waiting_for=self._waiting_for,
            short=self._shortage(),
            elapsed=clock.now() - self._began,
            workers=sorted(workers, key=lambda w: w.worker_id),
            events=self._events,
            metrics=self._metrics[max(self._metrics)] if self._metrics else {},
            metrics_step=max(self._metrics, default=-1),
            reason=self._reason,
            path=self._path,
            position=place.position,
            length=self._length,
            tally=tally,
        )

    def _tally(self) -> Tally:
        first = self._first or self._place
        pauses: dict[int, float] = {}
        for reform in self._reforms:
            pauses[reform.generation] = max(reform.pause, pauses.get(reform.generation, 0.0))
        return Tally(
            steps=max(0, self._place.step - first.step),
            records=max(0, self._place.position - first.position),
            trained=self._trained.read(clock.now()),
            pauses=list(pauses.values()),
            losses=self._losses,
        )

    def _rates(self, tally: Tally, batch: int) -> tuple[float, float]:
        """Steps and records per second: of the last steps, and when training is over those of all."""
        if self._phase is Phase.TRAINING:
            usual = self._usual_step()
            return (1 / usual, batch / usual) if usual else (0.0, 0.0)
        if self._phase in FINAL or self._phase is Phase.FINISHING:
            return (
                (tally.steps / tally.trained, tally.records / tally.trained) if tally.trained else (0.0, 0.0)
            )
        return 0.0, 0.0


def _course(ready: protocol.Ready) -> Course:
    """What a worker must have in common with the rest."""
    return {
        "training data, --seed or --shuffle": f"{DIGEST}{ready.fingerprint}",
        "records of a step": str(ready.global_batch),
        "steps of the job": str(ready.total_steps),
        **ready.model,
    }


def _line(text: str) -> str:
    """The first line, and not too much of it."""
    first = text.strip().partition("\n")[0]
    return first if len(first) <= SHOWN_REASON else first[: SHOWN_REASON - 1] + "…"


def _lines(text: str) -> str:
    """What follows a sentence on lines of its own."""
    told = text.strip("\n").rstrip()
    return f"\n{told}" if told else ""


def event_line(event: EventRecord) -> bytes:
    return msgspec.json.encode(event) + b"\n"


__all__ = ["FINAL", "Job", "JobOptions", "Phase", "Result", "event_line"]
