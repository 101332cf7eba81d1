"""Objects that several tests of the cluster use."""

from collections.abc import Callable

import pytest

from kubelab.api import Object, pod_path
from kubelab.cluster import Cluster
from kubelab.images import BUSYBOX

MakePod = Callable[..., Object]


@pytest.fixture
def start_pod(cluster: Cluster, namespace: str) -> MakePod:
    """Creates a pod that runs a shell command, and waits until it runs."""

    def make(
        name: str, command: str, node: str | None = None, phase: str = "Running", **spec: object
    ) -> Object:
        container = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", command]}
        container.update(spec.pop("container", {}))
        body = {
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "restartPolicy": "Never",
                "containers": [container],
                **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
                **spec,
            },
        }
        cluster.api.create(pod_path(namespace), body)
        return cluster.wait_for_pod(namespace, name, phase)

    return make
