"""All jobs and the whole cluster as the autoscaler sees them, and what it says about each job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.names import Object, Replica
from edl_allreduce.controller.jobs import Book, Entry, known_of, pods_of
from edl_allreduce.controller.mirror import CLASSES, NODES, PODS, Mirror
from edl_allreduce.core.autoscale import Cluster, Job, Node, Plan, Pod, Policy, Role, plan
from edl_allreduce.core.controller import survey
from edl_allreduce.core.controller.facts import Advice, Known
from edl_allreduce.core.trainingjob import FINAL
from edl_allreduce.spec.resource import TrainingJob

FIRST_PAUSE = 1.0
FIRST_START_UP = 30.0
"""Seconds that are assumed until a job was measured."""


@dataclass(frozen=True)
class Situation:
    """What a plan is made from."""

    nodes: Sequence[Node]
    jobs: Sequence[Job]
    pods: Sequence[Pod]

    def planned(self, now: float, policy: Policy) -> Plan:
        return plan(Cluster(self.nodes), self.jobs, self.pods, now, policy)


def situation(mirror: Mirror, book: Book) -> Situation:
    """Everything that counts for room, and the jobs whose size is to be found."""
    owned = pods_of(mirror)
    jobs: list[Job] = []
    roles: dict[str, tuple[str, Role]] = {}
    for entry in book.entries.values():
        job = entry.read.job
        if job is None or entry.managed_elsewhere:
            continue
        mine = owned.get(entry.uid, [])
        for pod in mine:
            worker = names.worker_id_of(pod) is not None
            roles[pod["metadata"]["uid"]] = (entry.key, Role.WORKER if worker else Role.MASTER)
        known = known_of(entry, job, mirror, mine, None, 0)
        if entry.told.phase not in FINAL and not known.wish.suspend and job.deletion is None:
            jobs.append(_job(entry, job, known, mirror, mine))
    pods = book.pods(mirror.of(PODS), roles)
    pods.sort(key=lambda one: (one.created, one.name))  # the youngest leave first
    return Situation([survey.node(one) for one in mirror.of(NODES)], jobs, pods)


def _job(entry: Entry, job: TrainingJob, known: Known, mirror: Mirror, pods: Sequence[Object]) -> Job:
    read, wish, said = entry.read, known.wish, known.told.progress
    if known.master is not None and known.master.progress is not None:
        said = known.master.progress
    assert read.worker is not None
    orders = known.master.orders if known.master is not None else None
    held = 0 if orders is None or orders.stop else orders.workers
    if known.master is None and known.workers.any:
        # Its master is lost, the job is not.
        held = max(0, known.workers.running + known.workers.coming - job.spec.standby)
    workers = known.workers
    settled = said.ring == held and workers.whole(held, job.spec.standby)
    return Job(
        name=entry.key,
        minimum=wish.minimum,
        maximum=wish.maximum,
        worker=read.worker,
        master=read.master,
        workers=held,
        standby=job.spec.standby,
        settling=held > 0 and not settled,
        managed=not wish.hands_off and wish.replicas is None,
        weight=job.spec.weight,
        priority=_priority(job, mirror, pods),
        remaining=float(said.total_steps - said.step) if said.total_steps > said.step else None,
        made=float(said.step),
        measured=said.step_seconds,
        pause=said.pause or FIRST_PAUSE,
        start_up=said.start_up or FIRST_START_UP,
        submitted=job.created,
        deadline=job.spec.typed.deadline,
    )


def _priority(job: TrainingJob, mirror: Mirror, pods: Sequence[Object]) -> int:
    for pod in pods:
        if (pod["metadata"].get("labels") or {}).get(names.TYPE_LABEL) == Replica.WORKER.value:
            return int(pod["spec"].get("priority") or 0)
    name = job.spec.typed.worker_priority.class_of(0, job.spec.num_workers)
    for found in mirror.of(CLASSES):
        if found["metadata"]["name"] == name or (not name and found.get("globalDefault")):
            return int(found.get("value") or 0)
    return 0


def advice_of(planned: Plan, mirror: Mirror) -> dict[str, Advice]:
    """By job; workers that should leave by their numbers."""
    found: dict[str, Advice] = {}
    for key, decision in planned.decisions.items():
        pods = (mirror.get(PODS, name) for name in decision.drain)
        numbers = (names.worker_id_of(pod) for pod in pods if pod is not None)
        leaving = tuple(sorted(number for number in numbers if number is not None))
        found[key] = Advice(decision.target, decision.reason, leaving, decision.starts, decision.ends)
    return found
