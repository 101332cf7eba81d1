"""The controller's own process with the rights of its manifests, on a real API server with hollow nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from edl_allreduce.spec import parse_job
from edl_allreduce.spec.resource import path, to_object
from kubelab import eventually
from kubelab.api import condition
from tests.controller.process import MANIFESTS, SYSTEM, RunningController, allow, orders_on
from tests.trainingjob.conftest import training_jobs  # noqa: F401

pytestmark = [pytest.mark.controlplane, pytest.mark.usefixtures("training_jobs"), pytest.mark.timeout(600)]

MASTER = "elasticdl-job-master"


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
        kinds = "pods,services,secrets,networkpolicies,trainingjobs"
        return controlplane.kubectl("get", kinds, "-n", namespace, "-l", "app=elasticdl", "-o", "name")

    eventually(lambda: rest().strip() == "", "nothing is left", 90)
    assert "forbidden" not in controller.log and "lacks a right" not in controller.log


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
