"""The API server, etcd and the scheduler can be killed, restarted and frozen; work on nodes goes on."""

import pytest

from kubelab import eventually
from kubelab.api import pod_path
from kubelab.images import BUSYBOX

pytestmark = pytest.mark.cluster


def test_objects_survive_a_restart_of_the_api_server(cluster, namespace, start_pod):
    start_pod("steady", "exec sleep 1000")
    cluster.apiserver.kill()
    assert not cluster.api.ready()
    cluster.apiserver.start()
    cluster.wait_for_api()
    assert cluster.pod(namespace, "steady")["status"]["phase"] == "Running"


def test_objects_survive_a_kill_of_etcd(cluster, namespace):
    cluster.etcd.restart()
    eventually(cluster.api.ready, "the API server has its database again")
    assert cluster.api.get(f"/api/v1/namespaces/{namespace}")["metadata"]["name"] == namespace


@pytest.mark.parametrize("component", ["kube-apiserver", "etcd"])
def test_a_frozen_component_answers_nothing_until_it_is_thawed(cluster, component):
    cluster.components[component].freeze()
    eventually(lambda: not cluster.api.ready(), "the API server is not ready")
    cluster.components[component].thaw()
    cluster.wait_for_api()


def test_without_a_scheduler_pods_stay_pending(cluster, namespace):
    cluster.scheduler.kill()
    pod = {"metadata": {"name": "waits"}, "spec": {"containers": [{"name": "main", "image": BUSYBOX}]}}
    cluster.api.create(pod_path(namespace), pod)
    assert "nodeName" not in cluster.pod(namespace, "waits")["spec"]
    cluster.scheduler.start()
    eventually(lambda: cluster.pod(namespace, "waits")["spec"].get("nodeName"), "the pod gets a node")
