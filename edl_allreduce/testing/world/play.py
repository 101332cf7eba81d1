"""The world itself: what can happen next, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

from edl_allreduce.core import protocol
from edl_allreduce.core.attendance import events as happens
from edl_allreduce.core.attendance import machine as attendance
from edl_allreduce.core.attendance import queries
from edl_allreduce.core.attendance.state import FINAL, Leave
from edl_allreduce.core.attendance.state import State as Attendance
from edl_allreduce.core.membership import invariants
from edl_allreduce.core.membership import machine as membership
from edl_allreduce.core.membership import types as m
from edl_allreduce.core.membership.types import Options, State
from edl_allreduce.core.protocol import Plan, Ready, Seat
from edl_allreduce.testing.world import properties, rings, sameness
from edl_allreduce.testing.world.worker import Course, Doing, Life, Worker

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
        ahead = w.connecting
        if ahead is not None and (rings.connects(self, ahead) or rings.fails(self, ahead)):
            yield "connect"
        ring = w.ring
        if w.doing is Doing.PREPARING:
            yield "get ready"
        elif w.doing is Doing.IDLE:
            if self.pending(w) is not None:
                yield "follow"
        elif ring is None:
            superseded = queries.superseded(w.machine, w.generation, self.now)
            if queries.company(w.machine, w.generation) or superseded:
                yield "go on"
        else:
            at_odds = w.doing is Doing.TRAINING and rings.at_odds(self, ring)
            if w.doing is Doing.JOINING and rings.can_agree(self, w, ring):
                yield "agree"
            if w.doing is Doing.TRAINING and rings.can_step(self, w, ring):
                yield "step"
            if (
                w.aborted >= ring.generation
                or w.failed == ring.generation
                or rings.broken(self, ring)
                or at_odds
            ):
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
                elif w.connecting is not None and rings.connects(self, w.connecting):
                    self._do_connect(w)
                    busy = True
                elif isinstance(w.machine.last, protocol.Evicted):
                    self._die(w)
                    busy = True
            for w in list(self.workers.values()):
                while (w := self.workers[w.uid]).connected and w.outbox and sameness.means_nothing(self, w):
                    self._do_deliver(w)
                    busy = True

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

    def pending(self, w: Worker) -> object:
        return queries.pending(w.machine, w.generation, self.now)

    def could_go_on(self, w: Worker) -> bool:
        """Whether it lives, holds the model, and was neither let go nor turned out."""
        return w.up and w.has_state and not isinstance(self.pending(w), (Leave, *FINAL))

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
        if rings.fails(self, plan):
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
        order = self.pending(w)
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
            self.roots[generation] = rings.root(self, w.ring)
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
            course = self.courses[generation] = rings.settled(self, w.ring, w.step + 1, course)
        if w.uid not in self.state.gone:
            properties.check_one_ring(self, w.ring)
        w = replace(w, step=w.step + 1)
        if w.step >= self.steps or course.stop:
            self._finish(w)
        elif w.step == course.boundary:
            self.visited.add("a voted boundary")
            self._happens(replace(w, doing=Doing.IDLE), happens.HasLeft(w.step))
        else:
            self._put(w)

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
        invariants.validate(self.state)
        invariants.validate_at(self.state, self.now)
        for action in actions:
            match action:
                case m.Publish(plan, abort, reason):
                    properties.check_plan(self, before, event, action)
                    self._send(protocol.NewPlan(plan, abort, reason), list(self.workers))
                case m.Abort(generation, uids, reason):
                    self._send(protocol.AbortRing(generation, reason), list(uids))
                case m.Evict(uid, reason):
                    properties.check_eviction(self, uid, reason)
                    properties.check_holder(self, before, uid)
                    self._send(protocol.Evicted(reason), [uid])
                    self._put(replace(self.workers[uid], attended=False))
                case m.Anomaly(uid, text):
                    raise AssertionError(f"{uid} {text}")
                case m.Finish():
                    properties.check_finish(self, action)
                    self.finished = action

    def _send(self, message: protocol.FromMaster, uids: list[str]) -> None:
        for uid in uids:
            w = self.workers[uid]
            if w.attended and w.life is not Life.DEAD:
                self._put(replace(w, inbox=(*w.inbox, message)))

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
        properties.check_end(self)

    def key(self) -> object:
        """Two worlds with the same key have the same future."""
        return sameness.key(self)
