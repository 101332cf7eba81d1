"""All of it on two real nodes: the controller in pods, three jobs that train, a service, a drained node.

Installed with the command of the documents. Rooms are counted so that the service needs two workers to leave,
and that one node alone has room for one worker of each job.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.spec.resource import path
from kubelab import eventually
from kubelab.images import PAUSE
from tests.controller.process import MANIFESTS, SYSTEM
from tests.kubernetes.training import TrainingJob
from tests.trainingjob.conftest import served, unserved

pytestmark = [pytest.mark.cluster, pytest.mark.training, pytest.mark.timeout(900)]

NAMES = ("anna", "bert", "cleo")
EPOCHS = 40


@pytest.fixture
def installed(image, cluster) -> Iterator[None]:
    """`kubectl apply -k manifests/controller`, and everything gone at the end."""
    cluster.kubectl("apply", "-k", str(MANIFESTS))
    try:
        served(cluster)
        cluster.kubectl("rollout", "status", "deployment/elasticdl-controller", "-n", SYSTEM, "--timeout=90s")
        yield
    finally:
        cluster.kubectl("delete", "-k", str(MANIFESTS), "--wait=false")
        unserved(cluster)
        eventually(lambda: not cluster.pods(SYSTEM), "the controllers are gone", 90)


class Sharing:
    """Three jobs, and what is around them."""

    def __init__(self, first: TrainingJob) -> None:
        self.cluster, self.namespace = first.cluster, first.namespace
        self.jobs = [TrainingJob(self.cluster, self.namespace, first.directory, name) for name in NAMES]

    def status(self, job: TrainingJob) -> dict:
        return self.cluster.api.get(path(self.namespace, job.name)).get("status") or {}

    def ready(self) -> list[int]:
        """Workers of each job that its TrainingJob counts."""
        return [self.status(job).get("workers", {}).get("ready", 0) for job in self.jobs]

    def train_with(self, total: int) -> None:
        """Until all jobs train, with so many workers together."""

        def look() -> bool:
            rings = [self.status(job).get("phase") == "Running" for job in self.jobs]
            return all(rings) and sum(self.ready()) == total

        eventually(look, f"the jobs train with {total} workers", 240)

    def nodes_of(self, job: TrainingJob) -> set[str]:
        """Where its workers train."""
        pods = self.cluster.pods(self.namespace, names.selector(job.name, names.Replica.WORKER))
        return {pod["spec"]["nodeName"] for pod in pods if pod["status"].get("phase") == "Running"}

    def life_of(self, job: TrainingJob) -> tuple[str, int]:
        """Pod and container of its master: another one of either is another life."""
        pod = self.cluster.pod(self.namespace, job.master)
        if pod is None:
            return "", 0
        containers = pod["status"].get("containerStatuses") or [{"restartCount": 0}]
        return pod["metadata"]["uid"], containers[0]["restartCount"]

    def has_another_master(self, job: TrainingJob, before: tuple[str, int]) -> None:
        eventually(
            lambda: self.life_of(job)[0] and self.life_of(job) != before,
            f"{job.name} has another master", 120,
        )  # fmt: skip


PATIENT = {
    "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "patient"},
    "value": 1_000_000, "preemptionPolicy": "Never",
}  # fmt: skip
"""The scheduler preempts nobody for its pods: room comes only from who leaves by the plan."""


def service(cpu: str) -> dict:
    resources = {"requests": {"cpu": cpu}}
    pod = {"priorityClassName": "patient", "terminationGracePeriodSeconds": 0}
    containers = [{"name": "web", "image": PAUSE, "imagePullPolicy": "Never", "resources": resources}]
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {**pod, "containers": containers}},
        },
    }  # fmt: skip


def test_three_jobs_a_service_a_drained_node_and_lost_masters(installed, job, cluster, namespace):
    sharing = Sharing(job)
    for one in sharing.jobs:
        one.submit(
            2, EPOCHS, "--worker_resource_request=cpu=0.5,memory=128Mi",
            f"--checkpoint_dir=/data/checkpoints-{one.name}",
        )  # fmt: skip
    sharing.train_with(6)

    cluster.apply(PATIENT, service("1"), namespace=namespace)
    cluster.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=120s")
    sharing.train_with(4)
    told = cluster.kubectl("get", "events", "-n", namespace)
    assert f"makes room for {namespace}/web-" in told, "those who left know for whom"
    cluster.kubectl("delete", "deployment", "web", "-n", namespace)

    anna, bert, cleo = sharing.jobs
    evicted = sharing.life_of(anna)
    node = cluster.pod(namespace, anna.master)["spec"]["nodeName"]
    whole = [one for one in sharing.jobs if sharing.nodes_of(one) != {node}]
    cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", timeout=180)
    cluster.kubectl("uncordon", node)
    sharing.has_another_master(anna, evicted)
    cluster.wait_for_pod(namespace, bert.master)
    before = sharing.life_of(bert), sharing.life_of(cleo)
    os.kill(cluster.container_pid(namespace, bert.master), signal.SIGKILL)
    cluster.kubectl("delete", "pod", "-n", namespace, cleo.master, "--wait=false")
    sharing.has_another_master(bert, before[0])
    sharing.has_another_master(cleo, before[1])

    for one in sharing.jobs:
        one.goes_on()
    for one in sharing.jobs:
        verdict = one.ends_well()
        assert verdict.set_back == 0 or one not in whole, "who had a worker elsewhere made no step again"
        eventually(lambda one=one: sharing.status(one).get("phase") == "Succeeded", "its status says so", 60)
