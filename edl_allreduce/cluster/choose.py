"""Where a job runs, and where a job of this name lives: the only place that decides it.

Another way to run workers (Slurm) is one more file beside `local`, one more `Where` and one line of `MAKERS`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from edl_allreduce.cluster import registry
from edl_allreduce.cluster.base import Cluster, Site
from edl_allreduce.cluster.known import KnownJob
from edl_allreduce.cluster.local import LocalCluster
from edl_allreduce.cluster.manual import ManualCluster
from edl_allreduce.spec import Command, JobSpec, Strategy


class Where(enum.Enum):
    """What runs the workers of a job."""

    THIS_PROCESS = "this process"
    """One process without a master: --distribution_strategy=Local."""
    THIS_MACHINE = "processes of this machine"
    BY_HAND = "processes that people start"
    KUBERNETES = "pods"


def where(spec: JobSpec, command: Command = Command.TRAIN) -> Where:
    """What a command does with these flags. A master also knows that it has pods by their image alone."""
    if spec.image_name or (command is Command.MASTER and spec.worker_image):
        return Where.KUBERNETES
    if spec.distribution_strategy is Strategy.LOCAL and command is not Command.MASTER:
        return Where.THIS_PROCESS
    return Where.THIS_MACHINE if spec.num_workers else Where.BY_HAND


MAKERS: Final[Mapping[Where, Callable[[Site], Cluster]]] = {
    Where.THIS_MACHINE: LocalCluster,
    Where.BY_HAND: lambda site: ManualCluster(),
}
"""For masters outside of a cluster. One in a pod makes its own: it knows which pod owns the workers."""


def cluster_of(spec: JobSpec, site: Site) -> Cluster:
    """What starts the workers of a master on this machine."""
    return MAKERS[where(spec, Command.MASTER)](site)


def find_job(
    job_name: str, job_dir: str = "", namespace: str = "", *, force_kubeconfig: bool = False
) -> KnownJob:
    """The job of this name; without one, the only one that runs there. A namespace means Kubernetes."""
    if namespace:
        from edl_allreduce.cluster.kubernetes import finding  # a laptop needs no Kubernetes

        return finding.find_job(namespace, job_name, force_kubeconfig=force_kubeconfig)
    return registry.find_job(job_name, job_dir)


def known_jobs(namespace: str = "") -> Sequence[KnownJob]:
    """Every job that left something there, running or not."""
    if namespace:
        from edl_allreduce.cluster.kubernetes import finding

        return finding.known_jobs(namespace)
    return registry.known_jobs()
