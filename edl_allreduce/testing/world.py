"""A master and workers without processes or network: both real machines, and wires that can be cut.

The master is `core.membership`, each worker is `core.attendance`; simulated are only the arithmetic of a
step, the connections of a ring and the wires. Everything that can happen next is an *action*; who picks
actions (Hypothesis, an exhaustive search, a fair scheduler) is not the world's business. Messages of one
worker stay in order, those of different workers overtake each other at will. After every event all
properties are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

from edl_allreduce.core import protocol
from edl_allreduce.core.attendance import events as happens
from edl_allreduce.core.attendance import machine as attendance
from edl_allreduce.core.attendance import queries
from edl_allreduce.core.attendance.state import FINAL, Leave, Stage
from edl_allreduce.core.attendance.state import State as Attendance
from edl_allreduce.core.membership import machine as membership
from edl_allreduce.core.membership import types as m
from edl_allreduce.core.membership.types import Options, Standing, State
from edl_allreduce.core.protocol import Plan, Ready, Seat


class Life(Enum):
    """Whether a worker's process runs."""

    UP = "up"
    FROZEN = "frozen"
    """Does nothing and closes no connection."""
    DEAD = "dead"


class Doing(Enum):
    """Where a worker's training thread is."""

    PREPARING = "preparing"
    IDLE = "idle"
    """Asks for the next order."""
    EXPECTING = "expecting"
    """A newcomer that waits for somebody of the old ring."""
    JOINING = "joining"
    TRAINING = "training"


@dataclass(frozen=True)
class Worker:
    """A worker process: its machine, its training thread, its connections."""

    machine: Attendance
    life: Life = Life.UP
    doing: Doing = Doing.PREPARING
    order: protocol.NewPlan | None = None
    """What its training thread follows, while it expects others, connects or trains."""
    generation: int = 0
    """The last generation that it followed."""
    step: int = 0
    has_state: bool = False
    """True, whatever the master believes."""
    odd: bool = False
    """It would train something else: a ring of odd and other workers forms, but cannot make a step."""
    aborted: int = 0
    """Its connections to rings up to this generation are closed."""
    connecting: Plan | None = None
    """The ring to which it connects beforehand."""
    stands: int = 0
    """The last generation to which it connected beforehand."""
    failed: int = 0
    """The last generation to which it could not connect beforehand."""
    connected: bool = False
    """Its wire to the master works."""
    attended: bool = False
    """The master knows of this connection."""
    inbox: tuple[protocol.FromMaster, ...] = ()
    outbox: tuple[protocol.FromWorker | m.Away, ...] = ()

    @property
    def uid(self) -> str:
        return self.machine.seat.uid

    @property
    def up(self) -> bool:
        return self.life is Life.UP

    @property
    def ring(self) -> Plan | None:
        """The ring to which it connects, or in which it trains."""
        inside = self.doing in (Doing.JOINING, Doing.TRAINING)
        return self.order.plan if inside and self.order is not None else None

    @property
    def newest(self) -> int:
        return self.machine.newest.plan.generation if self.machine.newest is not None else 0

    def begun(self, plan: Plan) -> bool:
        """Whether it connects, or has connected, to this ring beforehand."""
        return self.connecting == plan or self.stands == plan.generation

    def finished(self, plan: Plan) -> bool:
        """Whether it trained the last step in this ring, or found that there was none to train."""
        return self.machine.stage is Stage.DONE and self.machine.plan == plan

    def gave_up(self, plan: Plan) -> bool:
        """Whether it will never come to this ring, or has left it: its ends of the connections are closed."""
        outside = (
            self.generation >= plan.generation and self.ring != plan and self.doing is not Doing.EXPECTING
        )
        return self.life is Life.DEAD or self.aborted >= plan.generation or outside


@dataclass(frozen=True)
class Course:
    """How far a ring is: what its first member to complete a step settled for all of them."""

    step: int
    boundary: int | None = None
    """The step after which it ends, once that is voted."""
    everybody_leaves: bool = False
    stop: bool = False
    """All stop here, as somebody was told to."""


Action = tuple[str, str]
"""A verb and a worker's uid (or "" for the master)."""

TICKS = {"tick": 1.1, "while": 15.0, "long tick": 61.0, "very long tick": 700.0}
"""A while is longer than a silent worker is taken for a living one, and shorter than one trains on alone."""
COLLECTIVE_SECONDS = 30.0
"""After so long a connection to a silent peer fails."""
LATE_SECONDS = 15.0
"""A worker whose grace period is over by so much has ended, whatever else happened."""
MEMBERSHIP = (
    protocol.Hello, Ready, protocol.Entered, protocol.Joined, protocol.Out, protocol.Done, protocol.Draining,
)  # fmt: skip


class World:
    """One job."""

    def __init__(self, options: Options, *, steps: int = 2, lockstep: bool = False) -> None:
        self.now = 1000.0
        self.steps = steps
        self.lockstep = lockstep
        """Fewer interleavings: see `_in_step`."""
        self.options = options
        self.state = State(options)
        self.workers: dict[str, Worker] = {}
        self.courses: dict[int, Course] = {}
        self.roots: dict[int, str] = {}
        """For each ring that connected: whose state all take."""
        self.plans: dict[int, Plan] = {}
        self.faultless_since: float | None = None
        self.finished: m.Finish | None = None
        self.failure = ""
        """Why workers that are done have nothing to export."""
        self.restarts = 0
        self.inherited: frozenset[int] = frozenset()
        """Plans of earlier masters, who knew better who was gone."""
        self.failed = False
        self.silent_since: dict[str, float] = {}
        """Since when workers cannot be heard."""
        self.unnoticed: tuple[m.Away | m.Lost, ...] = ()
        """Ends of connections and processes that the master has yet to notice, in any order."""
        self.visited: set[str] = set()
        """Rare situations that came up, in this world or in one that was made of it."""
        self._story: tuple[Any, tuple[object, ...]] | None = None

    def clone(self) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.workers = dict(self.workers)
        other.courses = dict(self.courses)
        other.roots = dict(self.roots)
        other.plans = dict(self.plans)
        other.silent_since = dict(self.silent_since)
        return other

    def _note(self, *words: object) -> None:
        self._story = (self._story, words)

    @property
    def story(self) -> str:
        """What happened so far, for a human."""
        lines, at = [], self._story
        while at is not None:
            at, words = at
            lines.append(" ".join(map(str, words)))
        return "\n".join(reversed(lines))

    @property
    def ended(self) -> bool:
        """Whether nothing that happens now matters any more."""
        return self.finished is not None

    # --------------------------------------------------------------------------------------- actions

    def enabled(self) -> list[Action]:
        """Everything that the course of things may bring next."""
        ends = [("notice", str(place)) for place in range(len(self.unnoticed))]
        return ends + [(verb, w.uid) for w in self.workers.values() for verb in self._verbs(w)]

    def _verbs(self, w: Worker) -> Iterator[str]:
        if w.outbox and w.connected:
            yield "deliver"
        if not w.up:
            if w.life is Life.FROZEN and w.uid in self.state.members:
                yield "give up"
            return
        if not w.connected and not w.machine.over:
            yield "reconnect"
        if w.inbox:
            yield "read"
        if w.connecting is not None and (self._connects(w.connecting) or self._fails(w, w.connecting)):
            yield "connect"
        ring = w.ring
        if w.doing is Doing.PREPARING:
            yield "get ready"
        elif w.doing is Doing.IDLE:
            if self._pending(w) is not None:
                yield "follow"
        elif ring is None:
            superseded = queries.superseded(w.machine, w.generation, self.now)
            if queries.company(w.machine, w.generation) or superseded:
                yield "go on"
        else:
            at_odds = w.doing is Doing.TRAINING and self._at_odds(ring)
            if w.doing is Doing.JOINING and self._can_agree(w, ring):
                yield "agree"
            if w.doing is Doing.TRAINING and self._can_step(w, ring):
                yield "step"
            if w.aborted >= ring.generation or w.failed == ring.generation or self._broken(ring) or at_odds:
                yield "break"

    def do(self, verb: str, uid: str = "") -> None:
        self._note(verb, uid)
        try:
            self._do(verb, uid)
        except AssertionError as error:
            error.add_note(self.story)
            self.failed = True
            raise

    def _do(self, verb: str, uid: str) -> None:
        if verb in TICKS:
            self._pass(TICKS[verb])
        elif verb == "notice":
            end = self.unnoticed[int(uid)]
            self.unnoticed = tuple(e for place, e in enumerate(self.unnoticed) if place != int(uid))
            self._tell(end)
            self._tell_unheard(self.state.unheard)
        elif verb == "launch":
            self._launch()
        elif verb == "restart":
            self._restart()
        else:
            method = getattr(self, "_do_" + verb.replace(" ", "_"))
            ring = self.workers[uid].ring
            whole = self.lockstep and verb in ("agree", "step") and ring is not None
            for one in [seat.uid for seat in ring.members] if whole and ring else [uid]:
                method(self.workers[one])
        if self.lockstep:
            self._in_step()

    def _in_step(self) -> None:
        """What is not worth an order of its own.

        A ring agrees and steps as a whole: whoever lags is one that is frozen or killed before. What the
        master says is heard at once: it is the training thread that takes its time to follow. A ring in which
        all take part connects, and who is evicted ends: whoever does not is a frozen one. Messages that mean
        nothing arrive at once: they would mean nothing later either.
        """
        busy = True
        while busy:
            busy = False
            for w in list(self.workers.values()):
                w = self.workers[w.uid]
                if not w.up:
                    continue
                if w.inbox:
                    self._do_read(w)
                    busy = True
                elif w.connecting is not None and self._connects(w.connecting):
                    self._do_connect(w)
                    busy = True
                elif isinstance(w.machine.last, protocol.Evicted):
                    self._die(w)
                    busy = True
            for w in list(self.workers.values()):
                while (w := self.workers[w.uid]).connected and w.outbox and self._means_nothing(w):
                    self._do_deliver(w)
                    busy = True

    def _means_nothing(self, w: Worker) -> bool:
        """Whether what this worker said first changes nothing, now or later: it is stale by its number, or
        tells newcomers of a place where no newcomer is."""
        match w.outbox[0]:
            case protocol.Entered(generation) | protocol.Out(generation) | protocol.Done(generation):
                member = self.state.members.get(w.uid)
                said = member is not None and member.standing is Standing.DONE
                return member is None or generation < member.generation or said
            case protocol.KvSet(generation):
                plan = self.state.plan
                if plan is None or plan.generation != generation:
                    return plan is not None and plan.generation > generation
                return all(self.workers[seat.uid].has_state for seat in plan.members)
            case Ready():
                member = self.state.members.get(w.uid)
                return member is not None and member.standing is not Standing.PREPARING
            case protocol.Draining():
                member = self.state.members.get(w.uid)
                return member is not None and member.draining
        return False

    # ------------------------------------------------------------------------------ the worker's machine

    def _happens(self, w: Worker, event: happens.Event, now: float | None = None) -> Worker:
        """Something happens to a worker: its machine says what follows."""
        state, instructions = attendance.handle(w.machine, event, self.now if now is None else now)
        attendance.validate(state)
        w = replace(w, machine=state)
        for instruction in instructions:
            w = self._perform(w, instruction)
        self.workers[w.uid] = w
        return w

    def _perform(self, w: Worker, instruction: happens.Instruction) -> Worker:
        match instruction:
            case happens.Connect():
                said = tuple(queries.introduction(w.machine, w.step))
                return replace(w, connected=True, attended=False, inbox=(), outbox=said)
            case happens.Send(message):
                return replace(w, outbox=(*w.outbox, message)) if w.connected else w
            case happens.Prepare(plan) if plan.size == 1:
                return self._happens(replace(w, stands=plan.generation), happens.Prepared(plan.generation))
            case happens.Prepare(plan):
                if w.connecting is not None:  # the one before is given up
                    w = self._happens(w, happens.Prepared(w.connecting.generation))
                return replace(w, connecting=plan)
            case happens.Abort(generation):
                return replace(w, aborted=max(w.aborted, generation))
            case happens.Anomaly(text):
                raise AssertionError(f"{w.uid}: {text}")
        return w

    def _put(self, w: Worker) -> None:
        self.workers[w.uid] = w

    def _pending(self, w: Worker) -> object:
        return queries.pending(w.machine, w.generation, self.now)

    # ---------------------------------------------------------------------------------------- what happens

    def _pass(self, seconds: float) -> None:
        """Time goes on, for the workers and for the master."""
        self.now += seconds
        self._time_for_workers(seconds)
        self._tell(m.Tick())

    def _time_for_workers(self, seconds: float) -> None:
        """A worker without a master for too long ends by itself."""
        for w in list(self.workers.values()):
            if not w.up:
                continue
            if w.connecting is not None and seconds >= COLLECTIVE_SECONDS:
                w = self._fail(w, w.connecting)
            w = self._happens(w, happens.Tick())
            if queries.deserted(w.machine, self.now):
                self.visited.add("a deserted worker")
            since = w.machine.lost_at
            if since is not None and self.now > since + w.machine.grace + LATE_SECONDS:
                self._die(w)

    def _launch(self) -> None:
        number = len(self.workers)
        seat = Seat("abcdefghijklmnop"[number], number, "host")
        self._happens(Worker(self._attendance(seat)), happens.Begun())

    def _attendance(self, seat: Seat) -> Attendance:
        return Attendance(seat, self.options.deadlines, self.options.master_grace)

    def _restart(self) -> None:
        """The master is killed; another one begins with nothing but its options."""
        self.restarts += 1
        recover = replace(self.options, recover_until=self.now + self.options.deadlines.rejoin)
        self.state = State(recover)
        self.inherited = frozenset(self.plans)
        self.unnoticed = ()
        for w in self.workers.values():
            self._put(self._cut(w))
        self._tell_unheard(frozenset(w.machine.seat.worker_id for w in self.workers.values()))

    def _tell_unheard(self, known: frozenset[int]) -> None:
        """Where a master starts workers, the cluster says which of those of an earlier one live."""
        dead = {w.machine.seat.worker_id for w in self.workers.values() if w.life is Life.DEAD}
        if self.options.wanted and known - dead != self.state.unheard:
            self._tell(m.Unheard(known - dead))

    def _cut(self, w: Worker) -> Worker:
        """Without its wire, and without all that was on the way; what it says now is lost."""
        self.silent_since.setdefault(w.uid, self.now)
        return replace(w, connected=False, attended=False, inbox=(), outbox=())

    def _do_cut_off(self, w: Worker) -> None:
        """Its connection ends; it may be back before the master notices, or long after."""
        self._put(self._cut(w))
        self.unnoticed += (m.Away(w.uid, w.machine.link),)

    def _do_reconnect(self, w: Worker) -> None:
        """It notices the end of its connection, and opens another; the second time after a moment."""
        if w.machine.retry_at is None:
            w = self._happens(w, happens.Closed(w.machine.link, clean=False))
        if w.machine.retry_at is not None:
            self._happens(w, happens.Tick(), max(self.now, w.machine.retry_at))

    def _do_deliver(self, w: Worker) -> None:
        message, rest = w.outbox[0], w.outbox[1:]
        w = replace(w, outbox=rest)
        match message:
            case m.Away():
                self._put(w)
                self._tell(message)
            case protocol.Hello():
                self._visit(w, message)
                self._put(replace(w, attended=True))
                self.silent_since.pop(w.uid, None)
                self._hears_hello(w, message)
            case protocol.KvSet(generation, key, value):
                self._put(w)
                plan = self.state.plan
                if plan is not None and plan.generation == generation:
                    entry = protocol.KvEntry(generation, key, value)
                    self._send(entry, [seat.uid for seat in plan.members])
            case _:
                self._put(w)
                self._hears(w, message)

    def _visit(self, w: Worker, hello: protocol.Hello) -> None:
        """Remember which rare situations this hello is said in."""
        plan, gone_for = hello.plan, self.now - self.silent_since.get(w.uid, self.now)
        if plan is not None and queries.doomed(w.machine, plan.generation):
            self.visited.add("a hello with a plan that was called off and not given up")
        if gone_for > self.options.deadlines.silent:
            self.visited.add("a hello after a while")

    def _do_read(self, w: Worker) -> None:
        self._happens(replace(w, inbox=w.inbox[1:]), happens.Heard(w.inbox[0]))

    def _do_connect(self, w: Worker) -> None:
        assert w.connecting is not None
        plan = w.connecting
        if self._fails(w, plan):
            self._fail(w, plan)
        else:
            w = replace(w, connecting=None, stands=plan.generation)
            self._happens(w, happens.Prepared(plan.generation))

    def _fail(self, w: Worker, plan: Plan) -> Worker:
        w = replace(w, connecting=None, failed=plan.generation)
        return self._happens(w, happens.Prepared(plan.generation))

    def _do_get_ready(self, w: Worker) -> None:
        if w.machine.draining:
            self._die(w)
        else:
            self._happens(replace(w, doing=Doing.IDLE), happens.IsReady(Ready()))

    def _do_follow(self, w: Worker) -> None:
        order = self._pending(w)
        if not isinstance(order, protocol.NewPlan):
            self._die(w)
            return
        w = replace(w, order=order, generation=order.plan.generation)
        if order.abort or w.has_state:
            self._enter(w, order.plan)
        else:
            self._put(replace(w, doing=Doing.EXPECTING))

    def _do_go_on(self, w: Worker) -> None:
        """The wait of a newcomer ends, well or not."""
        assert w.order is not None
        if queries.company(w.machine, w.generation):
            self._enter(w, w.order.plan)
        else:
            self._happens(replace(w, doing=Doing.IDLE), happens.HasDeclined(w.order.plan, w.step))

    def _enter(self, w: Worker, plan: Plan) -> None:
        w = self._happens(w, happens.Entering(plan, b"place" if w.has_state else None))
        if queries.doomed(w.machine, plan.generation):  # it was called off before this worker came to it
            self._happens(replace(w, doing=Doing.IDLE), happens.HasLeft(w.step, "a newer plan is on its way"))
        else:
            self._put(replace(w, doing=Doing.JOINING))

    def _do_break(self, w: Worker) -> None:
        if w.connecting is not None and w.connecting == w.ring:
            w = self._fail(w, w.connecting)
        self._happens(replace(w, doing=Doing.IDLE), happens.HasLeft(w.step, "connection reset"))

    def _do_agree(self, w: Worker) -> None:
        assert w.ring is not None
        generation = w.ring.generation
        if generation not in self.roots:
            self.roots[generation] = self._root(w.ring)
        root = self.workers[self.roots[generation]]
        step = max(w.step, root.step) if w.has_state else root.step
        w = replace(w, doing=Doing.TRAINING, has_state=True, step=step)
        w = self._happens(w, happens.HasJoined(generation, step))
        if step >= self.steps:
            self._finish(w)

    def _finish(self, w: Worker) -> None:
        self._happens(replace(w, doing=Doing.IDLE), happens.IsDone(w.step, failure=self.failure))

    def _do_step(self, w: Worker) -> None:
        assert w.ring is not None
        generation = w.ring.generation
        course = self.courses.get(generation)
        if course is None or course.step <= w.step:  # the first to complete this step settles its outcome
            course = self.courses[generation] = self._settled(w.ring, w.step + 1, course)
        if w.uid not in self.state.gone:
            self._check_one_ring(w.ring)
        w = replace(w, step=w.step + 1)
        if w.step >= self.steps or course.stop:
            self._finish(w)
        elif w.step == course.boundary:
            self.visited.add("a voted boundary")
            self._happens(replace(w, doing=Doing.IDLE), happens.HasLeft(w.step))
        else:
            self._put(w)

    def _settled(self, plan: Plan, step: int, before: Course | None) -> Course:
        """What the sum over all ranks' wishes says."""
        before = before or Course(0)
        peers = [self.workers[seat.uid] for seat in plan.members]
        draining = sum(w.machine.draining for w in peers)
        deserted = any(queries.deserted(w.machine, self.now) for w in peers)
        votes, stops = zip(*(queries.vote(w.machine, plan.generation) for w in peers), strict=True)
        boundary = before.boundary
        if boundary is None and (any(votes) or (before.everybody_leaves and deserted)):
            boundary = queries.boundary(step, draining=draining > 0)
        return Course(step, boundary, draining == plan.size, any(stops))

    def _do_spoil(self, w: Worker) -> None:
        """Somebody edited its files before it read them."""
        self._put(replace(w, odd=True))

    def _do_kill(self, w: Worker) -> None:
        self._die(w)

    def _do_freeze(self, w: Worker) -> None:
        self._put(replace(w, life=Life.FROZEN))

    def _do_thaw(self, w: Worker) -> None:
        """It comes back to life after it was given up, and finds its stream closed."""
        self._put(self._cut(replace(w, life=Life.UP)))

    def _do_give_up(self, w: Worker) -> None:
        """No heartbeat: the shell reports it lost. Nobody can kill it from here: it may thaw."""
        self._put(self._cut(w))
        self._tell(m.Lost(w.uid, "fell silent"))

    def _do_drain(self, w: Worker) -> None:
        self._happens(w, happens.Drained())

    def _die(self, w: Worker) -> None:
        """What it said arrives, then the end of its connection; that of the process is noticed on its own."""
        end = (m.Away(w.uid, w.machine.link),) if w.connected else ()
        dead = replace(w, life=Life.DEAD, doing=Doing.IDLE, order=None, connecting=None, inbox=())
        self._put(replace(dead, outbox=(*w.outbox, *end)))
        self.unnoticed += (m.Lost(w.uid, "is gone"),)

    # ------------------------------------------------------------------------------- how rings behave

    def _connects(self, plan: Plan) -> bool:
        """Whether all members take part in connecting this ring beforehand."""
        return all(w.up and w.begun(plan) for w in (self.workers[seat.uid] for seat in plan.members))

    def _fails(self, w: Worker, plan: Plan) -> bool:
        peers = [self.workers[seat.uid] for seat in plan.members]
        return any(peer.gave_up(plan) or peer.failed == plan.generation for peer in peers)

    def _broken(self, plan: Plan) -> bool:
        """Somebody closed its connections to this ring; a frozen worker does not."""
        return any(self.workers[seat.uid].gave_up(plan) for seat in plan.members)

    def _at_odds(self, plan: Plan) -> bool:
        return len({self.workers[seat.uid].odd for seat in plan.members}) > 1

    def _can_agree(self, w: Worker, plan: Plan) -> bool:
        if plan.generation in self.roots:
            root = self.workers[self.roots[plan.generation]]
            return w.uid == root.uid or (root.up and (root.ring == plan or root.finished(plan)))
        return all(
            peer.up
            and peer.ring == plan
            and peer.doing is Doing.JOINING
            and peer.connecting is None
            and peer.failed != plan.generation
            and peer.aborted < plan.generation
            for peer in (self.workers[seat.uid] for seat in plan.members)
        )

    def _can_step(self, w: Worker, plan: Plan) -> bool:
        course = self.courses.get(plan.generation)
        if course is not None and course.step > w.step:
            return True
        if self._at_odds(plan):
            return False
        return all(
            peer.up
            and peer.ring == plan
            and peer.doing is Doing.TRAINING
            and peer.step == w.step
            and peer.aborted < plan.generation
            for peer in (self.workers[seat.uid] for seat in plan.members)
        )

    def _root(self, plan: Plan) -> str:
        peers = [self.workers[seat.uid] for seat in plan.members]
        holders = [w for w in peers if w.has_state]
        if holders:
            return max(holders, key=lambda w: w.step).uid
        # Before the first step everybody's model is a fresh one: nothing is lost with it.
        waiting = [
            w.uid
            for w in self.workers.values()
            if w.step > 0 and w.uid in self.state.members and self._could_go_on(w)
        ]
        waiting = [] if plan.generation in self.inherited else waiting
        assert not waiting, f"training begins anew in {_ids(plan)} although {waiting} still holds the model"
        return peers[0].uid

    # ------------------------------------------------------------------------------------- the master

    def _hears_hello(self, w: Worker, hello: protocol.Hello) -> None:
        self._send(protocol.Welcome(), [w.uid])
        self._tell(m.Heard(w.uid, hello, w.machine.link))

    def _hears(self, w: Worker, message: protocol.FromWorker) -> None:
        assert isinstance(message, MEMBERSHIP)
        self._tell(m.Heard(w.uid, message))

    def _tell(self, event: m.Event) -> None:
        before = self.state
        self.state, actions = membership.handle(before, event, self.now)
        if not isinstance(event, m.Tick) or actions:
            self._note("   ", self.now, event)
        for action in actions:
            self._note("        =>", action)
        if self.state.waiting_for != before.waiting_for:
            self._note("        ..", self.state.waiting_for)
        membership.validate(self.state)
        for action in actions:
            match action:
                case m.Publish(plan, abort, reason):
                    self._check_plan(before, event, action)
                    self._send(protocol.NewPlan(plan, abort, reason), list(self.workers))
                case m.Abort(generation, uids, reason):
                    self._send(protocol.AbortRing(generation, reason), list(uids))
                case m.Evict(uid, reason):
                    self._check_eviction(uid, reason)
                    self._check_holder(before, uid)
                    self._send(protocol.Evicted(reason), [uid])
                    self._put(replace(self.workers[uid], attended=False))
                case m.Anomaly(uid, text):
                    raise AssertionError(f"{uid} {text}")
                case m.Finish():
                    self._check_finish(action)
                    self.finished = action

    def _send(self, message: protocol.FromMaster, uids: list[str]) -> None:
        for uid in uids:
            w = self.workers[uid]
            if w.attended and w.life is not Life.DEAD:
                self._put(replace(w, inbox=(*w.inbox, message)))

    # ------------------------------------------------------------------------------------- properties

    def _check_plan(self, before: State, event: m.Event, publish: m.Publish) -> None:
        plan, after = publish.plan, self.state
        assert plan.generation > before.generation, "generations grow"
        # A number of an earlier master that only the dead and the never heard know does no harm: those who
        # know it and come are turned away.
        met = [w for w in self.workers.values() if w.life is not Life.DEAD and w.uid in after.members]
        numbers = {number for w in met for number in (w.newest, w.generation)}
        assert plan.generation not in numbers, f"generation {plan.generation} exists already"
        self.plans[plan.generation] = plan
        seated = {seat.uid for seat in plan.members}
        for w in (self.workers[uid] for uid in seated):
            assert plan.generation > w.newest, (
                f"{w.uid} knows generation {w.newest} and would ignore this one"
            )
        assert len(seated) >= max(1, self.options.minimum), "a ring has at least the minimum"
        assert not seated & after.gone, "nobody who is gone is planned"
        known = after.members
        assert seated <= known.keys()
        for uid in seated & before.members.keys():
            was = before.members[uid]
            ready = isinstance(event, m.Heard) and isinstance(event.message, Ready) and event.uid == uid
            assert ready or was.standing is not Standing.PREPARING, f"{uid} still prepares"
        holders = {uid for uid, member in known.items() if member.has_state}
        if holders:
            assert plan.members[0].uid in holders, "rank 0 holds the model if anybody does"
        waiting = {u for u, x in known.items() if x.standing is Standing.WAITING and x.away is None}
        for uid in waiting - seated:
            assert known[uid].draining, f"{uid} is ready and was left out"
        assert all(known[uid].away is None for uid in seated), "who cannot hear of a plan is not part of it"
        taken_over = not publish.abort and before.plan is None
        assert not taken_over or self.now >= before.options.recover_until, "it goes on as it is for a while"
        if not publish.abort and before.plan is not None:
            old = {seat.uid for seat in before.plan.members}
            assert old != seated, "a needless plan"
            told = getattr(event, "uid", "")
            assert all(x.joined or x.seat.uid == told for x in before.alive()), "the last one is not joined"
            real = [self.workers[x.seat.uid] for x in before.alive()]
            assert all(w.has_state and w.generation >= before.plan.generation for w in real), "only believed"
            assert any(known[uid].has_state and not known[uid].draining for uid in seated) or any(
                known[uid].draining for uid in seated
            )
        assert publish.reason, "a decision has a reason"

    def _check_one_ring(self, plan: Plan) -> None:
        """Nobody trains beside this ring, but for those who were given up and do not know it yet."""
        for w in self.workers.values():
            ring = w.ring
            if w.up and w.doing is Doing.TRAINING and ring not in (None, plan) and ring is not None:
                beside = w.uid not in self.state.gone and self._can_step(w, ring)
                assert not beside, f"{_ids(plan)} and {_ids(ring)} train side by side"

    def _check_finish(self, finish: m.Finish) -> None:
        alive = {member.seat.uid for member in self.state.alive()}
        assert set(finish.uids) == alive and alive, "the finish is for all living members of the last ring"
        for uid in finish.uids:
            w = self.workers[uid]
            assert w.step >= self.steps, f"{uid} has {w.step} steps of {self.steps}"
        assert finish.step >= self.steps

    def _check_eviction(self, uid: str, reason: str) -> None:
        w, since = self.workers[uid], self.faultless_since
        behaves = w.up and since is not None and self.now > since
        stray = "of generation" in reason or "given up" in reason
        unproven = "rings in a row" in reason and any(x.odd for x in self.workers.values()) and w.step == 0
        assert not behaves or stray or w.odd or unproven, f"{uid} did nothing wrong: {reason}"

    def _check_holder(self, before: State, uid: str) -> None:
        """Whoever holds the model and cannot be heard is given up last."""
        w, member = self.workers[uid], before.members.get(uid)
        silent = member is not None and (member.expected or member.away is not None)
        if not silent or not self._could_go_on(w) or uid not in self.silent_since:
            return
        heard = [u for u, x in before.members.items() if x.away is None and not x.expected]
        waited = self.now - self.silent_since[uid]
        last = not any(self.workers[u].has_state for u in heard)
        assert not last or waited >= self.options.patience, f"{uid} holds the model: only {waited:.0f} s"

    def _could_go_on(self, w: Worker) -> bool:
        """Whether it lives, holds the model, and was neither let go nor turned out."""
        return w.up and w.has_state and not isinstance(self._pending(w), (Leave, *FINAL))

    def settle(self) -> None:
        """No more faults: all behave and time goes on. Then the job ends, or says what it waits for."""
        self.faultless_since = self.now
        plans = len(self.plans)
        self._note("-- no more faults")
        quiet = 0
        while self.finished is None and quiet < 60:
            quiet += 1
            while self.finished is None and (actions := self.enabled()):
                quiet = 0
                churn = len(self.plans) - plans > 4 + len(self.workers)
                assert not churn, f"the ring is re-formed again and again\n{self.story}"
                # Round by round, so that nobody starves.
                for verb, uid in actions:
                    if verb == "notice":
                        self.do(verb, "0")
                    elif verb in self._verbs(self.workers[uid]):
                        self.do(verb, uid)
            # Small steps first, so that only a wait that nothing else can end meets its deadline.
            self._pass(0.5 if quiet < 10 else 20.0)
        self._check_end()

    def _check_end(self) -> None:
        usable = [w for w in self.workers.values() if w.up and not w.machine.draining]
        if self.finished is None:
            minimum = max(1, self.options.minimum)
            able = [w.uid for w in usable]
            assert len(usable) < minimum, f"{able} could train, but nothing happens\n{self.story}"
            assert self.state.waiting_for, f"waits without saying for what\n{self.story}"

    # ------------------------------------------------------------------------------------ exploration

    def key(self) -> object:
        """Two worlds with the same key have the same future. Rings in which nobody is do not count."""
        counts = {0} | {g for w in self.workers.values() if w.life is not Life.DEAD for g in _generations(w)}
        if self.state.plan is not None:
            counts.add(self.state.plan.generation)
        ordered = sorted(counts)
        return (
            tuple(_worker_key(w, self.now, ordered) for w in self.workers.values()),
            frozenset(self.unnoticed),
            _master_key(self.state, self.now),
            tuple((g, c) for g, c in self.courses.items() if g in counts),
            tuple((g, root) for g, root in self.roots.items() if g in counts),
        )


def _generations(w: Worker) -> Iterator[int]:
    """Rings that this worker is in, connects to, or may come to."""
    yield w.newest
    if w.order is not None:
        yield w.order.plan.generation
    if w.connecting is not None:
        yield w.connecting.generation


def _floor(generation: int, counts: list[int]) -> int:
    """The last ring that counts up to this one."""
    return max((g for g in counts if g <= generation), default=0)


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else round(now - since, 1)


def _name(plan: Plan | None) -> str:
    """Short for a plan: comparing and hashing all its seats takes most of the time otherwise."""
    if plan is None:
        return ""
    name: str | None = plan.__dict__.get("_name")
    if name is None:
        name = plan.__dict__["_name"] = f"{plan.generation}{_ids(plan)}"
    return name


def _worker_key(w: Worker, now: float, counts: list[int]) -> object:
    if w.life is Life.DEAD:
        return w.connected and w.outbox, w.machine.link, w.odd
    x = w.machine
    seen = x.__dict__.get("_key")
    if seen is None or seen[0] != now:
        machine = (
            x.stage, _name(x.plan), x.newest and (_name(x.newest.plan), x.newest.abort),
            x.preparing, x.prepared, x.doomed, x.gave_up, x.has_state, x.here and x.here[0], x.draining,
            x.last, x.link, x.linked, _age(x.lost_at, now), x.retry_at is None, x.over,
        )  # fmt: skip
        seen = x.__dict__["_key"] = now, machine
    return (
        seen[1], w.life, w.doing, w.order and (_name(w.order.plan), w.order.abort),
        w.generation, w.step, w.has_state, w.odd, _floor(w.aborted, counts),
        _name(w.connecting), w.stands if w.stands in counts else 0, w.failed if w.failed in counts else 0,
        w.connected, w.attended, w.inbox, w.outbox,
    )  # fmt: skip


def _master_key(state: State, now: float) -> object:
    members = tuple(
        (uid, _age(x.since, now), x.standing, x.generation, x.has_state, x.step, x.entered, x.joined,
         x.proven, x.draining, x.expected, x.link, _age(x.away, now))
        for uid, x in sorted(state.members.items())
    )  # fmt: skip
    return (
        members,
        _name(state.plan),
        state.generation,
        state.leads,
        _name(state.leaving),
        _age(state.leaver_lost, now),
        state.gone,
        _age(state.broken_since, now),
        _age(state.entered_since, now),
        min(_age(state.heard_since, now) or 0.0, 1000.0),
        state.aborted,
        state.moved,
        state.stalls,
        state.finished,
        state.unheard,
        max(0.0, state.options.recover_until - now),
    )


def _ids(plan: Plan) -> str:
    return "".join(seat.uid for seat in plan.members)
