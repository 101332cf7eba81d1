"""The same two scripts in simulated time: the shipped planner, with a scheduler and nodes that are modelled.

For machines that are too small or too busy to run a control plane, and for tests: the same arguments give the
same figures. Each second pods are bound (by priority, then in their order, to the emptiest node) and run a
second later; a plan is made and carried out. Not modelled: the API server, masters, and whatever else takes
time beside what `Play` and `lab.POD_SECONDS` say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from edl_allreduce.core.autoscale import Cluster, Job, Node, Pod, Policy, Role, Rule, Template, plan
from edl_allreduce.core.autoscale.policy import Decision
from edl_allreduce.core.controller.account import SETTLED_SECONDS
from experiments.collector import EVERY, Sample
from experiments.lab import POD_SECONDS, Nodes, Shape, cpus
from experiments.players import Play

CPU = "cpu"
MASTER = Template({CPU: 1000})
SERVICE = Template({CPU: 3000})
SERVICE_PRIORITY = 1000
GATHER = 3.0
"""Seconds for which a ring waits for more newcomers, as is usual."""
PUBLISHED_LOOP = 5
"""Seconds between two looks of the published controller; ours looks each second."""


@dataclass
class ModelPod:
    """A pod, and since when it is what."""

    asks: Template
    role: Role
    job: str
    name: str
    created: float
    node: str | None = None
    runs: float = float("inf")
    ends: float = float("inf")


@dataclass
class ModelJob:
    """A job that was submitted."""

    name: str
    shape: Shape
    submitted: float
    worker: Template
    wanted: int = 0
    mastered: bool = False
    first_worker: float | None = None
    ring: int = 0
    changed: float = 0.0
    """When the ring was last made anew."""
    made: float = 0.0
    """Steps."""
    seen: dict[int, float] = field(default_factory=dict)


class Model:
    """A cluster, its pods and jobs."""

    def __init__(self, nodes: Sequence[Nodes], rule: Rule, max_load: float, play: Play) -> None:
        self.now = 0.0
        self.free = {
            f"size-{kind}-{n}": 1000 * one.cpu for kind, one in enumerate(nodes) for n in range(one.count)
        }
        self._sizes = dict(self.free)
        self._cpus = cpus(tuple(nodes))
        self._cluster = Cluster([Node(name, {CPU: size}) for name, size in self.free.items()])
        self._policy, self._play = Policy(rule=rule, max_load=max_load), play
        self.pods: dict[str, ModelPod] = {}
        self.jobs: dict[str, ModelJob] = {}
        self._made = 0
        self._began = 0.0
        self.samples: list[Sample] = []

    # ---------------------------------------------------------------------------------------- what happens

    def submit(self, name: str, shape: Shape) -> None:
        self.jobs[name] = ModelJob(name, shape, self.now, Template({CPU: 1000 * shape.cpu}))

    def scale_service(self, pods: int) -> None:
        """The youngest go first, as those of a ReplicaSet do that are alike in all else."""
        mine = [pod for pod in self.pods.values() if pod.role is Role.SERVICE and pod.ends == float("inf")]
        for pod in sorted(mine, key=lambda one: -one.created)[: max(0, len(mine) - pods)]:
            self._end(pod)
        for _ in range(pods - len(mine)):
            self._make(SERVICE, Role.SERVICE, "")

    def service(self) -> int:
        return sum(pod.role is Role.SERVICE and self._runs(pod) for pod in self.pods.values())

    def workers(self, job: str) -> int:
        return sum(
            pod.role is Role.WORKER and pod.job == job and self._runs(pod) for pod in self.pods.values()
        )

    def second(self, names: Sequence[str]) -> None:
        """Let a second pass."""
        for pod in [one for one in self.pods.values() if one.ends <= self.now]:
            self._gone(pod)
        self._bind()
        for job in self.jobs.values():
            self._train(job)
        if self._policy.rule is not Rule.GREEDY or self.now % PUBLISHED_LOOP == 0:
            self._plan()
        if (self.now - self._began) % EVERY == 0:
            self.samples.append(self._look(names))
        self.now += 1

    def begin(self) -> None:
        """From now on it counts."""
        self._began, self.samples = self.now, []

    # --------------------------------------------------------------------------------------------- pods

    def _runs(self, pod: ModelPod) -> bool:
        return pod.runs <= self.now

    def _make(self, asks: Template, role: Role, job: str) -> ModelPod:
        self._made += 1
        pod = ModelPod(asks, role, job, f"{job or 'service'}-{self._made}", self.now)
        self.pods[pod.name] = pod
        return pod

    def _end(self, pod: ModelPod) -> None:
        if pod.node is None:
            del self.pods[pod.name]
        else:
            pod.ends = min(pod.ends, self.now + POD_SECONDS)

    def _gone(self, pod: ModelPod) -> None:
        assert pod.node is not None
        self.free[pod.node] += pod.asks.requests[CPU]
        del self.pods[pod.name]

    def _bind(self) -> None:
        waiting = [pod for pod in self.pods.values() if pod.node is None and pod.created <= self.now]
        for pod in sorted(waiting, key=lambda one: (one.role is not Role.SERVICE, one.created)):
            ask = pod.asks.requests[CPU]
            fitting = [name for name, free in self.free.items() if free >= ask]
            if fitting:
                pod.node = max(fitting, key=lambda name: self.free[name] / self._sizes[name])
                self.free[pod.node] -= ask
                pod.runs = self.now + POD_SECONDS

    # --------------------------------------------------------------------------------------------- jobs

    def _mine(self, job: ModelJob) -> list[ModelPod]:
        return [
            pod
            for pod in self.pods.values()
            if pod.job == job.name and pod.role is Role.WORKER and pod.ends == float("inf")
        ]

    def _train(self, job: ModelJob) -> None:
        mine = self._mine(job)
        if job.first_worker is None and any(self._runs(pod) for pod in mine):
            job.first_worker = self.now
        ready = sum(pod.runs + self._play.start_up <= self.now for pod in mine)
        grows = ready > job.ring and self.now - job.changed >= GATHER
        if ready != job.ring and (grows or ready < job.ring) and ready >= job.shape.least:
            job.ring, job.changed = ready, self.now
        if job.ring:
            step = self._play.step(job.ring)
            job.made += 1 / step
            if self.now - job.changed >= SETTLED_SECONDS:
                job.seen[job.ring] = step

    def _plan(self) -> None:
        if self._policy.rule is Rule.RIGID:
            for job in self.jobs.values():
                if not job.mastered:
                    self._begin(job, job.shape.most)
            return
        given = [self._given(job) for job in self.jobs.values()]
        pods = [
            Pod(
                one.name,
                one.asks,
                one.node,
                one.role,
                one.job,
                self._priority(one),
                self._leaves(one),
                one.created,
            )
            for one in self.pods.values()
        ]
        decisions = plan(self._cluster, given, pods, self.now, self._policy).decisions
        for job in self.jobs.values():
            self._carry_out(job, decisions[job.name])

    def _priority(self, pod: ModelPod) -> int:
        return SERVICE_PRIORITY if pod.role is Role.SERVICE else 0

    def _leaves(self, pod: ModelPod) -> bool:
        return pod.ends < float("inf")

    def _given(self, job: ModelJob) -> Job:
        mine = self._mine(job)
        return Job(
            job.name,
            job.shape.least,
            job.shape.most,
            job.worker,
            MASTER,
            workers=job.wanted,
            settling=bool(job.wanted) and not len(mine) == job.wanted == job.ring,
            remaining=self._play.steps - job.made,
            made=job.made,
            measured=dict(job.seen),
            pause=self._play.pause,
            start_up=self._play.start_up,
            submitted=job.submitted,
        )

    def _carry_out(self, job: ModelJob, decision: Decision) -> None:
        if not job.mastered:
            if decision.target:
                self._begin(job, decision.target)
            return
        job.wanted = decision.target
        for name in decision.drain:
            self._end(self.pods[name])
        mine = self._mine(job)
        waiting = [pod for pod in mine if pod.node is None]
        for pod in waiting[: max(0, len(mine) - job.wanted)]:
            self._end(pod)
        for _ in range(job.wanted - len(mine)):
            self._make(job.worker, Role.WORKER, job.name)

    def _begin(self, job: ModelJob, size: int) -> None:
        """Its workers wait for its master, so they come later."""
        job.mastered, job.wanted = True, size
        self._make(MASTER, Role.MASTER, job.name)
        for _ in range(size):
            worker = self._make(job.worker, Role.WORKER, job.name)
            worker.created += POD_SECONDS + self._play.master_start

    # --------------------------------------------------------------------------------------------- looking

    def _look(self, names: Sequence[str]) -> Sample:
        loads = dict.fromkeys(["", *names], 0)
        for pod in self.pods.values():
            if self._runs(pod):
                loads[pod.job] += pod.asks.requests[CPU]
        workers = tuple(self.workers(name) for name in names)
        total = 1000 * self._cpus
        return Sample(
            self.now - self._began,
            sum(loads.values()) / total,
            workers,
            len(self.jobs),
            sum(count > 0 for count in workers),
            self.service(),
            tuple(loads[name] / total for name in names),
        )

    def pendings(self, pace: float = 1.0) -> list[float]:
        """As those of a collector."""
        return [
            (self.now - one.submitted) / pace
            if one.first_worker is None
            else one.first_worker - one.submitted
            for one in self.jobs.values()
        ]
