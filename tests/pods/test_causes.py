"""Pods as real clusters describe them, and whose fault their end was."""

from __future__ import annotations

import pytest

from edl_allreduce.core import pod_causes, relaunch
from edl_allreduce.core.causes import Cause
from edl_allreduce.core.pod_causes import Coming, Leaving, Over, Running


def pod(phase="Running", *, state=None, conditions=(), deletion=None, reason=None, message=None):
    status = {"phase": phase, "conditions": list(conditions)}
    if state is not None:
        status["containerStatuses"] = [{"name": "main", "state": state}]
    if reason:
        status["reason"] = reason
    if message:
        status["message"] = message
    metadata = {"name": "w"}
    if deletion:
        metadata["deletionTimestamp"] = deletion
    return {"metadata": metadata, "status": status}


def exited(code, reason="Error"):
    return {"terminated": {"exitCode": code, "reason": reason}}


def disrupted(reason, message=""):
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}


PREEMPTED = disrupted(
    "PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"
)
DELETED_AT = "2026-01-01T00:00:30Z"

ENDS = {
    "it finished": (pod("Succeeded", state=exited(0, "Completed")), Cause.FINISHED),
    "it crashed": (pod("Failed", state=exited(1)), Cause.CRASHED),
    "user code called abort": (pod("Failed", state=exited(134)), Cause.CRASHED),
    "the job is invalid": (pod("Failed", state=exited(3)), Cause.INVALID),
    "the master turned it out": (pod("Failed", state=exited(4)), Cause.SILENT),
    "somebody killed the process": (pod("Failed", state=exited(137)), Cause.DISRUPTED),
    "somebody ended the process": (pod("Failed", state=exited(143)), Cause.DISRUPTED),
    "the node was switched off and on": (pod("Failed", state=exited(255, "Unknown")), Cause.DISRUPTED),
    "memory limit": (pod("Failed", state=exited(137, "OOMKilled")), Cause.OUT_OF_MEMORY),
    "preempted and drained in order": (
        pod("Succeeded", state=exited(0, "Completed"), conditions=[PREEMPTED], deletion=DELETED_AT),
        Cause.DISRUPTED,
    ),
    "preempted and killed": (pod("Failed", state=exited(137), conditions=[PREEMPTED]), Cause.DISRUPTED),
    "deleted and drained": (
        pod("Succeeded", state=exited(0, "Completed"), deletion=DELETED_AT),
        Cause.DISRUPTED,
    ),
    "invalid, and deleted at the same time": (
        pod("Failed", state=exited(3), deletion=DELETED_AT),
        Cause.INVALID,
    ),
    "drained by kubectl": (
        pod("Failed", state=exited(1), conditions=[disrupted("EvictionByEvictionAPI")]),
        Cause.DISRUPTED,
    ),
    "the node's taint": (
        pod("Failed", conditions=[disrupted("DeletionByTaintManager")]),
        Cause.DISRUPTED,
    ),
    "the garbage collector": (pod("Failed", conditions=[disrupted("DeletionByPodGC")]), Cause.DISRUPTED),
    "a reason of tomorrow": (pod("Failed", conditions=[disrupted("SomethingNew")]), Cause.DISRUPTED),
    "evicted for disk pressure": (
        pod("Failed", reason="Evicted", message="The node was low on resource: ephemeral-storage."),
        Cause.DISRUPTED,
    ),
    "a spot node shuts down": (
        pod(
            "Failed", reason="Terminated", message="Pod was terminated in response to imminent node shutdown."
        ),
        Cause.DISRUPTED,
    ),
    "a spot node of older days": (pod("Failed", reason="Shutdown"), Cause.DISRUPTED),
    "node lost": (pod("Failed", reason="NodeLost"), Cause.DISRUPTED),
    "the node has no room after all": (
        pod("Failed", reason="OutOfcpu", message="Node didn't have enough resource: cpu"),
        Cause.REJECTED,
    ),
    "the program does not exist": (
        pod(
            "Failed",
            state={"terminated": {"exitCode": 128, "reason": "StartError", "message": "no such file"}},
        ),
        Cause.INVALID,
    ),
    "no reason at all": (pod("Failed"), Cause.CRASHED),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_pod_has_a_cause(name):
    given, cause = ENDS[name]
    reading = pod_causes.read(given)
    assert isinstance(reading, Over)
    assert reading.cause is cause, reading.text
    assert reading.text


def test_the_cause_is_told_in_the_pods_own_words():
    reading = pod_causes.read(ENDS["evicted for disk pressure"][0])
    assert reading.text == "was ended by its node: Evicted: The node was low on resource: ephemeral-storage."
    reading = pod_causes.read(ENDS["preempted and killed"][0])
    assert "preempted by a pod of higher priority" in reading.text
    assert "preempting to accommodate" in reading.text
    assert "--worker_resource_limit" in pod_causes.read(ENDS["memory limit"][0]).text


def test_a_disruption_that_did_not_come_is_no_disruption():
    not_really = {"type": "DisruptionTarget", "status": "False", "reason": "PreemptionByScheduler"}
    assert pod_causes.read(pod("Failed", state=exited(1), conditions=[not_really])).cause is Cause.CRASHED


def test_a_pod_that_runs_or_leaves():
    assert pod_causes.read(pod("Running", state={"running": {}})) == Running()
    leaving = pod_causes.read(pod("Running", deletion="1970-01-01T00:00:30Z", conditions=[PREEMPTED]))
    assert isinstance(leaving, Leaving)
    assert leaving.until == 30.0
    assert "preempted" in leaving.text


def test_a_pod_without_status_is_on_its_way():
    assert pod_causes.read({"metadata": {"name": "w"}}) == Coming("")
    assert pod_causes.read(pod("Pending", state={"waiting": {"reason": "ContainerCreating"}})) == Coming("")


def test_a_pod_without_room_says_so_and_is_not_broken():
    words = "0/2 nodes are available: 2 Insufficient cpu."
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    reading = pod_causes.read(pod("Pending", conditions=[unschedulable]))
    assert isinstance(reading, Coming) and not reading.broken
    assert reading.text.startswith(f"Unschedulable: {words}") and "--worker_resource_request" in reading.text


@pytest.mark.parametrize(
    "reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"]
)
def test_a_pod_whose_image_is_missing_is_broken(reason):
    state = {"waiting": {"reason": reason, "message": 'Back-off pulling image "nowhere/nothing:1"'}}
    reading = pod_causes.read(pod("Pending", state=state))
    assert reading == Coming(f'{reason}: Back-off pulling image "nowhere/nothing:1"', broken=True)


def test_a_pod_that_vanished_was_deleted_unless_it_had_ended():
    assert pod_causes.removed(pod("Running")) == Over(Cause.DISRUPTED, "was deleted")
    assert pod_causes.removed(pod("Failed", state=exited(1))).cause is Cause.CRASHED
    assert "preempted" in pod_causes.removed(pod("Pending", conditions=[PREEMPTED])).text


def test_a_rejected_worker_is_replaced_for_free_but_not_in_a_tight_loop():
    around = relaunch.Around(running=0, wanted=1, failures=99, budget=0)
    decision = relaunch.decide(relaunch.Worker(Cause.REJECTED), around)
    assert isinstance(decision, relaunch.Relaunch)
    assert decision.delay > 0
