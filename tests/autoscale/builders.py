"""Clusters, jobs and pods in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from edl_allreduce.core.autoscale import Cluster, Job, Node, Plan, Pod, Role, Template

GPU = "nvidia.com/gpu"
PLENTY = 10**9


def asks(cpu: float = 1, gpu: int = 0, memory: int = 0, **more: object) -> Template:
    requests = {"cpu": round(cpu * 1000), "memory": memory, GPU: gpu}
    return Template({name: amount for name, amount in requests.items() if amount}, **more)  # type: ignore[arg-type]


def node(name: str = "n0", cpu: float = 8, gpu: int = 0, memory: int = PLENTY, **more: object) -> Node:
    return Node(name, {"cpu": round(cpu * 1000), "memory": memory, GPU: gpu}, **more)  # type: ignore[arg-type]


def cluster(*nodes: Node) -> Cluster:
    return Cluster(nodes)


def nodes(count: int, cpu: float = 8, gpu: int = 0) -> Cluster:
    return Cluster([node(f"n{number}", cpu, gpu) for number in range(count)])


def workers(job: Job, places: Mapping[str, int] | Sequence[str]) -> list[Pod]:
    """Its running pods: so many on each node."""
    names = (
        [n for n, count in places.items() for _ in range(count)] if isinstance(places, Mapping) else places
    )
    return [Pod(f"{job.name}-{i}", job.worker, n, Role.WORKER, job.name) for i, n in enumerate(names)]


def service(name: str, template: Template, on: str | None = None, priority: int = 1000) -> Pod:
    return Pod(name, template, on, priority=priority)


def carried_out(plan: Plan, jobs: Sequence[Job], pods: Sequence[Pod]) -> tuple[list[Job], list[Pod]]:
    """The world once the plan is done: drained pods are gone, new ones run where there was room for them."""
    drained = {name for decision in plan.decisions.values() for name in decision.drain}
    left = [replace(pod, node=plan.room.get(pod.name, pod.node)) for pod in pods if pod.name not in drained]
    for job in jobs:
        master = f"{job.name}-master"
        if job.master is not None and master in plan.room:
            left.append(Pod(master, job.master, plan.room[master], Role.MASTER, job.name))
        for number, place in enumerate(plan.decisions[job.name].places):
            left.append(Pod(f"{job.name}-new{len(left)}-{number}", job.worker, place, Role.WORKER, job.name))
    return [replace(job, workers=plan.targets[job.name]) for job in jobs], left
