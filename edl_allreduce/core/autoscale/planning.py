"""One plan: a size for each job, so that services never wait, all of it fits, and little moves.

    1. what is above a maximum leaves
    2. pods of services get room, from workers above minimums
    3. each job gets its minimum, or waits
    4. workers that were lost come back where there is room
    5. workers that do not help are given back, and those above the wanted load
    6. a job with a deadline gets what it needs for it
    7. the rest is shared by the rule

Up to 4 it must be; 5 to 7 are for speed, so a job whose workers still start is left out of them. In step 7
a job either receives or gives, never both, so that it ends: receivers only grow, givers only shrink.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from edl_allreduce.core.autoscale import forecast, published, words
from edl_allreduce.core.autoscale.cluster import Ask, Cluster, Pod, Role
from edl_allreduce.core.autoscale.jobs import Job
from edl_allreduce.core.autoscale.policy import Decision, Plan, Policy, Rule, Waiting
from edl_allreduce.core.autoscale.table import Seat, Table
from edl_allreduce.core.autoscale.value import Worth, assumed

DEFAULT = Policy()
ENOUGH = 1e-9
"""Gains below this are rounding."""

INCUMBENT = 2.0
"""A job that trains is suspended only for one that comes so many times earlier in the queue."""


def plan(
    cluster: Cluster, jobs: Sequence[Job], pods: Sequence[Pod], now: float, policy: Policy = DEFAULT
) -> Plan:
    """What each job should have now. Pure: the same arguments give the same plan."""
    if policy.rule is Rule.GREEDY:
        return published.greedy(cluster, jobs, pods, now, policy)
    if policy.rule is Rule.RIGID:
        return published.rigid(cluster, jobs, pods, now, policy)
    return _Planner(cluster, jobs, pods, now, policy).run()


@dataclass
class _Planner:
    cluster: Cluster
    given: Sequence[Job]
    pods: Sequence[Pod]
    now: float
    policy: Policy
    starts: int = 0
    """Workers above minimums that this plan starts."""
    why: dict[str, list[str]] = field(default_factory=dict)
    """Reasons beside the figures, by job."""
    waiting: list[Waiting] = field(default_factory=list)
    room: dict[str, str] = field(default_factory=dict)
    received: set[str] = field(default_factory=set)
    """Jobs that got workers for the sake of speed: they do not give any in the same plan."""

    def __post_init__(self) -> None:
        self.table = Table(self.cluster, self.given, self.pods)
        self.jobs = {job.name: assumed(job, self.policy) for job in self.given if job.managed}
        share = sum(self.table.size(name) for name in self.jobs) / max(1, len(self.jobs))
        self.worth = {
            name: Worth(job, self.policy, job.lateness(share, self.now)) for name, job in self.jobs.items()
        }
        self.floor = {name: job.minimum for name, job in self.jobs.items()}
        self.ending = {
            job.name
            for job in self.given
            if job.known and job.workers and job.trained_for(job.workers) < self.policy.last_seconds
        }
        """Jobs so near their end that they are left in peace."""
        self.mastered = {
            pod.job
            for pod in self.pods
            if pod.role is Role.MASTER and not pod.terminating and self.table.room.knows(pod.node)
        }

    def run(self) -> Plan:
        self._trim()
        waiting = self._serve_pods([pod for pod in self.pods if pod.node is None and self._is_service(pod)])
        self._serve_minimums()
        waiting = self._serve_pods(waiting)  # a job that cannot have its minimum left room
        self.waiting = [
            Waiting(pod.name, f"waits for {words.asked(pod.asks)} on one node") for pod in waiting
        ]
        self._replace_lost()
        self._give_back()
        self._meet_deadlines()
        self._share()
        return self._plan()

    # -------------------------------------------------------------------------------------- what must be

    def _trim(self) -> None:
        """Workers that were told to leave and still are there, and those above a maximum."""
        for name, job in self.jobs.items():
            surplus = self.table.size(name) - min(job.workers, job.maximum)
            for seat in self.table.expendable(name, max(surplus, 0)):
                self.table.leave(seat)
            if job.workers > job.maximum:
                self._note(name, f"its maximum is {job.maximum}")

    def _serve_pods(self, pending: Sequence[Pod]) -> list[Pod]:
        """Room for Pending pods of services, before the scheduler has to preempt somebody; who has none."""
        order = sorted(pending, key=lambda pod: (-pod.priority, pod.created, pod.name))
        return [
            pod
            for pod in order
            if not self._make_place(self.table.room.ask(pod.asks), pod.name, below=pod.priority)
        ]

    def _is_service(self, pod: Pod) -> bool:
        """Masters of our jobs come with their minimum; the workers are what is planned."""
        return not pod.terminating and (pod.role is Role.SERVICE or pod.job not in self.jobs)

    def _make_place(self, ask: Ask, what: str, below: int | None = None) -> bool:
        """A place for a pod that stays: free, else from above minimums, else from jobs of less priority."""
        node = self.table.room.find(ask)
        if node is None:
            way = self.table.way(ask, self._spare())
            if way is None and below is not None:
                way = self.table.way(ask, self._lesser(below))
            if way is None:
                return False
            node = way[0]
            for seat in way[1]:
                self._dismiss(seat, what)
        self.table.occupy(node, ask)
        self.room[what] = node
        self.table.when_undone(lambda: self.room.__delitem__(what))
        return True

    def _spare(self) -> list[tuple[str, int]]:
        """Jobs above their minimum, the least loss first."""
        sizes = {name: self.table.size(name) for name in self.jobs}
        above = [name for name, size in sizes.items() if size > self.jobs[name].minimum]
        above.sort(key=lambda name: (self.jobs[name].priority, self._loss(name), name))
        return [(name, sizes[name] - self.jobs[name].minimum) for name in above]

    def _lesser(self, priority: int) -> list[tuple[str, int]]:
        """All workers of jobs with less priority: their minimum has to go as well."""
        lesser = [
            name for name, job in self.jobs.items() if job.priority < priority and self.table.size(name)
        ]
        lesser.sort(key=lambda name: (self.jobs[name].priority, self._loss(name), name))
        return [(name, self.table.size(name)) for name in lesser]

    def _loss(self, name: str) -> float:
        return self.worth[name].loss(self.table.size(name))

    def _dismiss(self, seat: Seat, for_whom: str) -> None:
        if seat not in self.table.seats[seat.job]:
            return  # it left with the others when its job fell below its minimum
        self.table.leave(seat)
        self._note(seat.job, f"makes room for {for_whom}")
        if 0 < self.table.size(seat.job) < self.jobs[seat.job].minimum:
            self._suspend(seat.job)

    def _suspend(self, name: str) -> None:
        for seat in list(self.table.seats[name]):
            self.table.leave(seat)

    def _serve_minimums(self) -> None:
        """By priority; within one, those with little left and those who waited long come first."""
        queue = sorted(self.jobs.values(), key=lambda job: (-job.priority, self._turn(job), job.name))
        for place, job in enumerate(queue):
            if self.table.size(job.name) >= job.minimum:
                if not self._master_placed(job):  # it trains on without one
                    self._note(job.name, f"its master waits for {words.asked(job.master or job.worker)}")
                continue
            if not self._begin(job) and not self._begin_instead_of(job, queue[:place:-1]):
                self._suspend(job.name)

    def _turn(self, job: Job) -> float:
        waited = max(self.now - job.submitted, 1.0)
        turn = job.trained_for(1) / job.weight / math.sqrt(waited)
        return turn / INCUMBENT if job.workers else turn

    def _begin(self, job: Job) -> bool:
        """The whole minimum and its master, or nothing."""
        mark = self.table.mark()
        if not self._master_placed(job):
            self.table.back_to(mark)
            return False
        ask = self.table.ask(job.name)
        while self.table.size(job.name) < job.minimum:
            node = self.table.free_node(job.name, load=1.0)
            if node is None:
                spare = [(name, count) for name, count in self._spare() if name != job.name]
                way = self.table.way(ask, spare)
                if way is None:
                    self.table.back_to(mark)
                    return False
                node = way[0]
                for seat in way[1]:
                    self._dismiss(seat, job.name)
            self.table.sit(Seat(job.name, node))
        return True

    def _master_placed(self, job: Job) -> bool:
        if job.master is None or job.name in self.mastered:
            return True
        return self._make_place(self.table.room.ask(job.master), f"{job.name}-master")

    def _begin_instead_of(self, job: Job, later: Sequence[Job]) -> bool:
        """Suspend jobs that come later in the queue, the last first, until this one's minimum fits."""
        mark = self.table.mark()
        suspended: list[Job] = []
        for other in later:
            spared = other.priority == job.priority and not self.policy.suspend
            if spared or not self.table.size(other.name):
                continue
            self._suspend(other.name)
            suspended.append(other)
            if self._begin(job):
                self._take_back(suspended, job.name)
                return True
        self.table.back_to(mark)
        return False

    def _take_back(self, suspended: Sequence[Job], for_whom: str) -> None:
        """Those whose workers were on other nodes than the ones that were needed stay after all."""
        for job in suspended:
            mark = self.table.mark()
            self.table.stay_after_all(job.name)
            if self.table.size(job.name) < job.minimum:
                self.table.back_to(mark)
                self._note(job.name, f"suspended for {for_whom}")

    def _replace_lost(self) -> None:
        """Workers whose node is gone, or who still wait for one: their job asked for them before."""
        for name, job in self.jobs.items():
            wanted = min(job.workers, job.maximum)
            while self.table.size(name) < wanted and self.table.size(name) and not self._gave(name):
                node = self.table.free_node(name, self.policy.max_load)
                if node is None:
                    self._note(name, "there is no room for more")
                    break
                self.table.sit(Seat(name, node))

    def _gave(self, name: str) -> bool:
        return self.table.drained[name] > 0

    # ------------------------------------------------------------------------------------------ for speed

    def _at_peace(self, name: str) -> bool:
        """Whether a job may be changed for the sake of speed: it is whole, and not about to change or end."""
        job = self.jobs[name]
        if job.workers == 0:
            return self.table.size(name) > 0
        return not job.settling and self.table.size(name) >= job.minimum

    def _give_back(self) -> None:
        """A worker that does not make its job faster is not kept; nor one above the load that is wanted."""
        for name in self.jobs:
            if not self._at_peace(name) or self.table.size(name) <= self.floor[name]:
                continue
            size = self.table.size(name)
            best = self.worth[name].best_below(self.floor[name], size)
            for seat in self.table.expendable(name, size - best):
                self.table.leave(seat)
                self._note(name, "more workers do not make it faster")
        self._unload()

    def _unload(self) -> None:
        while self.policy.max_load < 1 and self.table.room.overloaded(self.policy.max_load):
            over = self.table.room.overloaded(self.policy.max_load)
            able = [name for name, _ in self._spare() if any(self.table.ask(name).amounts[at] for at in over)]
            if not able:
                return
            self.table.leave(self.table.expendable(able[0], 1)[0])
            self._note(able[0], f"the load is kept at {self.policy.max_load:.0%}")

    def _meet_deadlines(self) -> None:
        """The fewest workers with which a job ends in time, the earliest deadline first."""
        dated = [job for job in self.jobs.values() if job.deadline is not None and self._at_peace(job.name)]
        for job in sorted(dated, key=lambda job: (job.deadline, job.name)):
            assert job.deadline is not None
            need = self._size_for(job, job.deadline - self.now)
            if need is None:
                self._note(job.name, "its deadline cannot be met")
                continue
            self.floor[job.name] = max(job.minimum, need)
            if not self._grow(job.name, self.floor[job.name], at_any_price=True):
                self._note(job.name, "there is no room to meet its deadline")

    def _size_for(self, job: Job, seconds: float) -> int | None:
        sizes = range(job.minimum, job.maximum + 1)
        return next((size for size in sizes if job.time_left(size) <= seconds), None)

    def _share(self) -> None:
        """Give the next worker to the job that gains most by it; take it from one that loses less."""
        heap = [entry for name in self.jobs if (entry := self._claim(name)) is not None]
        heapq.heapify(heap)
        while heap:
            _, name, target = heapq.heappop(heap)
            size = self.table.size(name)
            if self._gave(name):
                continue
            if not self._grow(name, target):
                continue
            self.received.add(name)
            if self.table.size(name) < target:
                self.worth[name].no_more_than(self.table.size(name))
            if self.table.size(name) > size and (entry := self._claim(name)) is not None:
                heapq.heappush(heap, entry)

    def _claim(self, name: str) -> tuple[float, str, int] | None:
        if not self._at_peace(name) or name in self.ending or self._gave(name):
            return None
        size = self.table.size(name)
        target = self.worth[name].step(size)
        if target is None:
            return None
        gain = (self.worth[name].of(target) - self.worth[name].of(size)) / (target - size)
        return -gain, name, target

    def _grow(self, name: str, target: int, at_any_price: bool = False) -> bool:
        """Seat workers up to `target`, as far as that is worth what others lose; whether any came."""
        worth, begun = self.worth[name], self.table.size(name)
        mark = self.table.mark()
        best, best_net = None, ENOUGH
        lost = 0.0
        while self.table.size(name) < target:
            price = self._seat_one(
                name, math.inf if at_any_price else worth.of(target) - worth.of(begun) - lost
            )
            if price is None:
                break
            lost += price
            net = worth.of(self.table.size(name)) - worth.of(begun) - (1 + self.policy.margin) * lost
            if at_any_price or net > best_net:
                best, best_net = self.table.mark(), net
        if best is None:
            self.table.back_to(mark)
            return self.table.size(name) >= target
        self.table.back_to(best)
        self.starts += self.table.size(name) - begun
        return True

    def _seat_one(self, name: str, most: float) -> float | None:
        """One more worker: what it costs others, or None when it cannot be had for `most`."""
        job = self.jobs[name]
        if self.table.size(name) >= job.workers and self.starts >= self.policy.most_starts:
            return None
        node = self.table.free_node(name, self.policy.max_load)
        if node is not None:
            self.table.sit(Seat(name, node))
            return 0.0
        donors = list(self._donors(name, most))
        way = self.table.way(self.table.ask(name), donors)
        if way is None:
            return None
        price = 0.0
        for seat in way[1]:
            price += self._loss(seat.job)
            self._dismiss(seat, name)
        if not self.table.room.within(self.table.ask(name), self.policy.max_load):
            return None
        self.table.sit(Seat(name, way[0]))
        return price

    def _donors(self, receiver: str, most: float) -> Iterator[tuple[str, int]]:
        priced = [
            (loss, name)
            for name, seats in self.table.seats.items()
            if name in self.jobs
            and len(seats) > self.floor[name]
            and name != receiver
            and name not in self.received
            and name not in self.ending
            and self._at_peace(name)
            and (loss := self._loss(name)) * (1 + self.policy.margin) < most
        ]
        for _, name in sorted(priced):
            yield name, self.table.size(name) - self.floor[name]

    # -------------------------------------------------------------------------------------------- reasons

    def _note(self, name: str, reason: str) -> None:
        notes = self.why.setdefault(name, [])
        if reason not in notes:
            notes.append(reason)
            self.table.when_undone(lambda: notes.remove(reason))

    def _plan(self) -> Plan:
        times = forecast.forecast(self.table, [job for job in self.given if job.managed], self.now)
        decisions = {job.name: self._decision(job, *times.get(job.name, (None, None))) for job in self.given}
        return Plan(decisions, tuple(self.waiting), self.room, self.table.room.load())

    def _decision(self, job: Job, starts: float | None, ends: float | None) -> Decision:
        if not job.managed:
            return Decision(job.name, job.workers, job.workers, "its size is set by somebody else")
        seats = self.table.seats[job.name]
        reason = words.reason(job, len(seats), self.why.get(job.name, []), self._idle_words(job))
        if not seats and starts is not None:
            reason += f"; it should begin in {words.duration(starts - self.now)}"
        return Decision(
            job.name,
            job.workers,
            len(seats),
            reason,
            drain=self.table.to_drain(job.name),
            places=tuple(seat.node for seat in seats if seat.pod is None),
            starts=starts,
            ends=ends,
        )

    def _idle_words(self, job: Job) -> str:
        """Why a job keeps its size."""
        if job.settling:
            return "its workers still start"
        if job.workers >= job.maximum:
            return "it has its maximum"
        if job.name in self.ending:
            return "it is about to end"
        return "no change is worth its cost"
