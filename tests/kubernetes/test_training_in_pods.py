"""Real training on two real nodes, while pods, processes and nodes come and go."""

from __future__ import annotations

import json
import os
import signal
import urllib.request

import pytest

from scripts.demo_cluster import service
from tests.kubernetes.training import RECORDS, TrainingJob

pytestmark = [pytest.mark.cluster, pytest.mark.training, pytest.mark.timeout(900)]


def test_the_gke_guide_from_top_to_bottom(job, cluster, namespace):
    """Delete a worker, let a service take the room of three, give it back: no step is lost."""
    job.submit(4, 150, "--validation_data=/data/digits", "--evaluation_steps=500")
    job.trains_with(0, 1, 2, 3)
    assert "ring 4 of 4" in job.elasticdl("status", *job.named).stdout
    logs = job.elasticdl_meanwhile("logs", *job.named, "--follow")
    job.wait(lambda: "[worker 0] Loss = " in logs.path.read_text(), "the logs are followed")
    page = job.elasticdl_meanwhile("dashboard", *job.named, "--print")
    job.wait(lambda: "#token=" in page.path.read_text(), "the way to the page is open")
    with urllib.request.urlopen(page.path.read_text().partition("#")[0]) as answer:
        assert b"<!doctype html>" in answer.read()
    shown = json.loads(job.elasticdl("report", *job.named, "--format=json").stdout)
    assert {lane["worker_id"] for lane in shown["lanes"]} == {0, 1, 2, 3} and shown["samples"]
    assert cluster.pod(namespace, job.master)["status"]["containerStatuses"][0]["ready"]

    cluster.kubectl("delete", "pod", "-n", namespace, job.pod(0), "--wait=false")
    job.wait(lambda: "4" in job.phases(), "worker 4 is made at once")
    job.trains_with(1, 2, 3, 4)
    job.wait(lambda: "[worker 4] Loss = " in logs.path.read_text(), "the newcomer's log is followed")

    cluster.apply(service(5), namespace=namespace)
    job.wait(lambda: len(job.running()) == 1, "three workers give way")
    (left,) = job.running()
    job.trains_with(left)
    pending = [i for i, phase in job.phases().items() if phase == "Pending"]
    assert sorted(pending, key=int) == ["5", "6", "7"], "replacements wait for room"
    assert "PreemptionByScheduler" in job.log() or "preempted by a pod of higher priority" in job.log()

    cluster.kubectl("scale", "-n", namespace, "deployment.v1.apps/test-nginx", "--replicas=1")
    job.trains_with(left, 5, 6, 7)
    job.ends_well()
    assert "Loss = " in job.log(job.pod(7))
    assert "Evaluation metrics[step=500]" in job.log()
    assert "Succeeded" in job.elasticdl("status", *job.named).stdout
    assert "worker 4 starts" in job.elasticdl("events", *job.named).stdout
    assert "## Pauses of the ring" in job.elasticdl("report", *job.named, "--format=md").stdout
    assert "Ctrl-C closes the way to it." in page.said(), "it ends with the job"
    printed = logs.said()
    assert [i for i in (0, 4, 5, 6, 7) if f"[worker {i}] Loss = " not in printed] == [], "late ones, too"


def test_a_killed_master_is_followed_by_one_that_takes_over(job, cluster, namespace):
    """No new ring, no new pod: the workers do not even notice. Nor does another job beside it."""
    other = TrainingJob(cluster, namespace, job.directory, "other")
    followed = other.elasticdl_meanwhile(*other.training(1, 10000, "--follow"))
    job.submit(2, 100)
    job.trains_with(0, 1)
    other.trains_with(0)
    top = other.elasticdl_meanwhile("top", *other.named)
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

    assert "Stopped after" in other.elasticdl("stop", *other.named).stdout
    printed = followed.said()
    assert "generation 1: workers 0, because" in printed and "Stopped: " in printed
    assert "generation 2" not in printed, "it saw nothing of the other job"
    assert "other: Training" in top.said()
    assert other.audit().clean
    job.ends_well()


def test_a_trained_model_is_evaluated_and_predicts(job, cluster, namespace):
    """Three jobs one after the other: the second and the third use what the first one left."""
    job.fast()
    job.elasticdl(*job.training(2, 5, "--checkpoint_dir=/data/checkpoints", "--follow"))
    judge, oracle = (TrainingJob(cluster, namespace, job.directory, name) for name in ("judge", "oracle"))
    model = ("--num_workers=2", "--checkpoint_dir_for_init=/data/checkpoints", "--follow")
    evaluation = judge.elasticdl_meanwhile("evaluate", *judge.flags, "--validation_data=/data/digits", *model)
    prediction = oracle.elasticdl("predict", *oracle.flags, "--prediction_data=/data/digits", *model)
    assert f"Succeeded: {RECORDS} records" in prediction.stdout
    assert (job.directory / "out-oracle" / "predictions.json").exists()
    assert "accuracy" in evaluation.said()
