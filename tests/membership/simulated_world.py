"""A master and workers without processes or network: the real machine, and workers that act like real ones.

Everything that can happen next is an *action*; who picks actions (Hypothesis, an exhaustive search, a fair
scheduler) is not the world's business. Messages of one worker stay in order, those of different workers
overtake each other at will. After every event of the master all properties are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import said

from edl_allreduce.core.membership import machine
from edl_allreduce.core.membership import types as m
from edl_allreduce.core.membership.types import Options, Standing, State
from edl_allreduce.core.protocol import Plan, Ready, Seat


class Life(Enum):
    UP = "up"
    FROZEN = "frozen"
    """Does nothing and closes no connection."""
    DEAD = "dead"


class Doing(Enum):
    PREPARING = "preparing"
    IDLE = "idle"
    JOINING = "joining"
    TRAINING = "training"
    DONE = "done"


@dataclass(frozen=True)
class Worker:
    """What a real worker process knows. `has_state` and `step` are true, whatever the master believes."""

    seat: Seat
    life: Life = Life.UP
    doing: Doing = Doing.PREPARING
    ring: Plan | None = None
    newest: Plan | None = None
    gentle: bool = False
    """The newest plan does not call off the ring before it."""
    doomed: int = 0
    followed: int = 0
    """The last generation that it followed."""
    step: int = 0
    has_state: bool = False
    draining: bool = False
    odd: bool = False
    """It would train something else: a ring of odd and other workers forms, but cannot make a step."""
    connected: bool = True
    link: int = 1
    """The number of its connection to the master."""
    alone_since: float | None = None
    """Since when it has none."""
    inbox: tuple[m.Action, ...] = ()
    outbox: tuple[m.Event, ...] = ()

    @property
    def uid(self) -> str:
        return self.seat.uid

    @property
    def up(self) -> bool:
        return self.life is Life.UP

    def inside(self, plan: Plan) -> bool:
        """Connects to this ring or is in it."""
        return self.ring == plan and self.doing in (Doing.JOINING, Doing.TRAINING)


Action = tuple[str, str]
"""A verb and a worker's uid (or "" for the master)."""

TICKS = {"tick": 1.1, "long tick": 61.0, "very long tick": 700.0}


class World:
    """One job."""

    def __init__(self, options: Options, *, steps: int = 2, lockstep: bool = False) -> None:
        self.now = 1000.0
        self.steps = steps
        self.lockstep = lockstep
        """Fewer interleavings: orders are heard at once, and a ring agrees and steps as a whole."""
        self.options = options
        self.state = State(options)
        self.workers: dict[str, Worker] = {}
        self.progress: dict[int, tuple[int, bool]] = {}
        """For each ring: the last step that somebody completed, and whether all switch after it."""
        self.roots: dict[int, str] = {}
        """For each ring that connected: whose state all take."""
        self.plans: dict[int, Plan] = {}
        self.faultless_since: float | None = None
        self.finished: m.Finish | None = None
        self.restarts = 0
        self.inherited: frozenset[int] = frozenset()
        """Plans of earlier masters, who knew better who was gone."""
        self.failed = False
        self.unnoticed: tuple[m.Away | m.Lost, ...] = ()
        """Ends of connections and processes that the master has yet to notice, in any order."""
        self._story: tuple[object, tuple[object, ...]] | None = None

    def clone(self) -> World:
        other = World.__new__(World)
        other.__dict__.update(self.__dict__)
        other.workers = dict(self.workers)
        other.progress = dict(self.progress)
        other.roots = dict(self.roots)
        other.plans = dict(self.plans)
        return other

    def _note(self, *words: object) -> None:
        self._story = (self._story, words)

    @property
    def story(self) -> str:
        """What happened so far, for a human."""
        lines, at = [], self._story
        while at is not None:
            at, words = at  # type: ignore[assignment]
            lines.append(" ".join(map(str, words)))
        return "\n".join(reversed(lines))

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
        if not w.connected:
            yield "reconnect"
        if w.inbox:
            yield "read"
        if w.doing is Doing.PREPARING:
            yield "get ready"
        elif w.doing in (Doing.IDLE, Doing.DONE):
            plan = self._next_plan(w)
            if self._leaves(w) or (plan is not None and not self._waits_for_company(w, plan)):
                yield "follow"
        elif w.ring is not None:
            at_odds = w.doing is Doing.TRAINING and self._at_odds(w.ring)
            if w.doomed >= w.ring.generation or self._broken(w.ring) or at_odds:
                yield "break"
            if w.doing is Doing.JOINING and self._can_agree(w, w.ring):
                yield "agree"
            if w.doing is Doing.TRAINING and self._can_step(w, w.ring):
                yield "step"

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
            for w in list(self.workers.values()):
                while self.workers[w.uid].inbox and self.workers[w.uid].up:
                    self._do_read(self.workers[w.uid])

    def _pass(self, seconds: float) -> None:
        """Time goes on; a worker without a master for too long ends by itself."""
        self.now += seconds
        for w in list(self.workers.values()):
            alone = w.alone_since is not None and self.now - w.alone_since > self.options.master_grace
            if alone and w.up:
                self._die(w)
        self._tell(m.Tick())

    def _launch(self) -> None:
        number = len(self.workers)
        seat = Seat("abcdefghijklmnop"[number], number, "host")
        self._put(Worker(seat, outbox=(said.hello(seat, link=1),)))

    def _restart(self) -> None:
        """The master is killed; another one begins with nothing but its options."""
        self.restarts += 1
        recover = replace(self.options, recover_until=self.now + self.options.deadlines.rejoin)
        self.state = State(recover)
        self.inherited = frozenset(self.plans)
        self.unnoticed = ()
        for w in self.workers.values():
            self._put(self._cut(w))

    def _cut(self, w: Worker) -> Worker:
        """Without its connection, and without all that was on the way."""
        since = w.alone_since if w.alone_since is not None else self.now
        return replace(w, connected=False, inbox=(), outbox=(), alone_since=since)

    def _do_cut_off(self, w: Worker) -> None:
        """Its connection ends; it may be back before the master notices, or long after."""
        self._put(self._cut(w))
        self.unnoticed += (m.Away(w.uid, w.link),)

    def _do_deliver(self, w: Worker) -> None:
        event, rest = w.outbox[0], w.outbox[1:]
        self._put(replace(w, outbox=rest))
        self._tell(event)

    def _do_reconnect(self, w: Worker) -> None:
        w = replace(w, connected=True, link=w.link + 1, alone_since=None)
        self._put(replace(w, outbox=tuple(self._introduction(w))))

    def _introduction(self, w: Worker) -> Iterator[m.Event]:
        heard = max(w.followed, w.newest.generation if w.newest else 0)
        plan, joined, done = w.ring, w.doing in (Doing.TRAINING, Doing.DONE), w.doing is Doing.DONE
        following = self._next_plan(w)
        if following is not None and following.generation > w.doomed:
            plan, joined, done = following, False, False
        known = {"step": w.step, "has_state": w.has_state, "generation": heard, "link": w.link}
        yield said.hello(w.seat, plan, done=done, joined=joined, **known)
        if plan is None and w.doing is not Doing.PREPARING:
            yield said.ready(w.uid, w.step, w.has_state)
        if w.draining:
            yield said.draining(w.uid)

    def _do_read(self, w: Worker) -> None:
        message, w = w.inbox[0], replace(w, inbox=w.inbox[1:])
        match message:
            case m.Publish(plan, abort):
                if w.newest is None or plan.generation > w.newest.generation:
                    doomed = max(w.doomed, plan.generation - 1) if abort else w.doomed
                    w = replace(w, newest=plan, gentle=not abort, doomed=doomed)
            case m.Abort(generation):
                w = replace(w, doomed=max(w.doomed, generation))
            case m.Evict() | m.Finish():
                self._die(w)
                return
        self._put(w)

    def _do_get_ready(self, w: Worker) -> None:
        if w.draining:
            self._die(w)
        else:
            self._put(replace(w, doing=Doing.IDLE), said.ready(w.uid))

    def _do_follow(self, w: Worker) -> None:
        plan = self._next_plan(w)
        if plan is None:
            self._die(w)
        elif w.doomed >= plan.generation:  # it was called off before this worker came to it
            w = replace(w, doing=Doing.IDLE, ring=None, followed=plan.generation)
            self._put(w, said.out(w.uid, plan.generation, w.step, "called off"))
        else:
            w = replace(w, doing=Doing.JOINING, ring=plan, followed=plan.generation)
            self._put(w, said.entered(w.uid, plan.generation))

    def _do_break(self, w: Worker) -> None:
        assert w.ring is not None
        out = said.out(w.uid, w.ring.generation, w.step, "connection reset")
        self._put(replace(w, doing=Doing.IDLE, ring=None), out)

    def _do_agree(self, w: Worker) -> None:
        assert w.ring is not None
        generation = w.ring.generation
        if generation not in self.roots:
            self.roots[generation] = self._root(w.ring)
        root = self.workers[self.roots[generation]]
        step = max(w.step, root.step) if w.has_state else root.step
        over = step >= self.steps
        w = replace(w, doing=Doing.DONE if over else Doing.TRAINING, has_state=True, step=step)
        last = (said.done(w.uid, generation, step),) if over else ()
        self._put(w, said.joined(w.uid, generation, step), *last)

    def _do_step(self, w: Worker) -> None:
        assert w.ring is not None
        generation = w.ring.generation
        done, switch = self.progress.get(generation, (0, False))
        if done <= w.step:  # the first to complete this step: now its outcome is settled for all
            votes = (self.workers[s.uid].newest for s in w.ring.members)
            done, switch = w.step + 1, any(p is not None and p.generation > generation for p in votes)
            self.progress[generation] = done, switch
        w = replace(w, step=w.step + 1)
        self._check_one_ring(w.ring)
        if w.step >= self.steps:
            self._put(replace(w, doing=Doing.DONE), said.done(w.uid, generation, w.step))
        elif switch:
            self._put(replace(w, doing=Doing.IDLE, ring=None))
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
        self._put(replace(w, draining=True), said.draining(w.uid))

    def _die(self, w: Worker) -> None:
        """What it said arrives, then the end of its connection; that of the process is noticed on its own."""
        dead = replace(w, life=Life.DEAD, doing=Doing.IDLE, ring=None, inbox=())
        self._put(dead, m.Away(w.uid, w.link))
        self.unnoticed += (m.Lost(w.uid, "is gone"),)

    def _put(self, w: Worker, *sent: m.Event) -> None:
        self.workers[w.uid] = replace(w, outbox=w.outbox + sent) if sent and w.connected else w

    # ------------------------------------------------------------------------------- how rings behave

    def _next_plan(self, w: Worker) -> Plan | None:
        """The plan that this worker will follow when it comes out of its ring."""
        plan = w.newest
        if plan is None or plan.generation <= w.followed or plan.rank_of(w.uid) is None:
            return None
        return plan

    def _waits_for_company(self, w: Worker, plan: Plan) -> bool:
        """A newcomer connects when somebody of the old ring does: those may have a long step to finish."""
        others = (self.workers[seat.uid] for seat in plan.members)
        alone = not any(peer.inside(plan) for peer in others)
        return w.gentle and not w.has_state and alone and w.doomed < plan.generation

    def _leaves(self, w: Worker) -> bool:
        """It drains, is outside, and is not needed."""
        if not w.draining or self._next_plan(w) is not None:
            return False
        return w.followed == 0 or (w.newest is not None and w.newest.generation > w.followed)

    def _broken(self, plan: Plan) -> bool:
        """Somebody closed its connections to this ring; a frozen worker does not."""
        return any(
            w.life is Life.DEAD or (w.followed >= plan.generation and not w.inside(plan))
            for w in (self.workers[seat.uid] for seat in plan.members)
        )

    def _at_odds(self, plan: Plan) -> bool:
        return len({self.workers[seat.uid].odd for seat in plan.members}) > 1

    def _can_agree(self, w: Worker, plan: Plan) -> bool:
        if plan.generation in self.roots:
            root = self.workers[self.roots[plan.generation]]
            return w.uid == root.uid or (root.up and root.ring == plan)
        return all(
            peer.up and peer.ring == plan and peer.doing is Doing.JOINING
            for peer in (self.workers[seat.uid] for seat in plan.members)
        )

    def _can_step(self, w: Worker, plan: Plan) -> bool:
        if self.progress.get(plan.generation, (0, False))[0] > w.step:
            return True
        if self._at_odds(plan):
            return False
        return all(
            peer.up and peer.ring == plan and peer.doing is Doing.TRAINING and peer.step == w.step
            for peer in (self.workers[seat.uid] for seat in plan.members)
        )

    def _root(self, plan: Plan) -> str:
        peers = [self.workers[seat.uid] for seat in plan.members]
        holders = [w for w in peers if w.has_state]
        if holders:
            return max(holders, key=lambda w: w.step).uid
        waiting = [
            w.uid
            for w in self.workers.values()
            if w.up and w.has_state and w.uid in self.state.members and not self._leaves(w)
        ]
        waiting = [] if plan.generation in self.inherited else waiting
        assert not waiting, f"training begins anew in {_ids(plan)} although {waiting} still holds the model"
        return peers[0].uid

    # ------------------------------------------------------------------------------------- the master

    def _tell(self, event: m.Event) -> None:
        before = self.state
        self.state, actions = machine.handle(before, event, self.now)
        if not isinstance(event, m.Tick) or actions:
            self._note("   ", self.now, event)
        for action in actions:
            self._note("        =>", action)
        if self.state.waiting_for != before.waiting_for:
            self._note("        ..", self.state.waiting_for)
        machine.validate(self.state)
        for action in actions:
            match action:
                case m.Publish():
                    self._check_plan(before, event, action)
                    self._send(action, list(self.workers))
                case m.Abort(_, uids):
                    self._send(action, list(uids))
                case m.Evict(uid, reason):
                    self._check_eviction(uid, reason)
                    self._send(action, [uid])
                case m.Finish():
                    self._check_finish(action)
                    self.finished = action
                    self._send(action, list(self.workers))

    def _send(self, action: m.Action, uids: list[str]) -> None:
        for uid in uids:
            w = self.workers[uid]
            if w.connected and w.life is not Life.DEAD:
                self._put(replace(w, inbox=(*w.inbox, action)))

    # ------------------------------------------------------------------------------------- properties

    def _check_plan(self, before: State, event: m.Event, publish: m.Publish) -> None:
        plan, after = publish.plan, self.state
        assert plan.generation > before.generation, "generations grow"
        # A number of an earlier master that only the dead and the never heard know does no harm: those who
        # know it and come are turned away.
        met = [w for w in self.workers.values() if w.life is not Life.DEAD and w.uid in after.members]
        numbers = {known.generation for w in met for known in (w.newest, w.ring) if known is not None}
        assert plan.generation not in numbers, f"generation {plan.generation} exists already"
        self.plans[plan.generation] = plan
        seated = {seat.uid for seat in plan.members}
        for w in (self.workers[uid] for uid in seated):
            heard = w.newest.generation if w.newest else 0
            assert plan.generation > heard, f"{w.uid} knows generation {heard} and would ignore this one"
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
        ready = {u for u, x in known.items() if x.standing is Standing.WAITING and x.away is None}
        for uid in ready - seated:
            assert known[uid].draining, f"{uid} is ready and was left out"
        assert all(known[uid].away is None for uid in seated), "who cannot hear of a plan is not part of it"
        if not publish.abort:
            assert before.plan is not None, "a ring that was just taken over goes on as it is"
            old = {seat.uid for seat in before.plan.members}
            assert old != seated, "a needless plan"
            told = getattr(event, "uid", "")
            assert all(x.joined or x.seat.uid == told for x in before.alive()), "the last one is not joined"
            real = [self.workers[x.seat.uid] for x in before.alive()]
            assert all(w.has_state and w.followed >= before.plan.generation for w in real), "only believed"
            assert any(known[uid].has_state and not known[uid].draining for uid in seated) or any(
                known[uid].draining for uid in seated
            )
        assert publish.reason, "a decision has a reason"

    def _check_one_ring(self, plan: Plan) -> None:
        """Nobody trains beside this ring, but for those who were given up and do not know it yet."""
        for w in self.workers.values():
            beside = w.up and w.doing is Doing.TRAINING and w.ring is not None and w.ring != plan
            if beside and w.uid not in self.state.gone and w.ring is not None:
                assert not self._can_step(w, w.ring), f"{_ids(plan)} and {_ids(w.ring)} train side by side"

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
        usable = [w for w in self.workers.values() if w.up and not w.draining]
        if self.finished is None:
            minimum = max(1, self.options.minimum)
            able = [w.uid for w in usable]
            assert len(usable) < minimum, f"{able} could train, but nothing happens\n{self.story}"
            assert self.state.waiting_for, f"waits without saying for what\n{self.story}"

    # ------------------------------------------------------------------------------------ exploration

    def key(self) -> object:
        """Two worlds with the same key have the same future."""
        state = self.state

        def age(since: float | None) -> float | None:
            return None if since is None else round(self.now - since, 1)

        members = tuple(
            (uid, age(x.since), x.standing, x.generation, x.has_state, x.step, x.entered, x.joined,
             x.proven, x.draining, x.expected, x.link, age(x.away))
            for uid, x in sorted(state.members.items())
        )  # fmt: skip
        return (
            tuple(replace(w, alone_since=age(w.alone_since)) for w in self.workers.values()),
            tuple(sorted(self.unnoticed, key=str)),
            members,
            state.plan,
            state.generation,
            state.leads,
            state.leaving,
            age(state.leaver_lost),
            state.gone,
            age(state.broken_since),
            age(state.entered_since),
            min(age(state.heard_since) or 0.0, 1000.0),
            state.aborted,
            state.moved,
            state.stalls,
            state.finished,
            tuple(sorted(self.progress.items())),
            tuple(sorted(self.roots.items())),
            max(0.0, state.options.recover_until - self.now),
        )


def _ids(plan: Plan) -> str:
    return "".join(seat.uid for seat in plan.members)
