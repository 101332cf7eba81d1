"""Jobs on hollow nodes: their masters are the shipped code, of their workers only the arithmetic is played.

Nothing runs in a hollow pod. So one process has, for each master's pod that runs, what a master is made of:
the job's shell with its machine, the pods of its workers (`KubernetesCluster`), and the mailbox over which
controller and master write to each other, all of it as in a real master's pod. It has no port and no page:
a played worker speaks to it through the same function that serves a worker's stream.

A played worker says what a real one says. It is ready `start_up` seconds after its pod runs, a ring of n
makes a step in T(n) = one · ((1 - fixed)/n + fixed) seconds and stands still for `pause` in a re-form.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from edl_allreduce import clock
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.manifests import MasterContext
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.cluster.kubernetes.pods import KubernetesCluster
from edl_allreduce.core import protocol
from edl_allreduce.core.controller import mail
from edl_allreduce.core.health import Activity
from edl_allreduce.errors import ClusterError
from edl_allreduce.master.managed import Mailbox
from edl_allreduce.master.options import options_of
from edl_allreduce.master.shell import JobShell
from edl_allreduce.spec import JobSpec

log = logging.getLogger(__name__)

FASTEST_BEAT = 2.0
"""Seconds between two heartbeats of rank 0: what is usual. The others are heard less often, to save time."""


@dataclass(frozen=True)
class Play:
    """What is played; seconds."""

    master_start: float = 2.0
    """From a master's pod that runs to a master that works."""
    start_up: float = 5.0
    """From a worker's pod that runs to a worker that is ready; 3.5 was measured on a machine of two cores."""
    pause: float = 0.1
    """Of a re-form: 0.04 to grow or drain, 0.08 to 0.12 after a loss were measured."""
    one: float = 10.0
    """A step with one worker."""
    fixed: float = 0.01
    """The share of it that more workers do not shorten."""
    steps: int = 100_000
    """Of the whole job: more than an experiment is long, as in the published ones."""

    def step(self, workers: int) -> float:
        return self.one * ((1 - self.fixed) / workers + self.fixed)


class PlayedWorker:
    """What a worker says to its master."""

    def __init__(self, master: PlayedMaster, worker_id: int, pod: Object) -> None:
        self.master, self.worker_id, self.pod = master, worker_id, pod
        self.uid = str(pod["metadata"]["uid"])
        self.plan: protocol.Plan | None = None
        self.joined = self.has_state = self.draining = False
        self._says: asyncio.Queue[protocol.FromWorker | None] = asyncio.Queue()
        self._life = asyncio.create_task(self._live())

    @property
    def doomed(self) -> bool:
        """Its pod is being deleted, so its node ends the pod and not the worker."""
        return bool(self.pod["metadata"].get("deletionTimestamp"))

    def say(self, *messages: protocol.FromWorker) -> None:
        for message in messages:
            self._says.put_nowait(message)

    def drain(self) -> None:
        """As after SIGTERM."""
        if not self.draining:
            self.draining = True
            self.say(protocol.Draining())
            if not self.joined:
                self.leave()

    def die(self) -> None:
        """Its pod is gone."""
        self._life.cancel()
        self.master.workers.pop(self.worker_id, None)

    def leave(self) -> None:
        """It exits with 0."""
        self.die()
        self.master.ring.without(self)
        if not self.doomed:
            self.master.complete(self.pod)

    async def _live(self) -> None:
        play = self.master.play
        await asyncio.sleep(play.start_up)
        beat = asyncio.create_task(self._beat())
        try:
            async for message in self.master.shell.attend(self._stream(), "played"):
                self._hear(message)
        finally:
            beat.cancel()

    async def _stream(self) -> AsyncIterator[protocol.FromWorker]:
        yield protocol.Hello(protocol.Seat(self.uid, self.worker_id, "played"))
        yield protocol.Ready(fingerprint="played", total_steps=self.master.play.steps, global_batch=64)
        while (message := await self._says.get()) is not None:
            yield message

    async def _beat(self) -> None:
        """All of a ring are at the same step: one of them tells it as often as is usual."""
        while True:
            self.pulse()
            await asyncio.sleep(self.master.heartbeat if self._rank else FASTEST_BEAT)

    @property
    def _rank(self) -> int | None:
        return self.plan.rank_of(self.uid) if self.plan is not None else None

    def pulse(self) -> None:
        ring = self.master.ring
        trains = self.joined and ring.plan is not None
        generation = ring.plan.generation if trains and ring.plan is not None else 0
        seconds = self.master.play.step(ring.plan.size) if trains and ring.plan is not None else 0.0
        step = ring.step
        activity = Activity.REDUCING if trains else Activity.IDLE
        self.say(protocol.Pulse(activity, generation, step, 64 * step, 0.5, seconds))

    def _hear(self, message: protocol.FromMaster) -> None:
        match message:
            case protocol.NewPlan(plan) if plan.rank_of(self.uid) is not None:
                self.plan = plan
                self.say(protocol.Entered(plan.generation))
                self.master.ring.entered(plan)
            case protocol.NewPlan() if self.draining:
                self.leave()
            case protocol.AbortRing(generation) if self.plan and self.plan.generation == generation:
                self.plan, self.joined = None, False
                self.say(protocol.Out(generation, self.master.ring.step, "was told to"))
            case protocol.Drain():
                self.drain()
            case protocol.Stop() if self.plan is not None:
                self.say(protocol.Done(self.plan.generation, self.master.ring.step, stopped=True))
            case protocol.Export():
                self.say(protocol.Exported("played"))
            case protocol.Release() | protocol.Evicted():
                self.leave()


class PlayedRing:
    """The arithmetic of one job."""

    def __init__(self, master: PlayedMaster) -> None:
        self._master = master
        self.plan: protocol.Plan | None = None
        self._made = 0.0
        self._since = clock.now()
        self.reforms = 0

    @property
    def step(self) -> int:
        """That was made last."""
        return min(self._master.play.steps - 1, int(self._steps()))

    def _steps(self) -> float:
        if self.plan is None:
            return self._made
        return self._made + (clock.now() - self._since) / self._master.play.step(self.plan.size)

    def _stand_still(self) -> None:
        self._made, self.plan = self._steps(), None

    def without(self, worker: PlayedWorker) -> None:
        if self.plan is not None and self.plan.rank_of(worker.uid) is not None:
            self._stand_still()

    def entered(self, plan: protocol.Plan) -> None:
        """The last who enters closes the ring; meanwhile the one before trains on."""
        members = self._members(plan)
        if len(members) == plan.size and all(one.plan == plan for one in members):
            self._stand_still()
            asyncio.get_running_loop().call_later(self._master.play.pause, self._close, plan)

    def _members(self, plan: protocol.Plan) -> list[PlayedWorker]:
        uids = {seat.uid for seat in plan.members}
        return [one for one in self._master.workers.values() if one.uid in uids]

    def _close(self, plan: protocol.Plan) -> None:
        members = self._members(plan)
        if len(members) < plan.size or any(one.plan != plan for one in members):
            return  # somebody is gone, or there is a newer plan
        self.plan, self._since = plan, clock.now()
        self.reforms += 1
        step, pause = self.step, self._master.play.pause
        for one in members:
            survives = one.joined
            one.joined = one.has_state = True
            one.say(protocol.Joined(plan.generation, step, 64 * step))
            if survives:
                one.say(protocol.Reformed(plan.generation, plan.size, 0.0, 0.0, pause, 0.0, 0.0))
            one.pulse()


class PlayedMaster:
    """What `ClusterMaster` does for a TrainingJob, without a port, a page and files."""

    def __init__(self, pod: Object, spec: JobSpec, play: Play, threads: ThreadPoolExecutor) -> None:
        self.play, self.spec, self.pod = play, spec, pod
        self.api = Api.connect()  # each its own, as each pod has
        self._threads = threads
        self._options = options_of(spec)
        self.heartbeat = self._options.deadlines.heartbeat
        self.workers: dict[int, PlayedWorker] = {}
        self.ring = PlayedRing(self)
        self.shell: JobShell
        self._next_id = 0
        self.lost = ""
        """Why it had to leave; that nobody expects here."""
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await asyncio.sleep(self.play.master_start)
        owner = self.pod["metadata"]["ownerReferences"][0]
        job = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "metadata": {"name": owner["name"], "uid": owner["uid"]},
        }
        context = MasterContext(master_addr="played:1")
        cluster = KubernetesCluster(self.spec, self.api, context, job, on_launch=self._used)
        found = await cluster.start()
        self.shell = JobShell(self._options, cluster)
        orders = mail.orders_in(self.pod["metadata"].get("annotations") or {})
        wanted = orders.workers if orders is not None and orders.workers else self.spec.num_workers
        self.shell.adopt(found, wanted)
        mailbox = Mailbox(
            self.api,
            self.pod,
            self.shell,
            next_id=lambda: self._next_id,
            wanted=lambda count: None,
            leave=self._leave,
        )
        mailbox.start()
        await self.shell.run()

    def _used(self, worker_id: int) -> None:
        self._next_id = max(self._next_id, worker_id + 1)

    def _leave(self, why: str) -> None:
        self.lost = why
        self.task.cancel()

    def runs(self, worker_id: int, pod: Object) -> None:
        """A worker's pod runs, or something else about it changed."""
        worker = self.workers.get(worker_id)
        if worker is None:
            self.workers[worker_id] = PlayedWorker(self, worker_id, pod)
            return
        worker.pod = pod
        if worker.doomed:
            worker.drain()

    def complete(self, pod: Object) -> None:
        """Its container ended by itself: what a kubelet would write."""
        ended = [
            {**one, "ready": False, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
            for one in pod["status"].get("containerStatuses") or []
        ]
        path = names.path("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])

        def write() -> None:
            try:
                self.api.patch(
                    f"{path}/status", {"status": {"phase": "Succeeded", "containerStatuses": ended}}
                )
            except ClusterError as error:
                log.warning("the end of %s could not be written: %s", pod["metadata"]["name"], error)

        self._threads.submit(write)

    def close(self) -> None:
        self.task.cancel()
        for worker in list(self.workers.values()):
            worker.die()
