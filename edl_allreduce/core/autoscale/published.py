"""Rules to compare with: PaddlePaddle EDL's published greedy algorithm, and none at all (rigid jobs).

The greedy one is written anew from its description: one step up per job and round, the least fulfilled first,
where the whole cluster and one node have room; one step down per job and round, the most fulfilled first,
while more is requested than wanted; until a round changes nothing. As published it need not end: it gave
workers by one limit and took them by another (devices and memory with a wanted load below 1), and it gave by
one resource while it took because of another. Here both passes use the same limit for every resource, and
nothing is given while anything is above its limit: then a round that gives is never followed by one that
takes, and each of them can only go on for so long. All else is kept, with what one may think of it: requests
count without regard to where, order follows the size before the plan, nobody who is content is shrunk for a
poorer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from edl_allreduce.core.autoscale import words
from edl_allreduce.core.autoscale.cluster import Cluster, Pod, Role, Template
from edl_allreduce.core.autoscale.jobs import Job
from edl_allreduce.core.autoscale.policy import Decision, Plan, Policy
from edl_allreduce.core.autoscale.table import Seat, Table

CPU, MEMORY = "cpu", "memory"


def fulfilment_order(jobs: Iterable[Job]) -> list[Job]:
    """Elastic jobs, the least fulfilled first; ties by devices, then CPUs, then memory, the smaller first."""
    return sorted(
        (job for job in jobs if job.minimum < job.maximum),
        key=lambda job: (
            job.fulfilment,
            sum(amount for name, amount in job.worker.requests.items() if "/" in name),
            job.worker.requests.get(CPU, 0),
            job.worker.requests.get(MEMORY, 0),
        ),
    )


def greedy(cluster: Cluster, jobs: Sequence[Job], pods: Sequence[Pod], now: float, policy: Policy) -> Plan:
    """The published algorithm, made to end."""
    return _Greedy(cluster, jobs, pods, policy).run()


class _Greedy:
    def __init__(self, cluster: Cluster, jobs: Sequence[Job], pods: Sequence[Pod], policy: Policy) -> None:
        self.jobs = jobs
        self.policy = policy
        self.table = Table(cluster, jobs, pods)
        self.total = _sum(node.allocatable for node in cluster.nodes)
        self.requested = _sum(pod.asks.requests for pod in pods)
        managed = [job for job in jobs if job.managed]
        self.fresh = [job for job in managed if not self.table.size(job.name)]
        mastered = {pod.job for pod in pods if pod.role is Role.MASTER}
        for job in self.fresh:
            self._request(job.worker, job.minimum)
            if job.master is not None and job.name not in mastered:
                self._request(job.master, 1)
        self.movable = [job for job in managed if job not in self.fresh and (self.fresh or not job.settling)]

    def run(self) -> Plan:
        while self._up() | self._down():
            pass
        for job in self.fresh:
            self._begin(job)
        return Plan({job.name: self._decision(job) for job in self.jobs}, load=self.table.room.load())

    def _up(self) -> bool:
        changed = False
        for job in fulfilment_order(self.movable):
            if self.table.size(job.name) >= job.maximum or not self._fits(job.worker):
                continue
            node = self.table.free_node(job.name, load=1.0)
            if node is not None:
                self.table.sit(Seat(job.name, node))
                self._request(job.worker, 1)
                changed = True
        return changed

    def _fits(self, template: Template) -> bool:
        memory = template.requests.get(MEMORY, 0)
        if memory and self.total.get(MEMORY, 0) - self.requested.get(MEMORY, 0) <= memory:
            return False
        asked = {name: self.requested.get(name, 0) + amount for name, amount in template.requests.items()}
        return not self._over({**self.requested, **asked})

    def _over(self, requested: Mapping[str, int]) -> bool:
        return any(
            amount > self.policy.max_load * self.total.get(name, 0) for name, amount in requested.items()
        )

    def _down(self) -> bool:
        changed = False
        for job in reversed(fulfilment_order(self.movable)):
            size = self.table.size(job.name)
            if size > job.maximum or (size > job.minimum and self._over(self.requested)):
                self.table.leave(self.table.expendable(job.name, 1)[0])
                self._request(job.worker, -1)
                changed = True
        return changed

    def _request(self, template: Template, count: int) -> None:
        for name, amount in template.requests.items():
            self.requested[name] = self.requested.get(name, 0) + count * amount

    def _begin(self, job: Job) -> None:
        """What the scheduler does with the pods of a new job: they run when there is room."""
        mark = self.table.mark()
        while self.table.size(job.name) < job.minimum:
            node = self.table.free_node(job.name, load=1.0)
            if node is None:
                self.table.back_to(mark)
                return
            self.table.sit(Seat(job.name, node))

    def _decision(self, job: Job) -> Decision:
        return _decision(self.table, job) if job.managed else _hands_off(job)


def rigid(cluster: Cluster, jobs: Sequence[Job], pods: Sequence[Pod], now: float, policy: Policy) -> Plan:
    """Each job has its maximum from its beginning to its end; the next one waits for all of it."""
    table = Table(cluster, jobs, pods)
    for job in sorted((job for job in jobs if job.managed and not table.size(job.name)), key=_age):
        mark = table.mark()
        while table.size(job.name) < job.maximum:
            node = table.free_node(job.name, load=1.0)
            if node is None:
                break
            table.sit(Seat(job.name, node))
        if table.size(job.name) < job.maximum:
            table.back_to(mark)
            break
    decisions = {job.name: _decision(table, job) if job.managed else _hands_off(job) for job in jobs}
    return Plan(decisions, load=table.room.load())


def _age(job: Job) -> tuple[float, str]:
    return job.submitted, job.name


def _decision(table: Table, job: Job) -> Decision:
    seats = table.seats[job.name]
    return Decision(
        job.name,
        job.workers,
        len(seats),
        words.reason(job, len(seats), [], "this rule does not change it"),
        drain=table.to_drain(job.name),
        places=tuple(seat.node for seat in seats if seat.pod is None),
    )


def _hands_off(job: Job) -> Decision:
    return Decision(job.name, job.workers, job.workers, "its size is set by somebody else")


def _sum(amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in amounts:
        for name, amount in each.items():
            total[name] = total.get(name, 0) + amount
    return total
