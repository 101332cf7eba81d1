"""What pods meet on the cluster: each other, Services, the scheduler, their limits, the outside."""

import os
import signal

import pytest

from kubelab import eventually
from kubelab.api import condition, is_ready, pod_path
from kubelab.cluster import Cluster
from kubelab.errors import ApiError
from kubelab.images import BUSYBOX

pytestmark = pytest.mark.cluster


def test_both_nodes_are_ready_and_ran_through_kubectl_too(cluster):
    nodes = cluster.api.items("/api/v1/nodes")
    assert {node["metadata"]["name"]: is_ready(node) for node in nodes} == {"node-a": True, "node-b": True}
    assert cluster.kubectl("get", "nodes", "-o", "name").split() == ["node/node-a", "node/node-b"]


def test_pods_on_different_nodes_talk_through_a_service_name(cluster, namespace, start_pod):
    for node in ("node-a", "node-b"):
        start_pod(f"web-{node}", "exec probe serve :8080", node)
        ports = [{"port": 80, "targetPort": 8080}]
        service = {"metadata": {"name": node}, "spec": {"selector": {"app": f"web-{node}"}, "ports": ports}}
        cluster.api.create(f"/api/v1/namespaces/{namespace}/services", service)
    for here, there in (("node-a", "node-b"), ("node-b", "node-a"), ("node-a", "node-a")):
        name = f"from-{here}-to-{there}"
        start_pod(name, f"probe get http://{there}/", here, phase="Succeeded")
        assert cluster.logs(namespace, name).strip().endswith(f"web-{there}")


def test_a_pod_reaches_the_api_server_with_its_own_token(cluster, namespace, start_pod):
    start_pod("asks", "cat /var/run/secrets/kubernetes.io/serviceaccount/token; echo", phase="Succeeded")
    token = eventually(lambda: cluster.logs(namespace, "asks"), "the pod prints its token")
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token.strip()},
    }
    status = cluster.api.create("/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]
    assert status["user"]["username"] == f"system:serviceaccount:{namespace}:default"


def test_exec_runs_in_the_container(cluster, namespace, start_pod):
    start_pod("target", "exec sleep 1000")
    assert cluster.kubectl("exec", "-n", namespace, "target", "--", "hostname").strip() == "target"


def test_a_container_s_process_can_be_signalled(cluster, namespace, start_pod):
    start_pod("handler", 'trap "echo got it; exit 7" USR1; echo ready; while true; do sleep 0.1; done')
    eventually(lambda: "ready" in cluster.logs(namespace, "handler"), "the trap is set")
    os.kill(cluster.container_pid(namespace, "handler"), signal.SIGUSR1)
    pod = cluster.wait_for_pod(namespace, "handler", "Failed")
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
    assert "got it" in cluster.logs(namespace, "handler")


def test_a_pod_over_its_memory_limit_is_oom_killed(cluster, namespace, start_pod):
    pod = start_pod(
        "glutton",
        "exec tail -c 200000000 /dev/zero",  # keeps what it will print in memory
        phase="Failed",
        container={"resources": {"limits": {"memory": "64Mi"}}},
    )
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


def test_preemption_marks_the_victim_as_a_disruption_target(cluster, namespace, start_pod):
    cluster.add_node("small", cpu=1, memory_mib=1000)
    for name, value in (("high", 1000000), ("low", 1000)):
        cluster.api.create(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": f"{namespace}-{name}"}, "value": value, "globalDefault": False},
        )
    most = {"resources": {"requests": {"cpu": "700m"}}}
    command = 'trap "exit 0" TERM; while true; do sleep 0.1; done'
    start_pod("victim", command, "small", priorityClassName=f"{namespace}-low", container=most)
    path = f"{pod_path(namespace)}/victim"
    # A finalizer keeps the object, so that its last state can be read without a race.
    cluster.api.patch(path, {"metadata": {"finalizers": ["kubelab/keep"]}})
    try:
        start_pod("winner", command, "small", priorityClassName=f"{namespace}-high", container=most)
        victim = cluster.pod(namespace, "victim")
        disruption = condition(victim["status"]["conditions"], "DisruptionTarget")
        assert (disruption["status"], disruption["reason"]) == ("True", "PreemptionByScheduler")
        assert victim["metadata"]["deletionTimestamp"]
    finally:
        cluster.api.patch(path, {"metadata": {"finalizers": None}})
        for name in ("high", "low"):
            cluster.api.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{namespace}-{name}")


def test_the_restricted_level_of_pod_security_is_enforced(cluster, namespace):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    body = {"metadata": {"name": "root"}, "spec": {"containers": [{"name": "main", "image": BUSYBOX}]}}
    with pytest.raises(ApiError, match="violates PodSecurity") as refused:
        cluster.api.create(pod_path(namespace), body)
    assert refused.value.status == 403


def test_a_node_with_a_given_capacity_offers_just_that(cluster: Cluster):
    cluster.add_node("third", cpu=0.5, memory_mib=700)
    room = cluster.api.get("/api/v1/nodes/third")["status"]["allocatable"]
    assert room["cpu"] == "500m"
    assert 699 <= int(room["memory"].removesuffix("Ki")) / 1024 <= 701
