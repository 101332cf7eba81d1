"""Real training while nodes are drained, lose power or are cut off, and the control plane is in trouble."""

from __future__ import annotations

import os
import signal

import pytest

from kubelab import eventually
from tests.kubernetes.training import TrainingJob

pytestmark = [pytest.mark.cluster, pytest.mark.training, pytest.mark.timeout(900)]

ONE_PER_NODE = ("--worker_resource_request=cpu=1.2,memory=256Mi", "--failure_detection_seconds=6")


def places(job: TrainingJob) -> tuple[str, int, int]:
    """The node without the master, the worker on it, and the worker beside the master."""
    nodes = {i: job.cluster.pod(job.namespace, job.pod(i))["spec"]["nodeName"] for i in job.running()}
    master = job.cluster.pod(job.namespace, job.master)["spec"]["nodeName"]
    ((there, node),) = [(i, node) for i, node in nodes.items() if node != master]
    ((here, _),) = [(i, node) for i, node in nodes.items() if node == master]
    return node, there, here


def test_a_node_is_drained_then_loses_power_then_is_cut_off(job, cluster, namespace):
    """Each time its worker goes, the other one trains on, and a replacement comes with the node."""
    job.submit(2, 100, *ONE_PER_NODE)
    job.trains_with(0, 1)
    node, there, here = places(job)
    cluster.kubectl("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data")
    job.trains_with(here)
    assert f"worker {there} drains" in job.log()
    assert f"worker {there} drained and left" in job.log() or "its node is drained" in job.log()
    cluster.kubectl("uncordon", node)
    job.wait(lambda: len(job.running()) == 2, "the replacement runs")
    job.trains_with(*job.running())

    node, there, here = places(job)
    cluster.node(node).kill()
    job.wait(lambda: f"evict: worker {there} sent no heartbeat" in job.log(), "the silence is noticed")
    job.trains_with(here)
    cluster.node(node).start()
    job.wait(lambda: len(job.running()) == 2, "the next replacement runs")
    job.trains_with(*job.running())

    node, there, here = places(job)
    cluster.node(node).partition()
    job.trains_with(here)
    cluster.node(node).kubelet.freeze()  # it would end the worker before that one finds out by itself
    cluster.node(node).heal()
    job.wait(
        lambda: "ends: evicted" in job.log_on(node, there),
        "the worker that was cut off finds that it is out",
    )
    cluster.node(node).kubelet.thaw()
    job.wait(lambda: len(job.running()) == 2, "its replacement runs")
    assert there not in job.running()
    job.trains_with(*job.running())
    job.ends_well()


def test_the_masters_node_loses_power_and_later_the_master_is_deleted(job, cluster, namespace):
    """The worker elsewhere waits for the node. Deleting the master ends the job; the next one goes on."""
    flags = (*ONE_PER_NODE, "--checkpoint_dir=/data/checkpoints", "--master_grace_seconds=300")
    job.submit(2, 60, *flags)
    job.trains_with(0, 1)
    _, there, _ = places(job)
    node = cluster.pod(namespace, job.master)["spec"]["nodeName"]
    cluster.node(node).kill()
    eventually(lambda: " broke after " in job.log(job.pod(there)), "the ring breaks", 120)
    cluster.node(node).start()
    job.trains_with(there, 2)
    assert "an earlier master of this job left workers" in job.log()

    cluster.kubectl("delete", "pod", "-n", namespace, job.master, "--wait=false")
    eventually(lambda: not cluster.pods(namespace, "app=elasticdl"), "all pods are gone", 120)
    job.submit(2, 60, *flags)
    job.trains_with(0, 1)
    assert "the job goes on from /data/checkpoints/version-" in job.log()
    assert job.ends_well().set_back == 0, "no step was made again"


def test_the_control_plane_is_in_trouble(job, cluster, namespace):
    """Training needs no API server; what was to be done meanwhile is done once, when it is back."""
    job.submit(2, 100)
    job.trains_with(0, 1)
    doomed = cluster.container_pid(namespace, job.pod(1))
    cluster.etcd.freeze()
    job.goes_on()
    os.kill(doomed, signal.SIGKILL)
    job.goes_on()  # with worker 0 alone: nobody can make another
    cluster.etcd.thaw()
    job.trains_with(0, 2)

    before = plans(job)
    with cluster.faults() as faults:
        cluster.apiserver.kill()
        job.goes_on()
        gone = faults.expire_watch(path="/pods$", times=1)
        cut = faults.cut_watch(path="/pods$", after_events=1, times=2)
        errors = [faults.answer(code, method="POST", path="/pods$", times=1) for code in (500, 409, 429)]
        cluster.apiserver.start()
        cluster.wait_for_api()
        # After a while without an API server the master asks rarely.
        job.wait(lambda: gone.fired and cut.fired, "the master has listed anew and watches again")
        assert plans(job) == before, "the ring was not disturbed"
        cluster.kubectl("delete", "pod", "-n", namespace, job.pod(2), "--wait=false")
        job.trains_with(0, 3)
        job.wait(lambda: cut.fired == 2, "it watches once more")
        assert [rule.fired for rule in (gone, cut, *errors)] == [1, 2, 1, 1, 1]
    assert sorted(i for i, phase in job.phases().items() if phase == "Running") == ["0", "3"]
    assert "4" not in job.phases(), "nobody was made twice"
    job.ends_well()


def plans(job: TrainingJob) -> list[str]:
    return [line for line in job.log().splitlines() if "plan: generation" in line]
