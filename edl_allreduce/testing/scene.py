"""The real machine of a job, with workers and a cluster that are played: a whole job in milliseconds.

Nothing runs beside anything else, and seconds pass only when a test says so. Workers do what real ones do
when nothing goes wrong; a test hits them (`crash`, `cut`), lets them say something of its own (`say`), or
changes what they are made of (`Script`). Every turn of the machine is checked against its invariants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from edl_allreduce.core import events, protocol
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.health import Activity
from edl_allreduce.core.job import inbox, invariants, machine, queries
from edl_allreduce.core.job.lifecycle import FINAL, Phase
from edl_allreduce.core.job.state import JobOptions, JobState, begin
from edl_allreduce.core.status import JobStatus

READY = protocol.Ready(0, False, "data", 1000, 100, records=100, model={"optimizer": "sgd"})
OPTIONS = JobOptions("job", 2, 1, 0.0, Deadlines(10.0), crash_budget=3)
STEP_SECONDS = 0.1
MANY_EVENTS = 100_000
"""At one moment; more of them means that two keep each other busy."""


@dataclass
class Script:
    """What the next workers are made of."""

    prepares: bool = True
    """Says that it is ready; otherwise it imports for ever."""
    ready: protocol.Ready = READY
    fails: protocol.Failed | None = None
    """What its code raises while it prepares."""
    broken: str = ""
    """Why it cannot be started at all."""
    certain: bool = False
    """Trying again would not help."""
    deaf: bool = False
    """Hears nothing of what it is told."""


@dataclass
class Actor:
    """One worker process."""

    worker_id: int
    script: Script
    uid: str
    link: int = 0
    """0: no connection."""
    alive: bool = True
    frozen: bool = False
    ready: bool = False
    plan: protocol.Plan | None = None
    generation: int = 0
    """The highest that it ever heard of."""
    joined: bool = False
    done: bool = False
    has_state: bool = False
    step: int = 0
    draining: bool = False
    compute_seconds: float = 0.0
    """Of its own part of a step, as its heartbeats tell it."""
    heard: list[protocol.FromMaster] = field(default_factory=list)
    unread: list[protocol.FromMaster] = field(default_factory=list)
    """What came while it was frozen."""

    @property
    def seat(self) -> protocol.Seat:
        return protocol.Seat(self.uid, self.worker_id, "host")

    @property
    def hello(self) -> protocol.Hello:
        return protocol.Hello(
            self.seat,
            self.plan,
            self.step,
            self.done,
            self.joined,
            self.has_state,
            self.generation,
            tasks=tuple((m.number, m.attempt) for m in self.unread if isinstance(m, protocol.DoTask)),
            version="test",
        )


class Scene:
    """A master and whatever it started."""

    def __init__(self, options: JobOptions = OPTIONS, *, now: float = 1000.0, steps: int = 10_000) -> None:
        self.now = now
        self.state: JobState = begin(options, now)
        self.script = Script()
        self.steps = steps
        """Of the whole training."""
        self.actors: dict[int, Actor] = {}
        self.words: dict[int, str] = {}
        """What a worker's log ends with."""
        self.events: list[events.Event] = []
        self.quiet: list[events.Event] = []
        self.effects: list[inbox.Effect] = []
        self.over = False
        self.check: Callable[[JobState, JobState, tuple[inbox.Effect, ...]], None] = invariants.validate
        self._pending: deque[inbox.Event] = deque()
        self._links = 0

    # ------------------------------------------------------------------------------------------- time

    def give(self, *given: inbox.Event) -> Scene:
        """Let this happen, and all that follows from it at once."""
        self._pending.extend(given)
        for _ in range(MANY_EVENTS):
            if not self._pending:
                return self
            self._turn(self._pending.popleft())
        raise AssertionError("it does not come to rest")

    def _turn(self, event: inbox.Event) -> None:
        before = self.state
        self.state, effects = machine.handle(before, event, self.now)
        self.check(before, self.state, effects)
        for effect in effects:
            self.effects.append(effect)
            self._perform(effect)

    def wait(self, seconds: float, every: float = 0.5) -> Scene:
        """Let time pass: workers train and send heartbeats, the master looks at its clock."""
        left = seconds
        while left > 0 and not self.over:
            self.now += min(every, left)
            left -= every
            for actor in list(self.actors.values()):
                self._live(actor)
            self.give(inbox.Tick())
        return self

    def until(self, happened: Callable[[], object], within: float = 600.0, every: float = 0.5) -> Scene:
        """Let time pass until something is so."""
        deadline = self.now + within
        while not happened():
            assert self.now < deadline and not self.over, f"it did not happen\n{self.story()}"
            self.wait(every, every)
        return self

    def start(self) -> Scene:
        return self.give(inbox.Tick())

    def train(self) -> Scene:
        """Until as many train as are wanted."""
        return self.start().until(lambda: self.ring == self.state.wanted)

    # ------------------------------------------------------------------------------------ what happens

    def say(self, worker_id: int, message: protocol.FromWorker) -> Scene:
        actor = self.actors[worker_id]
        return self.give(inbox.Heard(actor.uid, actor.link, message))

    def crash(self, worker_id: int, cause: Cause = Cause.CRASHED, text: str = "exited with 1") -> Scene:
        """A process ends: its connection first, then the cluster says so."""
        actor = self.actors[worker_id]
        actor.alive = False
        self.cut(worker_id)
        return self.give(inbox.Ended(worker_id, cause, text))

    def cut(self, worker_id: int) -> Scene:
        """A connection ends."""
        actor = self.actors[worker_id]
        link, actor.link = actor.link, 0
        return self.give(inbox.HungUp(actor.uid, link)) if link else self

    def freeze(self, worker_id: int) -> Scene:
        """Does nothing and closes no connection."""
        self.actors[worker_id].frozen = True
        return self

    def thaw(self, worker_id: int) -> Scene:
        """Goes on, and reads what came meanwhile."""
        actor = self.actors[worker_id]
        actor.frozen = False
        unread, actor.unread = actor.unread, []
        for message in unread:
            if actor.alive:
                self._hear(actor, message)
        return self.give()

    def connect(self, worker_id: int) -> Scene:
        """A new connection, whether the master noticed the end of the last one or not."""
        actor = self.actors[worker_id]
        self._links += 1
        actor.link = self._links
        self.give(inbox.Connected(actor.hello, actor.link))
        return self.prepare(worker_id)  # a worker that is ready says so again

    def prepare(self, worker_id: int) -> Scene:
        """The end of its preparations."""
        actor = self.actors[worker_id]
        script = actor.script
        if script.fails is not None:
            self.say(worker_id, script.fails)
            return self.crash(worker_id, Cause.INVALID, "could not begin")
        if script.prepares and actor.link:
            actor.ready = True
            self.say(worker_id, replace(script.ready, step=actor.step, has_state=actor.has_state))
        return self

    def comes(self, worker_id: int, uid: str = "") -> Scene:
        """A worker that the cluster did not start just now: by hand, or for an earlier master."""
        self.actors[worker_id] = Actor(worker_id, replace(self.script), uid or f"uid-{worker_id}")
        return self.connect(worker_id)

    # ----------------------------------------------------------------------------------------- looking

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def status(self) -> JobStatus:
        return queries.status(self.state, self.now, self.now, {})

    @property
    def ring(self) -> int:
        return sum(worker.rank >= 0 for worker in self.status.workers)

    @property
    def launched(self) -> list[int]:
        return [effect.worker_id for effect in self.effects if isinstance(effect, inbox.Launch)]

    @property
    def alive(self) -> list[int]:
        return [i for i, actor in self.actors.items() if actor.alive]

    def told(self, kind: str) -> list[str]:
        return [event.text() for event in self.events if event.kind == kind]

    def story(self) -> str:
        return "\n".join(f"{event.kind}: {event.text()}" for event in self.events)

    # --------------------------------------------------------------------------------------- performing

    def _perform(self, effect: inbox.Effect) -> None:
        match effect:
            case inbox.Send(link, message):
                for actor in list(self.actors.values()):
                    if actor.link == link and actor.alive and not actor.script.deaf:
                        actor.heard.append(message)
                        if actor.frozen:
                            actor.unread.append(message)
                        else:
                            self._hear(actor, message)
            case inbox.HangUp(link):
                for actor in list(self.actors.values()):
                    if actor.link == link:
                        actor.link = 0
                        self._pending.append(inbox.HungUp(actor.uid, link))
            case inbox.Launch(worker_id):
                self._launch(worker_id)
            case inbox.Terminate(worker_id) if not self._frozen(worker_id):
                self._exit(worker_id, Cause.DISRUPTED, "was ended by SIGTERM")
            case inbox.Kill(worker_id):
                self._exit(worker_id, Cause.DISRUPTED, "was ended by SIGKILL")
            case inbox.ReadLog(worker_id):
                self._pending.append(inbox.LogRead(worker_id, self.words.get(worker_id, "")))
            case inbox.Tell(event, quiet):
                (self.quiet if quiet else self.events).append(event)
            case inbox.Over():
                self.over = True

    def _frozen(self, worker_id: int) -> bool:
        """A signal that can be caught means nothing to who does not run."""
        return worker_id in self.actors and self.actors[worker_id].frozen

    def _launch(self, worker_id: int) -> None:
        script = replace(self.script)
        if script.broken:
            self._pending.append(inbox.LaunchFailed(worker_id, script.certain, script.broken))
            return
        self.actors[worker_id] = actor = Actor(worker_id, script, f"uid-{worker_id}")
        self._links += 1
        actor.link = self._links
        self._pending.append(inbox.Connected(actor.hello, actor.link))
        if script.fails is not None:
            self._say(actor, script.fails)
            self._exit(worker_id, Cause.INVALID, "could not begin")
        elif script.prepares:
            actor.ready = True
            self._say(actor, script.ready)

    def _say(self, actor: Actor, *messages: protocol.FromWorker) -> None:
        if actor.link:
            self._pending.extend(inbox.Heard(actor.uid, actor.link, message) for message in messages)

    def _exit(self, worker_id: int, cause: Cause, text: str) -> None:
        actor = self.actors.get(worker_id)
        if actor is None or not actor.alive:
            return
        actor.alive = False
        if actor.link:
            self._pending.append(inbox.HungUp(actor.uid, actor.link))
            actor.link = 0
        self._pending.append(inbox.Ended(worker_id, cause, text))

    def _hear(self, actor: Actor, message: protocol.FromMaster) -> None:
        match message:
            case protocol.NewPlan(plan) if plan.rank_of(actor.uid) is not None:
                self._follow(actor, plan)
            case protocol.NewPlan() if actor.draining:
                self._exit(actor.worker_id, Cause.FINISHED, "exited with 0")
            case protocol.AbortRing(generation) if actor.plan and actor.plan.generation == generation:
                actor.plan, actor.joined = None, False
                self._say(actor, protocol.Out(generation, actor.step, "was told to"))
            case protocol.Stop() if actor.joined:
                self._finish(actor, stopped=True)
            case protocol.Drain():
                actor.draining = True
                self._say(actor, protocol.Draining())
                if not actor.joined:
                    self._exit(actor.worker_id, Cause.FINISHED, "exited with 0")
            case protocol.DoTask(number, attempt):
                self._say(actor, protocol.TaskDone(number, attempt, [1.0]))
            case protocol.Conclude(sums):
                self._say(actor, protocol.Concluded({"total": sum(sums)}, "results"))
            case protocol.Export():
                self._say(actor, protocol.Exported("model.keras"))
            case protocol.Release():
                self._exit(actor.worker_id, Cause.FINISHED, "exited with 0")
            case protocol.Evicted():
                self._exit(actor.worker_id, Cause.CRASHED, "exited with 4")

    def _follow(self, actor: Actor, plan: protocol.Plan) -> None:
        """As the real ones do: enter, agree on the model of whoever is furthest, train."""
        seated = [a for a in self.actors.values() if plan.rank_of(a.uid) is not None]
        actor.plan, actor.joined, actor.has_state = plan, True, True
        actor.generation = plan.generation
        actor.step = max((a.step for a in seated if a.has_state), default=0)
        self._say(
            actor,
            protocol.Entered(plan.generation),
            protocol.Joined(plan.generation, actor.step, 10 * actor.step),
        )

    def _live(self, actor: Actor) -> None:
        """Half a second or so in the life of a worker."""
        if not actor.alive or actor.frozen:
            return
        if actor.joined and actor.plan is not None and not actor.done and self._ring_lives(actor.plan):
            actor.step = min(actor.step + 5, self.steps)
            if actor.step == self.steps:
                self._finish(actor)
        generation = actor.plan.generation if actor.plan is not None and actor.joined else 0
        activity = Activity.COMPUTING if generation else Activity.IDLE
        if actor.ready:
            at = 10 * actor.step
            pulse = protocol.Pulse(activity, generation, actor.step, at, 0.5, STEP_SECONDS)
            self._say(actor, replace(pulse, compute_seconds=actor.compute_seconds))
        else:
            self._say(actor, protocol.Pulse(Activity.PREPARING, 0, 0, 0, 0.0, 0.0))

    def _ring_lives(self, plan: protocol.Plan) -> bool:
        """A ring with a dead or frozen member stands still; who lives in a ring with a dead one notices."""
        members = {a.uid: a for a in self.actors.values()}
        lost = [s for s in plan.members if not members[s.uid].alive or members[s.uid].plan != plan]
        for seat in plan.members:
            actor = members[seat.uid]
            if lost and actor.alive and not actor.frozen and actor.plan == plan and actor.link:
                actor.plan, actor.joined = None, False
                self._say(actor, protocol.Out(plan.generation, actor.step, "lost the connection to rank 0"))
        return not lost and not any(members[seat.uid].frozen for seat in plan.members)

    def _finish(self, actor: Actor, *, stopped: bool = False) -> None:
        assert actor.plan is not None
        actor.done = True
        self._say(actor, protocol.Done(actor.plan.generation, actor.step, stopped, 10 * actor.step, 0.1))


def over(scene: Scene) -> bool:
    """Whether the job ended."""
    return scene.phase in FINAL
