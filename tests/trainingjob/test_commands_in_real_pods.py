"""The commands that people type, on a TrainingJob that trains in real pods under a real controller."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edl_allreduce.spec.resource import path
from kubelab import eventually
from tests.controller.process import RunningController, under_a_controller
from tests.kubernetes.conftest import image, job  # noqa: F401

pytestmark = [pytest.mark.cluster, pytest.mark.training, pytest.mark.timeout(900)]


@pytest.fixture
def controller(cluster, tmp_path) -> Iterator[RunningController]:
    with under_a_controller(cluster, tmp_path) as running:
        yield running


def test_a_job_is_watched_scaled_and_stopped_by_its_name(job, cluster, namespace, controller):  # noqa: F811
    said = job.elasticdl(*job.training(2, 10000)).stdout
    assert f"Submitted: TrainingJob {job.name}" in said
    job.trains_with(0, 1)
    assert "ring 2 of 2" in job.elasticdl("status", *job.named).stdout
    cluster.kubectl("wait", f"tj/{job.name}", "-n", namespace, "--for=condition=Running", "--timeout=60s")
    top = job.elasticdl_meanwhile("top", *job.named)
    logs = job.elasticdl_meanwhile("logs", *job.named, "--follow")
    job.wait(lambda: "[worker 0] Loss = " in logs.path.read_text(), "the logs are followed")
    assert job.name in job.elasticdl("jobs", f"--namespace={namespace}").stdout

    job.elasticdl("scale", *job.named, "--num_workers=1")
    job.wait(lambda: len(job.running()) == 1, "one worker leaves")
    refused = job.elasticdl("scale", *job.named, "--num_workers=3", check=False)
    assert "workers.replicas must be between" in refused.stderr

    job.fast()
    assert "Stopped after" in job.elasticdl("stop", *job.named).stdout
    where = path(namespace, job.name)
    eventually(lambda: cluster.api.get(where)["status"].get("phase") == "Stopped", "it is told", 60)
    assert "Stopped" in job.elasticdl("status", *job.named).stdout
    assert "[worker 0] Loss = " in logs.said() and top.said()
    cluster.kubectl("delete", "tj", job.name, "-n", namespace)
    kinds = "pods,secrets,services,networkpolicies"
    eventually(
        lambda: not cluster.kubectl("get", kinds, "-n", namespace, "-l", "app=elasticdl", "-o", "name"),
        "nothing is left",
        90,
    )
