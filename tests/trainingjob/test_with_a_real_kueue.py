"""A job in a queue of a real Kueue: it shrinks where Kueue needs room, grows again, and replaces who is lost.

Pods are real objects on hollow nodes, made by the product's own code; a coroutine speaks for each worker.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from edl_allreduce.cluster.kubernetes.kueue import GROUP_LABEL
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.job.state import JobOptions
from edl_allreduce.master.shell import JobShell
from tests.kubernetes.conftest import cluster_for, connect, owner_of, spec_for, until  # noqa: F401
from tests.kubernetes.test_room_for_ninety_nine import worker
from tests.trainingjob import kueue

pytestmark = [pytest.mark.controlplane, pytest.mark.soak, pytest.mark.usefixtures("kueue")]

MINIMUM = "elasticdl-job-minimum"
CLASSES = [
    {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
    }
    for name, value in (("low", 1000), ("high", 1_000_000), ("urgent", 2_000_000))
]


def urgent(namespace: str) -> dict:
    resources = {"requests": {"cpu": "1", "memory": "64Mi"}}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "urgent", "labels": {"kueue.x-k8s.io/queue-name": "team"}},
        "spec": {
            "priorityClassName": "urgent", "tolerations": [{"key": "kubelab/hollow", "operator": "Exists"}],
            "containers": [{"name": "c", "image": "example/none:1", "resources": resources}],
        },
    }  # fmt: skip


@pytest.fixture
def queue(controlplane, namespace, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    controlplane.add_hollow_nodes(2, cpu=9)
    controlplane.apply(*CLASSES)
    with kueue.beside(controlplane, tmp_path, port, cpus=4):
        controlplane.apply(kueue.local_queue(namespace))
        yield
        # While somebody is there who lets go of those that it holds.
        controlplane.kubectl("delete", "pods", "--all", "-n", namespace)


def test_kueue_shrinks_a_job_instead_of_evicting_it(queue, controlplane, namespace, connect):  # noqa: F811
    api = connect(controlplane.kubeconfig)
    flags = ("--num_workers=4", "--min_workers=2", "--queue_name=team", "--worker_pod_priority=0.5")
    spec = spec_for(namespace, *flags)
    cluster, _ = cluster_for(api, spec, owner_of(controlplane, namespace))

    def running() -> set[str]:
        found = controlplane.pods(namespace, "app=elasticdl")
        return {
            pod["metadata"]["name"]
            for pod in found
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        }

    async def scenario() -> None:
        await cluster.start()
        job = JobShell(JobOptions("job", 4, 2, 2.0, Deadlines(120), 3), cluster)
        task = asyncio.create_task(job.run())
        workers: dict[str, asyncio.Task[None]] = {}

        async def play() -> None:
            while True:
                now = await asyncio.to_thread(running)
                for name in now - set(workers):
                    workers[name] = asyncio.create_task(worker(job, int(name.rpartition("-")[2])))
                for name in set(workers) - now:
                    workers[name].cancel()
                await asyncio.sleep(0.3)

        players = asyncio.create_task(play())

        def members() -> set[int]:
            return {one.worker_id for one in job.status().workers if one.rank >= 0}

        def ring() -> int:
            return len(members())

        await until(lambda: ring() == 4, "the queue admits all four", 60)
        first = await asyncio.to_thread(running)
        controlplane.apply(urgent(namespace), namespace=namespace)
        await until(lambda: ring() == 3, "one leaves for what is urgent", 60)
        gone = first - await asyncio.to_thread(running)
        assert gone <= {"elasticdl-job-worker-2", "elasticdl-job-worker-3"}, "none of the minimum"
        await asyncio.to_thread(controlplane.wait_for_pod, namespace, "urgent")
        controlplane.kubectl("delete", "pod", "urgent", "-n", namespace)
        await until(lambda: ring() == 4, "another one is admitted when there is room", 90)

        # One of the minimum is lost: Kueue takes the next one into the group, which stays admitted.
        controlplane.kubectl("delete", "pod", "elasticdl-job-worker-0", "-n", namespace)
        await until(lambda: ring() == 4 and 0 not in members(), "another one trains in its place", 90)
        group = await asyncio.to_thread(controlplane.pods, namespace, f"{GROUP_LABEL}={MINIMUM}")
        assert len(group) == 2 and {pod["status"]["phase"] for pod in group} == {"Running"}
        players.cancel()
        job.kill_all()
        with suppress(asyncio.CancelledError):
            await players
        await task

    asyncio.run(scenario())
