"""Nodes that lose power, freeze or are cut off look to the cluster as they do in real life."""

from pathlib import Path

import pytest

from kubelab import eventually
from kubelab.api import is_ready
from kubelab.cluster import Cluster

pytestmark = pytest.mark.cluster

COUNT = "i=0; while true; do i=$((i+1)); echo $i; sleep 0.2; done"


def _ready(cluster: Cluster, node: str) -> bool:
    return is_ready(cluster.api.get(f"/api/v1/nodes/{node}"))


def _becomes_not_ready(cluster: Cluster, node: str) -> None:
    eventually(lambda: not _ready(cluster, node), f"{node} is NotReady", 60)


def test_a_node_without_power_is_not_ready_and_its_containers_are_gone(cluster, namespace, start_pod):
    start_pod("worker", COUNT, "node-b")
    pid = cluster.container_pid(namespace, "worker")
    node = cluster.node("node-b")
    node.kill()
    assert not _exists(pid)
    assert not node.kubelet.running
    _becomes_not_ready(cluster, "node-b")
    taints = eventually(
        lambda: cluster.api.get("/api/v1/nodes/node-b")["spec"].get("taints"), "the node gets taints"
    )
    assert "node.kubernetes.io/unreachable" in {taint["key"] for taint in taints}
    assert cluster.pod(namespace, "worker")["status"]["phase"] == "Running"  # nobody could tell otherwise
    node.start()
    cluster.wait_for_nodes()


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_partitioned_node_keeps_its_pods_running_and_is_ready_again_when_healed(
    cluster, namespace, start_pod
):
    start_pod("server", "exec probe serve :8080", "node-b")
    address = cluster.pod(namespace, "server")["status"]["podIP"]
    pid = cluster.container_pid(namespace, "server")
    cluster.node("node-b").partition()
    start_pod("client", f"probe get http://{address}:8080/; exec sleep 1000", "node-a")
    _becomes_not_ready(cluster, "node-b")
    assert _exists(pid)
    # Silence, not refusal: packets vanish.
    said = cluster.logs(namespace, "client")
    assert "server" not in said.split()
    assert "refused" not in said
    cluster.node("node-b").heal()
    eventually(
        lambda: cluster.logs(namespace, "client").split()[-1:] == ["server"], "the client gets through"
    )
    cluster.wait_for_nodes()


def test_a_node_cut_off_from_the_api_server_only_still_serves_other_nodes(cluster, namespace, start_pod):
    start_pod("server", "exec probe serve :8080", "node-b")
    address = cluster.pod(namespace, "server")["status"]["podIP"]
    cluster.node("node-b").partition_from_api()
    start_pod("client", f"probe get http://{address}:8080/", "node-a", phase="Succeeded")
    _becomes_not_ready(cluster, "node-b")


def test_two_nodes_cut_off_from_each_other_stay_ready(cluster, namespace, start_pod):
    start_pod("server", "exec probe serve :8080", "node-b")
    address = cluster.pod(namespace, "server")["status"]["podIP"]
    cluster.node("node-a").partition(cluster.node("node-b"))
    start_pod("client", f"probe get http://{address}:8080/", "node-a")
    eventually(lambda: cluster.logs(namespace, "client").count("deadline") >= 2, "the client hears nothing")
    assert _ready(cluster, "node-a") and _ready(cluster, "node-b")
    cluster.node("node-a").heal()
    cluster.wait_for_pod(namespace, "client", "Succeeded")


def test_one_pod_can_be_unplugged_and_plugged_in_again(cluster, namespace, start_pod):
    start_pod("server", "exec probe serve :8080", "node-b")
    start_pod("neighbour", "exec probe serve :8080", "node-b")
    address = cluster.pod(namespace, "server")["status"]["podIP"]
    beside = cluster.pod(namespace, "neighbour")["status"]["podIP"]
    cluster.unplug_pod(namespace, "server")
    start_pod("client", f"probe get http://{beside}:8080/; probe get http://{address}:8080/", "node-a")
    eventually(lambda: "deadline" in cluster.logs(namespace, "client"), "the client hears nothing")
    assert "neighbour" in cluster.logs(namespace, "client").split()
    cluster.unplug_pod(namespace, "server", plugged=True)
    cluster.wait_for_pod(namespace, "client", "Succeeded")


def test_a_frozen_node_goes_on_where_it_stopped(cluster, namespace, start_pod):
    start_pod("counter", COUNT, "node-b")
    pid = cluster.container_pid(namespace, "counter")
    cluster.node("node-b").freeze()
    _becomes_not_ready(cluster, "node-b")
    assert _exists(pid)
    cluster.node("node-b").thaw()
    cluster.wait_for_nodes()
    numbers = [int(line) for line in cluster.logs(namespace, "counter").split()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_restarted_kubelet_finds_its_containers(cluster, namespace, start_pod):
    start_pod("steady", COUNT, "node-a")
    pid = cluster.container_pid(namespace, "steady")
    cluster.node("node-a").kubelet.restart()
    cluster.wait_for_nodes()
    assert cluster.container_pid(namespace, "steady") == pid
    assert cluster.pod(namespace, "steady")["status"]["containerStatuses"][0]["restartCount"] == 0
