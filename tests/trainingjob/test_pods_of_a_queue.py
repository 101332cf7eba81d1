"""What Kueue sees of a job: its own labels, in the shape that its documents give for pods with an owner."""

from __future__ import annotations

from edl_allreduce.cluster.kubernetes.manifests import MasterContext, master_pod, worker_pod
from edl_allreduce.spec import parse_job

FLAGS = ["--job_name=job", "--image_name=i", "--model_def=a.b.c", "--training_data=/x", "--num_workers=4"]
QUEUE = "kueue.x-k8s.io/queue-name"
GROUP = "kueue.x-k8s.io/pod-group-name"
SIZE = "kueue.x-k8s.io/pod-group-total-count"


def pods(*more: str):
    spec = parse_job("train", [*FLAGS, *more]).spec
    context = MasterContext("m:1")
    return master_pod(spec), [worker_pod(spec, 10 + slot, slot, context) for slot in range(4)]


def kueue_of(pod) -> dict[str, str]:
    found = {**pod["metadata"]["labels"], **pod["metadata"].get("annotations", {})}
    return {key: value for key, value in found.items() if key.startswith("kueue.")}


def test_the_minimum_is_a_group_and_the_rest_come_and_go_alone():
    master, workers = pods("--queue_name=team", "--min_workers=2")
    assert [QUEUE in kueue_of(pod) for pod in (master, *workers)] == [True] * 5
    assert [kueue_of(pod).get(GROUP) for pod in workers] == ["elasticdl-job-minimum"] * 2 + [None, None]
    assert [kueue_of(pod).get(SIZE) for pod in workers] == ["2", "2", None, None]
    assert all(kueue_of(pod)["kueue.x-k8s.io/pod-suspending-parent"] for pod in (master, *workers))


def test_all_of_the_minimum_is_of_one_priority_and_no_other_worker_is_worth_more():
    """A group has one priority, that of any of its pods: with one that is low all of it is preempted."""

    def classes(fraction: str) -> list[str]:
        flags = ("--queue_name=team", "--min_workers=2", f"--worker_pod_priority={fraction}")
        return [pod["spec"].get("priorityClassName", "") for pod in pods(*flags)[1]]

    assert classes("0.5") == ["high", "high", "low", "low"]
    assert classes("0.25") == ["high", "high", "low", "low"], "half a group cannot be high"
    assert classes("0.75") == ["high", "high", "high", "low"]
    assert classes("0") == ["low"] * 4


def test_the_master_waits_for_nobody_because_it_makes_the_group():
    master, _ = pods("--queue_name=team", "--min_workers=2")
    assert GROUP not in kueue_of(master)


def test_a_minimum_of_one_needs_no_group():
    _, workers = pods("--queue_name=team")
    assert [GROUP in kueue_of(pod) for pod in workers] == [False] * 4


def test_the_master_knows_the_queue_of_the_workers_that_it_makes():
    master, workers = pods("--queue_name=team")
    assert "--queue_name=team" in master["spec"]["containers"][0]["args"]
    assert "--queue_name=team" not in workers[0]["spec"]["containers"][0]["args"]


def test_a_job_without_a_queue_has_nothing_of_it():
    master, workers = pods()
    assert [kueue_of(pod) for pod in (master, *workers)] == [{}] * 5
