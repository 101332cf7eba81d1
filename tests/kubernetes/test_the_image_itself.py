"""The image of docker/Dockerfile as it is, without this tree's code mounted into it."""

from __future__ import annotations

import pytest

from edl_allreduce.worker.loop.diary import audit
from kubelab import eventually
from tests.kubernetes.training import IMAGE

pytestmark = [pytest.mark.cluster, pytest.mark.training, pytest.mark.timeout(600)]


def ended(cluster, namespace: str, pod: str) -> bool:
    return cluster.pod(namespace, pod)["status"]["phase"] in ("Succeeded", "Failed")


def test_it_is_fit_to_train_and_trains_where_nothing_but_tmp_can_be_written(job, cluster, namespace):
    """As the user of the image, with no rights, on a root that is read-only."""
    script = """
        set -e
        ! touch /usr/there 2> /dev/null
        python3 -c 'import edl_allreduce; print(edl_allreduce.__file__)'
        elasticdl doctor
        elasticdl train --job_name=inside --model_zoo=/model_zoo --model_def=digits.mlp.custom_model \
            --training_data=/data/digits --num_workers=2 --minibatch_size=16 --num_epochs=2 \
            --audit_dir=/data/audit-inside --output=/data/out-inside
    """
    confined = {
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    places = {"tmp": "/tmp", "data": "/data"}
    container = {
        **{"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script]},
        "securityContext": confined,
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in places.items()],
    }
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "data", "hostPath": {"path": str(job.directory)}}]
    pod = {
        **{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "inside"}},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes},
    }
    cluster.apply(pod, namespace=namespace)
    eventually(lambda: ended(cluster, namespace, "inside"), "the training inside the image ends", 240)
    printed = cluster.logs(namespace, "inside")
    assert cluster.pod(namespace, "inside")["status"]["phase"] == "Succeeded", printed
    assert "-packages/edl_allreduce/__init__.py" in printed.splitlines()[0], "its own code"
    verdict = audit(str(job.directory / "audit-inside"))
    assert verdict.clean and verdict.epochs == 2, verdict
    assert (job.directory / "out-inside" / "model.keras").exists()
