"""What would this policy have done with these jobs on this cluster: a replay in simulated time.

Between two events each ring trains at the speed of its size. Events are: a job comes, a job ends, newcomers
have started, and a look around every `interval` seconds; at each of them a plan is made and carried out by
the same function that a controller calls, with the same pods on the same nodes. What it costs is stated:
a worker holds its slot from the order on and trains `start_up` seconds later, during which its ring goes on;
each re-form stops the ring for `pause` seconds; a suspended job begins again like a new one. The planner is
told only what a master could tell: step times at sizes that this job has run (unless `known_speed`), and the
steps that are left. Not simulated: networks that slow each other down, failures, slow nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median

from edl_allreduce.core.autoscale.cluster import Cluster, Node, Pod, Role, Template
from edl_allreduce.core.autoscale.jobs import Job
from edl_allreduce.core.autoscale.planning import plan
from edl_allreduce.core.autoscale.policy import Decision, Policy, Rule
from edl_allreduce.core.autoscale.workloads import Submission

SLOT = "slot"
"""What a worker takes: one of these."""
WORKER = Template({SLOT: 1})
MOST_LOOKS = 2_000
"""Where every job has years left, a look each minute would take us years, too."""
DONE = 1e-6
"""Steps below which nothing is left: rounding."""


@dataclass(frozen=True)
class Setting:
    """The cluster of a replay, and what changes cost there."""

    slots: int = 64
    per_node: int = 4
    interval: float = 60.0
    """Seconds between two looks at a cluster in which nothing else happens."""
    pause: float = 1.0
    """Seconds for which a ring stands still when it re-forms. Ours take 0.1 s or less, most others 30 s."""
    start_up: float = 30.0
    """Seconds from the order for a worker until it trains."""
    known_speed: bool = False
    """Tell the planner all speeds from the beginning, as if each job had been profiled."""

    def cluster(self) -> Cluster:
        sizes = [self.per_node] * (self.slots // self.per_node) + [self.slots % self.per_node]
        return Cluster([Node(f"node-{n}", {SLOT: size}) for n, size in enumerate(sizes) if size])


@dataclass(frozen=True)
class Ended:
    """One job of a replay, after its end."""

    name: str
    submitted: float
    began: float
    """When its first workers had a place."""
    ended: float
    fair: float
    """Seconds that it would have taken on its share of the cluster: 1/N for the N jobs that were there on
    average while it was."""
    resizes: int

    @property
    def completion(self) -> float:
        return self.ended - self.submitted

    @property
    def pending(self) -> float:
        return self.began - self.submitted

    @property
    def unfairness(self) -> float:
        """Finish-time fairness: above 1 it took longer than on its own share."""
        return self.completion / self.fair


@dataclass(frozen=True)
class Sample:
    """The cluster at one time, for figures."""

    now: float
    busy: int
    """Slots in use."""
    running: int
    pending: int


@dataclass(frozen=True)
class Outcome:
    """One policy on one workload."""

    jobs: Sequence[Ended]
    samples: Sequence[Sample]
    utilisation: float
    """Slots in use, from the first submission to the last end."""
    jain: float
    """Jain's index of workers per job over what an equal split would give each; the mean over time."""
    plans: int


def replay(submissions: Sequence[Submission], policy: Policy, setting: Setting) -> Outcome:
    """Run all jobs to their end."""
    return _World(submissions, policy, setting).run()


@dataclass(eq=False)
class _Running:
    """A job that was submitted and has not ended."""

    spec: Submission
    job: Job
    left: float
    pods: list[Pod] = field(default_factory=list)
    ring: int = 0
    """Workers that train together; the others still start."""
    joins: float = math.inf
    """When those who start are ready."""
    paused_until: float = 0.0
    began: float | None = None
    resizes: int = 0
    seen: dict[int, float] = field(default_factory=dict)
    born: int = 0
    crowd: float = 0.0
    """Seconds times jobs that were there, for the share it would have had."""

    def ends(self, now: float) -> float:
        if not self.ring:
            return math.inf
        return max(now, self.paused_until) + self.left * self.spec.step(self.ring)


class _World:
    def __init__(self, submissions: Sequence[Submission], policy: Policy, setting: Setting) -> None:
        self.coming = sorted(submissions, key=lambda one: (one.time, one.name), reverse=True)
        self.policy = policy
        self.setting = setting
        self.cluster = setting.cluster()
        self.now = self.first = self.coming[-1].time if self.coming else 0.0
        self.there: list[_Running] = []
        self.over: list[Ended] = []
        self.samples: list[Sample] = []
        self.look = self.now
        self.used = self.evenness = self.crowded = 0.0
        self.plans = 0

    def run(self) -> Outcome:
        while self.coming or self.there:
            self._advance(self._next_event())
            self._end_and_join()
            while self.coming and self.coming[-1].time <= self.now:
                self._submit(self.coming.pop())
            self._replan()
        span = max(self.now - self.first, 1e-9)
        return Outcome(
            sorted(self.over, key=lambda one: (one.submitted, one.name)),
            self.samples,
            self.used / (span * self.setting.slots),
            self.evenness / self.crowded if self.crowded else 1.0,
            self.plans,
        )

    def _next_event(self) -> float:
        times = [min(one.joins, one.ends(self.now)) for one in self.there]
        times.append(self.coming[-1].time if self.coming else math.inf)
        if self.there:
            times.append(self.look)
        return max(min(times), self.now)

    def _advance(self, then: float) -> None:
        passed = then - self.now
        sizes = [len(one.pods) for one in self.there]
        self.used += passed * sum(sizes)
        if len(sizes) > 1:
            self.evenness += passed * _jain(
                sizes, [one.spec.maximum for one in self.there], self.setting.slots
            )
            self.crowded += passed
        for one in self.there:
            one.crowd += passed * len(self.there)
            trained = then - max(self.now, min(one.paused_until, then))
            if one.ring:
                one.left -= trained / one.spec.step(one.ring)
        self.now = then

    def _end_and_join(self) -> None:
        for one in list(self.there):
            if one.ring and (one.left <= DONE or one.ends(self.now) - self.now < 1e-6):
                self.there.remove(one)
                self.over.append(self._ended(one))
            elif one.joins <= self.now:
                one.joins = math.inf
                if one.ring:
                    one.paused_until = self.now + self.setting.pause
                one.ring = len(one.pods)
                one.seen[one.ring] = one.spec.step(one.ring)

    def _ended(self, one: _Running) -> Ended:
        took = max(self.now - one.spec.time, 1e-9)
        share = self.setting.slots / (one.crowd / took) if one.crowd else float(self.setting.slots)
        fair = one.spec.steps / _rate(one.spec, share) + self.setting.start_up
        assert one.began is not None
        return Ended(one.spec.name, one.spec.time, one.began, self.now, fair, one.resizes)

    def _submit(self, spec: Submission) -> None:
        setting, rigid = self.setting, self.policy.rule is Rule.RIGID
        sizes = range(1, spec.maximum + 1) if setting.known_speed else ()
        job = Job(
            spec.name,
            minimum=1 if not rigid else min(spec.workers, setting.slots),
            maximum=min(spec.workers if rigid else spec.maximum, setting.slots),
            worker=WORKER,
            weight=spec.weight,
            priority=spec.priority,
            remaining=spec.steps,
            measured={size: spec.step(size) for size in sizes},
            pause=setting.pause,
            start_up=setting.start_up,
            submitted=spec.time,
        )
        self.there.append(_Running(spec, job, spec.steps))

    def _replan(self) -> None:
        soonest = min((one.ends(self.now) - self.now for one in self.there if one.ring), default=0.0)
        self.look = self.now + max(self.setting.interval, soonest / MOST_LOOKS)
        for one in self.there:
            seen = one.job.measured if self.setting.known_speed else dict(one.seen)
            one.job = replace(
                one.job,
                workers=len(one.pods),
                remaining=max(one.left, DONE),
                made=max(0.0, one.spec.steps - one.left),
                measured=seen,
                settling=one.joins < math.inf,
            )
        pods = [pod for one in self.there for pod in one.pods]
        found = plan(self.cluster, [one.job for one in self.there], pods, self.now, self.policy)
        self.plans += 1
        for one in self.there:
            self._carry_out(one, found.decisions[one.spec.name])
        busy = sum(len(one.pods) for one in self.there)
        running = sum(1 for one in self.there if one.pods)
        self.samples.append(Sample(self.now, busy, running, len(self.there) - running))

    def _carry_out(self, one: _Running, decision: Decision) -> None:
        leaving = set(decision.drain)
        if leaving:
            one.pods = [pod for pod in one.pods if pod.name not in leaving]
            if one.ring > len(one.pods):
                one.ring = len(one.pods)
                one.paused_until = self.now + self.setting.pause
                if one.ring:
                    one.seen[one.ring] = one.spec.step(one.ring)
            if len(one.pods) == one.ring:
                one.joins = math.inf
        for node in decision.places:
            one.born += 1
            one.pods.append(Pod(f"{one.spec.name}-{one.born}", WORKER, node, Role.WORKER, one.spec.name))
        if decision.places:
            one.joins = self.now + self.setting.start_up
        if one.began is None and one.pods:
            one.began = self.now
        elif decision.target != decision.before:
            one.resizes += 1


def _rate(spec: Submission, workers: float) -> float:
    """Steps per second with a share of the cluster that need not be whole."""
    workers = min(workers, spec.maximum)
    if workers <= 1:
        return workers / spec.step(1)
    low = math.floor(workers)
    high = min(low + 1, spec.maximum)
    part = workers - low
    return (1 - part) / spec.step(low) + part / spec.step(high)


def _jain(sizes: Sequence[int], maximums: Sequence[int], slots: int) -> float:
    """1 when each has what an equal split with maximums would give it."""
    level, left = 0.0, float(slots)
    for place, most in enumerate(sorted(maximums)):
        level = left / (len(maximums) - place)
        if most > level:
            break
        left -= most
    parts = [size / min(level, most) for size, most in zip(sizes, maximums, strict=True)]
    squares = sum(part * part for part in parts)
    return sum(parts) ** 2 / (len(parts) * squares) if squares else 1.0


@dataclass(frozen=True)
class Summary:
    """One policy over one or more workloads; seconds, shares and indices."""

    policy: str
    jobs: int
    mean_completion: float
    median_completion: float
    p99_completion: float
    mean_pending: float
    utilisation: float
    worst_unfairness: float
    jain: float
    resizes: float
    """Per job."""
    makespan: float
    """The mean over workloads."""


def summary(name: str, outcomes: Sequence[Outcome]) -> Summary:
    jobs = [job for outcome in outcomes for job in outcome.jobs]
    completions = sorted(job.completion for job in jobs)
    spans = [max(j.ended for j in o.jobs) - min(j.submitted for j in o.jobs) for o in outcomes]
    return Summary(
        name,
        len(jobs),
        mean(completions),
        median(completions),
        completions[math.ceil(0.99 * len(completions)) - 1],
        mean(job.pending for job in jobs),
        mean(outcome.utilisation for outcome in outcomes),
        max(job.unfairness for job in jobs),
        mean(outcome.jain for outcome in outcomes),
        mean(job.resizes for job in jobs),
        mean(spans),
    )
