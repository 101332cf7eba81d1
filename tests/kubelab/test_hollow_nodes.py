"""KWOK's nodes give the scheduler room without costing anything."""

import pytest

from kubelab import eventually
from kubelab.images import BUSYBOX

pytestmark = pytest.mark.controlplane

TOLERATION = {"key": "kubelab/hollow", "operator": "Exists"}


def test_hundreds_of_pods_run_on_a_hundred_hollow_nodes(controlplane, namespace):
    controlplane.add_hollow_nodes(100, cpu=18)
    requests = {"resources": {"requests": {"cpu": "1"}}}
    template = {
        "metadata": {"labels": {"app": "many"}},
        "spec": {"tolerations": [TOLERATION], "containers": [{"name": "main", "image": BUSYBOX, **requests}]},
    }
    deployment = {
        "metadata": {"name": "many"},
        "spec": {"replicas": 300, "selector": {"matchLabels": {"app": "many"}}, "template": template},
    }
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    controlplane.api.create(path, deployment)
    eventually(
        lambda: controlplane.api.get(f"{path}/many")["status"].get("readyReplicas") == 300,
        "300 pods are ready",
        timeout=120,
    )


def test_hollow_nodes_of_a_test_are_gone_in_the_next(controlplane):
    eventually(lambda: not controlplane.api.items("/api/v1/nodes"), "no node is left", 10)
