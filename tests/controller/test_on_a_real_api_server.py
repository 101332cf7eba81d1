"""The controller's own process with the rights of its manifests, on a real API server with hollow nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.spec import parse_job
from edl_allreduce.spec.resource import path, to_object
from kubelab import eventually
from kubelab.api import condition
from kubelab.errors import ApiError
from tests.controller.process import MANIFESTS, SYSTEM, RunningController, allow, orders_on
from tests.trainingjob.conftest import training_jobs  # noqa: F401

pytestmark = [pytest.mark.controlplane, pytest.mark.usefixtures("training_jobs"), pytest.mark.timeout(600)]

MASTER = "elasticdl-job-master"
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction"}
TOO_MANY = 429
"""A PodDisruptionBudget does not allow it now; `kubectl drain` tries again."""


@pytest.fixture
def controllers(controlplane, tmp_path) -> Iterator[Callable[..., RunningController]]:
    """Start some; none outlives the test, nor does the lease."""
    kubeconfig = allow(controlplane, tmp_path)
    running: list[RunningController] = []

    def start(name: str, *flags: str) -> RunningController:
        running.append(RunningController(kubeconfig, name, *flags))
        return running[-1]

    yield start
    for controller in running:
        controller.end()
    controlplane.kubectl("delete", "lease", "-n", SYSTEM, "--all")


def submit(controlplane, namespace: str, *more: str) -> None:
    anywhere = {"pod_spec": {"tolerations": [{"key": "kubelab/hollow", "operator": "Exists"}]}}
    flags = [
        "--job_name=job", "--image_name=example/none:1", "--model_def=a.b.c", "--training_data=/x",
        "--num_workers=8", "--worker_resource_request=cpu=1,memory=64Mi", f"--namespace={namespace}",
        "--master_resource_request=cpu=0.1,memory=64Mi", f"--cluster_spec_json={json.dumps(anywhere)}",
    ]  # fmt: skip
    controlplane.kubectl("apply", "-n", namespace, "-f", str(MANIFESTS.parent / "elasticdl-rbac.yaml"))
    controlplane.api.create(path(namespace), to_object(parse_job("train", [*flags, *more]).spec))


def worker(number: int) -> dict:
    """A pod of the job: its master, which would make it, does not really run here."""
    container = {"name": "worker", "image": "example/none:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.worker_name("job", number),
            "labels": names.labels("job", names.Replica.WORKER, number),
        },
        "spec": {
            "tolerations": [{"key": "kubelab/hollow", "operator": "Exists"}],
            "containers": [container],
        },
    }


def test_a_job_is_made_its_master_made_again_and_deleting_it_leaves_nothing(
    controlplane, namespace, controllers
):
    controlplane.add_hollow_nodes(1)
    controller = controllers("first")
    controller.says("leads in term 1")
    submit(controlplane, namespace)
    found = eventually(lambda: controlplane.pod(namespace, MASTER), "its master is made", 60)
    assert orders_on(controlplane, namespace, MASTER).workers == 4, "unmeasured jobs begin with at most four"
    controller.says("Cluster.InquiryResource done")
    assert '"NodeCount":' in controller.log

    def told(kind: str) -> str:
        status = controlplane.api.get(path(namespace, "job")).get("status") or {}
        return (condition(status.get("conditions"), kind) or {}).get("status", "")

    eventually(lambda: told("Created") == "True", "the status says so", 60)
    assert "Pending" in controlplane.kubectl("get", "tj", "-n", namespace)
    eventually(
        lambda: "MasterMade" in controlplane.kubectl("describe", "tj", "job", "-n", namespace), "an Event", 60
    )

    controlplane.kubectl("scale", "tj", "job", "-n", namespace, "--replicas=3")
    eventually(lambda: orders_on(controlplane, namespace, MASTER).workers == 3, "it is scaled", 60)

    controlplane.kubectl("delete", "pod", "-n", namespace, MASTER, "--wait=false")

    def another():
        pod = controlplane.pod(namespace, MASTER)
        return pod is not None and pod["metadata"]["uid"] != found["metadata"]["uid"]

    eventually(another, "its master is made again", 90)
    controlplane.kubectl("delete", "tj", "job", "-n", namespace, "--wait=false")

    def rest() -> str:
        kinds = "pods,services,secrets,networkpolicies,poddisruptionbudgets,trainingjobs"
        return controlplane.kubectl("get", kinds, "-n", namespace, "-l", "app=elasticdl", "-o", "name")

    eventually(lambda: rest().strip() == "", "nothing is left", 90)
    assert "forbidden" not in controller.log and "lacks a right" not in controller.log


def test_a_drain_takes_a_jobs_last_pod_only_when_another_one_is_there(controlplane, namespace, controllers):
    """Master and last worker on one node: whoever is asked second is asked when the other is there again."""
    controlplane.add_hollow_nodes(1)
    controller = controllers("first")
    controller.says("leads in term 1")
    submit(controlplane, namespace)
    pods = f"/api/v1/namespaces/{namespace}/pods"

    def budget() -> int:
        found = controlplane.api.get(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets")
        (one,) = found["items"]
        return (one.get("status") or {}).get("disruptionsAllowed", -1)

    def evict(name: str) -> int:
        """As `kubectl drain` does; the API server's answer."""
        try:
            controlplane.api.create(f"{pods}/{name}/eviction", {**EVICTION, "metadata": {"name": name}})
        except ApiError as error:
            return error.status
        return 201

    controlplane.wait_for_pod(namespace, MASTER)
    controlplane.apply(worker(0), namespace=namespace)
    eventually(lambda: budget() == 1, "one of the two may leave", 60)
    assert evict("elasticdl-job-worker-0") == 201
    eventually(lambda: budget() == 0, "it leaves", 60)
    assert evict(MASTER) == TOO_MANY, "the last one stays"
    before = controlplane.pod(namespace, MASTER)["metadata"]["uid"]
    controlplane.apply(worker(1), namespace=namespace)
    controller.freeze()  # so that the next master comes when we say so
    eventually(lambda: evict(MASTER) == 201, "another worker is there, so the master may leave", 60)
    assert evict("elasticdl-job-worker-1") == TOO_MANY, "it alone has the model now"
    controller.thaw()

    def again() -> bool:
        pod = controlplane.pod(namespace, MASTER)
        return pod is not None and pod["metadata"]["uid"] != before

    eventually(again, "its master is made again", 90)
    eventually(lambda: evict("elasticdl-job-worker-1") == 201, "there is a master to plan its leave", 90)


def test_a_leader_that_is_frozen_is_followed_and_does_not_fight_when_it_is_back(
    controlplane, namespace, controllers
):
    controlplane.add_hollow_nodes(1)
    first = controllers("first")
    first.says("leads in term 1")
    second = controllers("second")
    second.says("first-")  # leads, as it sees it
    submit(controlplane, namespace)
    eventually(lambda: orders_on(controlplane, namespace, MASTER), "its master is made", 60)
    assert orders_on(controlplane, namespace, MASTER).term == 1

    first.freeze()
    second.says("leads in term 2: first-")
    controlplane.kubectl("scale", "tj", "job", "-n", namespace, "--replicas=6")
    wanted = (6, 2)

    def orders() -> tuple[int, int]:
        found = orders_on(controlplane, namespace, MASTER)
        return found.workers, found.term

    eventually(lambda: orders() == wanted, "the second one acts", 60)
    first.thaw()
    first.says("second-")  # leads, as it learns
    controlplane.kubectl("scale", "tj", "job", "-n", namespace, "--replicas=5")
    eventually(lambda: orders() == (5, 2), "only the second one acts", 60)
    assert first.log.count("leads in term") == 1

    second.end()
    first.says("leads in term 3: the last leader stepped down")


def test_without_a_right_it_names_the_rule(controlplane, namespace, controllers):
    role = "clusterrole/elasticdl-controller"
    rules = json.loads(controlplane.kubectl("get", role, "-o", "json"))["rules"]
    left = [rule for rule in rules if "secrets" not in rule["resources"]]
    controlplane.kubectl("patch", role, "--type=merge", "-p", json.dumps({"rules": left}))
    controlplane.add_hollow_nodes(1)
    controller = controllers("first")
    submit(controlplane, namespace)
    controller.says("lacks a right")
    assert 'cannot create resource "secrets"' in controller.log
