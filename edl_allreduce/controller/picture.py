"""A cluster at one moment, for people: how full it is, who has how many workers, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.cluster.kubernetes.training_jobs import Account, account
from edl_allreduce.core.controller.inquiry import inquire
from edl_allreduce.core.controller.survey import ENDED
from edl_allreduce.core.trainingjob import Phase
from edl_allreduce.outside import line

MOST_WAITING: Final = 50
"""Pods that wait and are named; the others are counted."""
MOST_KEPT: Final = 20
"""Jobs whose workers a sample names, those with the most: there are thousands of samples."""
RESOURCES: Final = {
    "CPU": ("CPURequestMilli", "CPUTotalMilli"),
    "memory": ("MemoryRequestMega", "MemoryTotalMega"),
    "GPU": ("GPURequest", "GPUTotal"),
}
LONGEST_TEXT: Final = 500


@dataclass(frozen=True)
class Picture:
    """Everything that is shown of one moment."""

    wall: float
    nodes: int
    """That are ready."""
    used: Mapping[str, float]
    """Share of each resource that running pods asked for; only those that the cluster has."""
    jobs: tuple[Account, ...]
    """In the order in which they were submitted."""
    waiting: tuple[str, ...]
    """Pods of others without a place."""
    more_waiting: int = 0


class ClusterSample(NamedTuple):
    """What is kept of a moment."""

    wall: float
    used: float
    """Of the CPUs."""
    waiting: int
    """Pods of others without a place."""
    queued: int
    """Jobs that have not begun."""
    workers: Mapping[str, int]
    """That run, by job, of the largest."""
    others: int = 0
    """Workers of all other jobs."""


def picture(jobs: Iterable[Object], nodes: Iterable[Object], pods: Iterable[Object], wall: float) -> Picture:
    """From what the API server has; text of others is bounded here, and stays text in the browser."""
    pods = list(pods)
    asked = inquire(nodes, pods)
    accounts = sorted(map(account, jobs), key=lambda one: (one.created, one.namespace, one.name))
    waiting = [_named(pod) for pod in pods if _waits(pod)]
    return Picture(
        wall,
        asked["NodeCount"],
        {name: asked[part] / asked[whole] for name, (part, whole) in RESOURCES.items() if asked[whole]},
        tuple(accounts),
        tuple(waiting[:MOST_WAITING]),
        max(0, len(waiting) - MOST_WAITING),
    )


def sample(seen: Picture) -> ClusterSample:
    queued = [one for one in seen.jobs if one.phase == Phase.PENDING and not one.ready]
    running = [(f"{one.namespace}/{one.name}", one.ready) for one in seen.jobs if one.ready and not one.over]
    running.sort(key=lambda one: (-one[1], one[0]))
    return ClusterSample(
        seen.wall,
        seen.used.get("CPU", 0.0),
        len(seen.waiting) + seen.more_waiting,
        len(queued),
        dict(running[:MOST_KEPT]),
        sum(ready for _, ready in running[MOST_KEPT:]),
    )


def _waits(pod: Object) -> bool:
    """Of a service or somebody else: what our own jobs wait for is told with the jobs."""
    metadata, spec = pod["metadata"], pod["spec"]
    ours = (metadata.get("labels") or {}).get("app") == names.APP
    held = spec.get("schedulingGates") or metadata.get("deletionTimestamp")
    over = (pod.get("status") or {}).get("phase") in ENDED
    return not (ours or held or over or spec.get("nodeName"))


def _named(pod: Object) -> str:
    return line(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", LONGEST_TEXT)
