"""Real training as a TrainingJob: master deleted, node drained, job suspended; no step, no word is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from edl_allreduce.spec.resource import path
from kubelab import eventually
from tests.controller.process import RunningController, under_a_controller
from tests.kubernetes.training import TrainingJob

pytestmark = [pytest.mark.cluster, pytest.mark.training, pytest.mark.timeout(900)]


@pytest.fixture
def controller(cluster, tmp_path) -> Iterator[RunningController]:
    with under_a_controller(cluster, tmp_path) as running:
        yield running


def uid_of(job: TrainingJob) -> str:
    pod = job.cluster.pod(job.namespace, job.master)
    return pod["metadata"]["uid"] if pod is not None else ""


def history(job: TrainingJob) -> list[dict[str, Any]]:
    lines = job.elasticdl("events", *job.named, "--output=json").stdout.splitlines()
    return [json.loads(line) for line in lines]


def goodput(job: TrainingJob) -> dict[str, Any]:
    return json.loads(job.elasticdl("status", *job.named, "--output=json").stdout)["goodput"]


def nothing_was_forgotten(job: TrainingJob, told: list[dict[str, Any]], sums: dict[str, Any]) -> None:
    """What earlier masters told is still told, in its order; their sums only grew, and still add up."""
    kept = history(job)
    assert kept[: len(told)] == told
    serials = [event["serial"] for event in kept]
    assert serials == sorted(set(serials))
    now = goodput(job)
    for whole, parts in (("wall", "seconds"), ("worker_wall", "worker_seconds")):
        assert now[whole] > sums[whole]
        shrunk = {name for name, seconds in sums[parts].items() if now[parts].get(name, 0.0) < seconds}
        assert not shrunk, f"{sums}, then {now}"
        assert sum(now[parts].values()) == pytest.approx(now[whole], rel=0.01)


def suspend(job: TrainingJob, so: bool) -> None:
    change = json.dumps({"spec": {"suspend": so}})
    job.cluster.kubectl("patch", "tj", job.name, "-n", job.namespace, "--type=merge", "-p", change)


def test_a_master_that_is_deleted_or_drained_is_made_again_and_takes_over(
    controller, job, cluster, namespace
):
    job.submit(2, 100, "--worker_resource_request=cpu=0.5,memory=256Mi", "--checkpoint_dir=/data/checkpoints")
    job.trains_with(0, 1)
    first, said, sums = uid_of(job), history(job), goodput(job)
    assert {event["kind"] for event in said} >= {"launch", "hello", "ready", "plan"} and sums["seconds"]
    cluster.kubectl("delete", "pod", "-n", namespace, job.master, "--wait=false")
    eventually(lambda: uid_of(job) not in ("", first), "another master is made", 120)
    job.goes_on()
    job.wait(lambda: "an earlier master of this job left workers [0, 1]" in job.log(), "it finds the workers")
    steps = job.steps_of(0)
    job.wait(lambda: job.steps_of(0) > steps + 20, "training goes on")
    assert "plan: generation" not in job.log(), "without a new ring"
    assert " broke after " not in job.log(job.pod(0))
    nothing_was_forgotten(job, said, sums)

    def told() -> dict:
        return cluster.api.get(path(namespace, job.name)).get("status") or {}

    eventually(lambda: told().get("trainerStatus", {}).get("step", 0) > steps, "its progress is told", 60)
    assert told()["workers"] == {"ready": 2, "target": 2}

    second, said, sums = uid_of(job), history(job), goodput(job)
    node = cluster.pod(namespace, job.master)["spec"]["nodeName"]
    cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data")  # no --force
    cluster.kubectl("uncordon", node)
    eventually(lambda: uid_of(job) not in ("", second), "a third master is made", 120)
    job.wait(lambda: len(job.running()) == 2, "both workers run")
    job.wait(lambda: "an earlier master of this job left workers" in job.log(), "it takes over, too")
    job.goes_on()
    nothing_was_forgotten(job, said, sums)

    suspend(job, True)
    named = (f"tj/{job.name}", "-n", namespace)
    cluster.kubectl("wait", *named, "--for=condition=Suspended", "--timeout=120s")
    eventually(lambda: not cluster.pods(namespace, "app=elasticdl"), "others have its room", 60)
    assert any((job.directory / "checkpoints").iterdir())
    suspend(job, False)
    job.goes_on()
    verdict = job.ends_well()
    assert verdict.set_back == 0, "no step was made again"
    eventually(lambda: told().get("phase") == "Succeeded", "the TrainingJob says so", 60)
    cluster.kubectl("delete", "tj", job.name, "-n", namespace)
    eventually(lambda: not cluster.pods(namespace, "app=elasticdl"), "nothing is left", 120)
