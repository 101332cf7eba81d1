"""Jobs that cannot work: whoever looks sees the cause and what to do about it."""

from __future__ import annotations

import pytest

from kubelab import eventually
from tests.kubernetes.training import TrainingJob

pytestmark = [pytest.mark.cluster, pytest.mark.training, pytest.mark.timeout(600)]

CRASH = """

class Crash(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise RuntimeError("this model does not like digits")


def callbacks():
    return [Crash()]
"""


def failed(job: TrainingJob) -> str:
    """Wait for the end, and return what `elasticdl status` says about it."""
    pod = eventually(lambda: ended(job), f"{job.name} fails", 300)
    assert pod["status"]["phase"] == "Failed", job.log()
    return job.elasticdl("status", *job.named).stdout


def ended(job: TrainingJob) -> dict | None:
    pod = job.cluster.pod(job.namespace, job.master)
    return pod if pod["status"].get("phase") in ("Succeeded", "Failed") else None


def test_jobs_that_cannot_work_say_why(job, cluster, namespace):
    """At once and in one namespace: no image, no memory, no room, and a model that crashes."""
    zoo = job.directory / "zoo"
    (zoo / "crashing.py").write_text((zoo / "paced_digits.py").read_text() + CRASH)
    hungry, crashing, large, headless = (
        TrainingJob(cluster, namespace, job.directory, name)
        for name in ("hungry", "crashing", "large", "headless")
    )
    headless.submit(1, 1, "--image_name=docker.io/nowhere/nothing:1")
    job.submit(1, 1, "--worker_image=docker.io/nowhere/nothing:1")
    large.submit(1, 1, "--worker_resource_request=cpu=50,memory=64Mi", "--worker_resource_limit=")
    hungry.submit(
        1, 1, "--worker_resource_request=cpu=0.1,memory=64Mi", "--worker_resource_limit=cpu=2,memory=64Mi",
        "--max_worker_crashes=1",
    )  # fmt: skip
    crashing.submit(1, 1, "--model_def=crashing.custom_model", "--max_worker_crashes=1")

    words = failed(hungry)
    assert "used more memory than its limit; raise --worker_resource_limit" in words
    assert sorted(hungry.phases()) == ["0", "1"], "it was tried once more"
    words = failed(crashing)
    assert "RuntimeError: this model does not like digits" in words
    assert "not more than 1 failures are allowed (--max_worker_crashes)" in words
    words = failed(job)
    assert "cannot start: ErrImageNeverPull" in words
    assert "docker.io/nowhere/nothing:1" in words
    eventually(lambda: not job.phases(), "no pod waits for an image of a job that is over", 60)

    words = headless.elasticdl("status", *headless.named, check=False).stderr
    assert "its master's pod is on its way. ErrImageNeverPull" in words

    words = large.elasticdl("events", *large.named).stdout
    assert "Insufficient cpu" in words and "ask for less (--worker_resource_request)" in words
    assert large.elasticdl("stop", *large.named).returncode == 0
    assert "Stopped" in large.elasticdl("status", *large.named).stdout
