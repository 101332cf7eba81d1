"""The whole job without processes or network: the job's machine as the master, real machines as its workers.

As in `world`, only the arithmetic, the rings' connections, the wires and the cluster are simulated. Here the
master starts its workers itself, hears their heartbeats, is told by the cluster when processes end, and obeys
commands: scale, stop, kill.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Self

from edl_allreduce.core import protocol
from edl_allreduce.core.attendance import events as happens
from edl_allreduce.core.attendance.state import Leave
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.health import Activity
from edl_allreduce.core.job import inbox, invariants, machine
from edl_allreduce.core.job.lifecycle import FINAL, Phase
from edl_allreduce.core.job.state import JobOptions, JobState, Ring, begin
from edl_allreduce.core.membership import invariants as membership_invariants
from edl_allreduce.core.membership import types as m
from edl_allreduce.core.protocol import Seat
from edl_allreduce.testing.world import TICKS, Doing, Life, Worker, World, properties

MOST_WORKERS = 40
"""More of them in one job mean that workers are started again and again."""
ACTIVITIES = {
    Doing.PREPARING: Activity.PREPARING,
    Doing.IDLE: Activity.IDLE,
    Doing.EXPECTING: Activity.IDLE,
    Doing.JOINING: Activity.JOINING,
    Doing.TRAINING: Activity.REDUCING,
}


class JobWorld(World):
    """A world whose master is the machine of a whole job. There are no verbs `launch` and `give up` here:
    the master starts workers and judges their silence itself."""

    def __init__(self, options: JobOptions, *, steps: int = 2, lockstep: bool = False) -> None:
        self.job: JobState = begin(options, 1000.0)
        self.job_options = options
        self.exits: dict[str, Cause] = {}
        """How processes ended, where they were not killed."""
        self.connections: dict[int, tuple[str, int]] = {}
        """By the master's number: the worker's uid, and its own number."""
        self.over = False
        self.ends: set[Phase] = set()
        """How jobs ended, this one or those that were made of it."""
        assert isinstance(self.job.work, Ring)
        super().__init__(self.job.work.members.options, steps=steps, lockstep=lockstep)
        self._pass(0.0)

    def clone(self) -> Self:
        other = super().clone()
        other.exits = dict(self.exits)
        other.connections = dict(self.connections)
        return other

    @property
    def ended(self) -> bool:
        return self.over

    # ---------------------------------------------------------------------------------------- commands

    def command(self, event: inbox.Scale | inbox.Stop | inbox.KillAll) -> None:
        """Somebody wants something of the job."""
        self._note("command", event)
        self._deliver(event)

    def _do(self, verb: str, uid: str) -> None:
        match verb:
            case "scale":
                self.command(inbox.Scale(int(uid)))
            case "stop":
                self.command(inbox.Stop("enough"))
            case "kill all":
                self.command(inbox.KillAll())
            case _:
                super()._do(verb, uid)

    # ------------------------------------------------------------------------------------- the master

    def _deliver(self, event: inbox.Event) -> None:
        before = self.job
        self.job, effects = machine.handle(before, event, self.now)
        if not isinstance(event, inbox.Tick) or effects:
            self._note("   ", self.now, event)
        for effect in effects:
            self._note("        =>", effect)
        invariants.validate(before, self.job, effects)
        assert isinstance(self.job.work, Ring)
        self.state = self.job.work.members
        membership_invariants.validate_at(self.state, self.now)
        self._check_new_plan(before)
        self._check_stop(before)
        for uid in self.job.gone - before.gone:
            assert isinstance(before.work, Ring)
            properties.check_holder(self, before.work.members, uid)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: inbox.Effect) -> None:
        match effect:
            case inbox.Send(link, message):
                uid, number = self.connections[link]
                w = self.workers[uid]
                if isinstance(message, protocol.Evicted):
                    properties.check_eviction(self, uid, message.reason)
                if w.attended and w.machine.link == number and w.life is not Life.DEAD:
                    self._put(replace(w, inbox=(*w.inbox, message)))
            case inbox.HangUp(link):
                uid, number = self.connections[link]
                w = self.workers[uid]
                if w.machine.link == number:
                    self._put(replace(w, attended=False))
            case inbox.Launch(worker_id):
                assert worker_id < MOST_WORKERS, f"workers are started again and again\n{self.story}"
                self._start(worker_id)
            case inbox.Terminate(worker_id):
                for w in self._processes(worker_id):
                    if w.up:
                        self._happens(w, happens.Drained())
            case inbox.Kill(worker_id):
                for w in self._processes(worker_id):
                    self._die(w)
            case inbox.ReadLog(worker_id):
                self._deliver(inbox.LogRead(worker_id, "the end of its log"))
            case inbox.Over():
                self.over = True
                self.ends.add(self.job.phase)

    def _processes(self, worker_id: int) -> list[Worker]:
        return [
            w
            for w in self.workers.values()
            if w.machine.seat.worker_id == worker_id and w.life is not Life.DEAD
        ]

    def _start(self, worker_id: int) -> None:
        seat = Seat(f"u{worker_id}", worker_id, "host")
        state = self._attendance(seat)
        self._happens(Worker(state), happens.Begun())

    def _hears_hello(self, w: Worker, hello: protocol.Hello) -> None:
        link = len(self.connections) + 1
        self.connections[link] = w.uid, w.machine.link
        self._deliver(inbox.Connected(hello, link))

    def _hears(self, w: Worker, message: protocol.FromWorker) -> None:
        self._deliver(inbox.Heard(w.uid, self._link(w.uid, w.machine.link), message))

    def _tell(self, event: m.Event) -> None:
        match event:
            case m.Away(uid, number) if link := self._link(uid, number):
                self._deliver(inbox.HungUp(uid, link))
            case m.Lost(uid, text):
                cause = self.exits.get(uid, Cause.DISRUPTED)
                self._deliver(inbox.Ended(self.workers[uid].machine.seat.worker_id, cause, text))

    def _tell_unheard(self, known: frozenset[int]) -> None:
        """The job's machine finds out by itself."""

    def _link(self, uid: str, number: int) -> int:
        """The master's number of this connection; 0 when it never heard of it."""
        known = (link for link, connection in self.connections.items() if connection == (uid, number))
        return next(known, 0)

    def _pass(self, seconds: float) -> None:
        """Heartbeats come, the master looks at its clock, and so do the workers."""
        left, beat = seconds, self.options.deadlines.heartbeat / 2
        while True:
            now = min(left, beat)
            self.now += now
            left -= now
            self._time_for_workers(now)
            for w in self.workers.values():
                if w.up and w.attended and w.connected:
                    plan = w.machine.plan
                    pulse = protocol.Pulse(
                        ACTIVITIES[w.doing], plan.generation if plan else 0, w.step, 0, 0.0, 0.1
                    )
                    self._deliver(inbox.Heard(w.uid, self._link(w.uid, w.machine.link), pulse))
            self._deliver(inbox.Tick())
            if left <= 0:
                return

    def _restart(self) -> None:
        """The master is killed; another one finds the processes that live."""
        wanted = self.job.wanted
        super()._restart()
        recover = replace(self.job_options, recover_until=self.options.deadlines.rejoin + self.now)
        self.job = begin(recover, self.now)
        self.connections = {}
        living = [w for w in self.workers.values() if w.life is not Life.DEAD]
        ids = tuple(sorted(w.machine.seat.worker_id for w in living))
        self._deliver(inbox.Adopt(ids, ids, len(self.workers), wanted))

    # -------------------------------------------------------------------------------------- the workers

    def _verbs(self, w: Worker) -> Iterator[str]:
        return (verb for verb in super()._verbs(w) if verb != "give up")

    def _do_follow(self, w: Worker) -> None:
        match self.pending(w):
            case protocol.Export():
                w = self._happens(w, happens.TookOrder())
                self._happens(w, happens.Said(protocol.Exported("model")))
            case protocol.Release() | Leave():
                self.exits[w.uid] = Cause.FINISHED
                super()._do_follow(w)
            case _:
                super()._do_follow(w)

    def _do_get_ready(self, w: Worker) -> None:
        if w.machine.draining:
            self.exits[w.uid] = Cause.FINISHED
        super()._do_get_ready(w)

    # --------------------------------------------------------------------------------------- properties

    def _check_new_plan(self, before: JobState) -> None:
        assert isinstance(before.work, Ring)
        plan, old = self.state.plan, before.work.members.plan
        if plan is None or plan == old or not self.state.leads:
            return
        assert old is None or plan.generation > old.generation, "generations grow"
        self.plans[plan.generation] = plan
        seated = {seat.uid for seat in plan.members}
        assert not seated & before.gone, "nobody who is gone is planned"
        holders = {uid for uid, member in self.state.members.items() if member.has_state}
        assert not holders or plan.members[0].uid in holders, "rank 0 holds the model if anybody does"

    def _check_stop(self, before: JobState) -> None:
        """A job that was asked to stop writes what it trained, if anybody lives who has it."""
        stopped = self.job.phase is Phase.STOPPED and before.phase is not Phase.STOPPED
        if not stopped or "interrupted" in self.job.reason or self.job.ending.path:
            return
        lives = [w.uid for w in self.workers.values() if self.could_go_on(w) and not self._news_of(w)]
        lives = [uid for uid in lives if uid not in self.job.gone and self.workers[uid].step > 0]
        assert not lives, f"stopped without a result, although {lives} holds the model"

    def _news_of(self, w: Worker) -> bool:
        """Whether word that it holds the model is on its way, or got lost a moment ago."""
        return any(isinstance(said, protocol.Joined) for said in w.outbox) or any(
            isinstance(end, m.Away) and end.uid == w.uid for end in self.unnoticed
        )

    def settle(self) -> None:
        """No more faults: all behave and time goes on. Then the job comes to its end by itself."""
        self.faultless_since = self.now
        self._note("-- no more faults")
        for _ in range(400):
            while not self.over and (actions := self.enabled()):
                for verb, uid in actions:
                    if verb == "notice":
                        self.do(verb, "0")
                    elif verb in self._verbs(self.workers[uid]):
                        self.do(verb, uid)
            if self.over:
                break
            self._pass(TICKS["tick"])
        self._check_over()

    def _check_over(self) -> None:
        job = self.job
        assert self.over, f"the job does not end: {job.phase}, waiting for {job.waiting.text!r}\n{self.story}"
        assert job.phase in FINAL
        if job.phase is Phase.SUCCEEDED:
            assert not self.failure, f"there was nothing to export: {self.failure}\n{self.story}"
            assert job.progress.place.step >= self.steps, f"{job.reason}\n{self.story}"
        elif job.phase is Phase.STOPPED:
            assert job.stopping or "interrupted" in job.reason, f"{job.reason}\n{self.story}"
        elif job.reason != self.failure:
            assert "was lost before it was written" in job.reason, f"{job.reason}\n{self.story}"

    # ------------------------------------------------------------------------------------ exploration

    def key(self) -> object:
        """As that of a world, with what the job knows beyond its ring."""
        job = self.job
        slots = tuple(
            (i, slot.accepted, slot.proved, slot.draining, slot.evicted, slot.uid, slot.kill_at)
            for i, slot in sorted(job.slots.items())
        )
        peers = tuple(
            (uid, peer.link, peer.joined_at, self.now - peer.pulse.heard, self.now - peer.pulse.begun)
            for uid, peer in sorted(job.peers.items())
        )
        known = (job.phase, job.stopping, job.failing, job.wanted, job.gone, job.ending, job.keeping.next_id)
        lasting = tuple(w.machine.lasting for w in self.workers.values())
        stops = tuple((w.machine.stop, w.machine.exports) for w in self.workers.values())
        wires = tuple(self.connections.items())
        return super().key(), known, slots, peers, wires, lasting, stops, self.over, tuple(self.exits.items())
