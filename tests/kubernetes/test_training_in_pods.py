"""Real training on two real nodes, while pods, processes and nodes come and go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kubelab.builders import full_name
from kubelab.images import BUSYBOX
from tests.kubernetes.training import IMAGE, ROOT, TrainingJob

pytestmark = [pytest.mark.cluster, pytest.mark.training, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def image() -> None:
    """In the store, so that nodes which start from now on have it. Built only where it is missing."""
    from kubelab import images

    if IMAGE not in images._loaded():
        tag = IMAGE.removeprefix("docker.io/")
        assert full_name(tag) == IMAGE
        subprocess.run([sys.executable, str(ROOT / "docker/build"), "--tag", tag, "--load"], check=True)


@pytest.fixture
def job(image: None, cluster, namespace, tmp_path: Path) -> TrainingJob:
    job = TrainingJob(cluster, namespace, tmp_path / "data")
    job.prepare()
    return job


def service(replicas: int) -> dict[str, object]:
    """The service of the GKE guide, at the size of two small nodes."""
    container = {
        "name": "nginx",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 10000 & wait"],
        "resources": {"requests": {"cpu": "0.6", "memory": "16Mi"}},
    }
    pod = {"priorityClassName": "high", "terminationGracePeriodSeconds": 1, "containers": [container]}
    labels = {"app": "nginx"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "test-nginx"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def running(job: TrainingJob) -> list[int]:
    return sorted(int(i) for i, phase in job.phases().items() if phase == "Running")


def test_the_gke_guide_from_top_to_bottom(job, cluster, namespace):
    """Delete a worker, let a service take the room of three, give it back: no step is lost."""
    job.submit(4, 150)
    job.trains_with(0, 1, 2, 3)

    cluster.kubectl("delete", "pod", "-n", namespace, job.pod(0), "--wait=false")
    job.wait(lambda: "4" in job.phases(), "worker 4 is made at once")
    job.trains_with(1, 2, 3, 4)

    cluster.apply(service(5), namespace=namespace)
    job.wait(lambda: len(running(job)) == 1, "three workers give way")
    (left,) = running(job)
    job.trains_with(left)
    pending = [i for i, phase in job.phases().items() if phase == "Pending"]
    assert sorted(pending, key=int) == ["5", "6", "7"], "replacements wait for room"
    assert "PreemptionByScheduler" in job.log() or "preempted by a pod of higher priority" in job.log()

    cluster.kubectl("scale", "-n", namespace, "deployment.v1.apps/test-nginx", "--replicas=1")
    job.trains_with(left, 5, 6, 7)
    job.ends_well()
    assert "Loss = " in job.log(job.pod(7))
    assert job.elasticdl("status", *job.named).stdout.count("Succeeded")


def test_a_killed_master_is_followed_by_one_that_takes_over(job, cluster, namespace):
    """No new ring, no new pod: the workers do not even notice."""
    job.submit(2, 100)
    job.trains_with(0, 1)
    os.kill(cluster.container_pid(namespace, job.master), signal.SIGKILL)
    job.wait(lambda: "an earlier master of this job left workers [0, 1]" in job.log(), "it is restarted")
    steps = job.steps_of(0)
    job.wait(lambda: job.steps_of(0) > steps + 10, "training goes on")
    job.elasticdl("scale", *job.named, "--num_workers=3")
    job.trains_with(0, 1, 2)
    assert "plan: generation" in job.log(), "the next ring is the new master's first"
    assert sorted(job.phases()) == ["0", "1", "2"]
    job.elasticdl("scale", *job.named, "--num_workers=2")
    job.wait(lambda: job.phases().get("2") == "Succeeded", "the third one drains")
    job.ends_well()
