"""What a pod's own words mean: is it coming, is it over, and whose fault was it? Pure, over plain dicts.

A pod tells its end in several places that do not always agree. The order of trust: a disruption that the
cluster announced (condition DisruptionTarget, or a deletion), then the kubelet's reason for the whole pod,
then how the container ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from signal import Signals
from typing import Any

from edl_allreduce.contract import EXIT_EVICTED, EXIT_INVALID
from edl_allreduce.core.causes import Cause

Pod = Mapping[str, Any]

SIGNAL_BASE = 128

DISRUPTIONS = {
    "PreemptionByScheduler": "was preempted by a pod of higher priority",
    "DeletionByTaintManager": "was evicted from its node by a taint",
    "EvictionByEvictionAPI": "was evicted (its node is drained)",
    "DeletionByPodGC": "was removed because its node is gone",
    "TerminationByKubelet": "was evicted by its node",
}
"""Reasons of the condition DisruptionTarget."""

POD_REASONS = {
    "Evicted": Cause.DISRUPTED,
    "NodeLost": Cause.DISRUPTED,
    "NodeShutdown": Cause.DISRUPTED,
    "Shutdown": Cause.DISRUPTED,  # spot nodes before graceful shutdown got its own words
    "Terminated": Cause.DISRUPTED,  # the node shuts down
    "Preempting": Cause.DISRUPTED,  # the kubelet makes room for a critical pod
    "NodeAffinity": Cause.REJECTED,
    "OutOfcpu": Cause.REJECTED,
    "OutOfmemory": Cause.REJECTED,
    "OutOfpods": Cause.REJECTED,
    "UnexpectedAdmissionError": Cause.REJECTED,
}
"""Reasons of the pod as a whole, given by the kubelet."""

FORGOTTEN = ("Unknown", "ContainerStatusUnknown")
"""Reasons of a container of which its node, after a power loss, knows only that it was there."""

BROKEN_WAITS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Reasons for which a container waits that seldom go away by themselves."""


PATIENCE = "It starts when there is room; if no node is that large, ask for less (--worker_resource_request)."


@dataclass(frozen=True)
class Over:
    """The pod will not run any more."""

    cause: Cause
    text: str


@dataclass(frozen=True)
class Coming:
    """The pod does not run yet. `broken`: nobody but a person can help, unless it passes soon."""

    text: str
    broken: bool = False


@dataclass(frozen=True)
class Running:
    """The container runs."""


@dataclass(frozen=True)
class Leaving:
    """The pod was asked to end and still runs."""

    text: str
    until: float
    """When its time is over, in seconds since 1970."""


Reading = Over | Coming | Running | Leaving


def read(pod: Pod) -> Reading:
    """What the pod says about itself."""
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    if phase in ("Succeeded", "Failed"):
        return _over(pod)
    deadline = pod["metadata"].get("deletionTimestamp")
    if deadline:
        return Leaving(_disruption(pod) or "is deleted", datetime.fromisoformat(deadline).timestamp())
    if phase == "Running":
        return Running()
    return _coming(status)


def removed(pod: Pod) -> Over:
    """The pod, as last seen, is gone from the API server."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return _over(pod)
    return Over(Cause.DISRUPTED, _disruption(pod) or "was deleted")


def _over(pod: Pod) -> Over:
    status = pod["status"]
    ending = _terminated(status)
    words = _disruption(pod)
    if words and not _own_fault(ending):
        return Over(Cause.DISRUPTED, words)
    reason = status.get("reason", "")
    if reason in POD_REASONS:
        return Over(POD_REASONS[reason], _sentence(f"was ended by its node: {reason}", status.get("message")))
    if ending is None:
        return Over(Cause.CRASHED, _sentence(f"failed: {reason or 'no reason given'}", status.get("message")))
    return _container_end(ending)


def _own_fault(ending: Mapping[str, Any] | None) -> bool:
    """A worker that found the job to be invalid did so whatever else happened to its pod."""
    return ending is not None and ending.get("exitCode") == EXIT_INVALID


def _container_end(ending: Mapping[str, Any]) -> Over:
    code, reason, message = ending.get("exitCode", 0), ending.get("reason", ""), ending.get("message")
    if reason == "OOMKilled":
        return Over(
            Cause.OUT_OF_MEMORY,
            "was killed because it used more memory than its limit; raise --worker_resource_limit "
            "or lower --minibatch_size",
        )
    if reason in ("ContainerCannotRun", "StartError"):
        return Over(Cause.INVALID, _sentence(f"could not be started: {reason}", message))
    if reason in FORGOTTEN:
        return Over(Cause.DISRUPTED, "is lost: its node was restarted")
    if code == 0:
        return Over(Cause.FINISHED, "exited with 0")
    if code == EXIT_INVALID:
        return Over(Cause.INVALID, "could not begin")
    if code == EXIT_EVICTED:
        return Over(Cause.SILENT, "was turned out by the master")
    if code == SIGNAL_BASE + Signals.SIGKILL or code == SIGNAL_BASE + Signals.SIGTERM:
        return Over(Cause.DISRUPTED, f"was ended by {Signals(code - SIGNAL_BASE).name}")
    return Over(Cause.CRASHED, f"exited with {code}")


def _disruption(pod: Pod) -> str:
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            reason = condition.get("reason", "")
            words = DISRUPTIONS.get(reason, f"was disrupted: {reason}")
            return _sentence(words, condition.get("message"))
    return "was deleted" if pod["metadata"].get("deletionTimestamp") else ""


def _coming(status: Mapping[str, Any]) -> Coming:
    for container in status.get("containerStatuses") or ():
        waiting = container.get("state", {}).get("waiting", {})
        reason = waiting.get("reason", "")
        if reason and reason != "ContainerCreating":
            return Coming(_sentence(reason, waiting.get("message")), broken=reason in BROKEN_WAITS)
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            words = _sentence(condition.get("reason", "not scheduled"), condition.get("message"))
            return Coming(f"{words} {PATIENCE}" if condition.get("reason") == "Unschedulable" else words)
    return Coming("")


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for container in status.get("containerStatuses") or ():
        ending: Mapping[str, Any] | None = container.get("state", {}).get("terminated")
        if ending is not None:
            return ending
    return None


def _sentence(words: str, message: str | None) -> str:
    return f"{words}: {message.strip()}" if message and message.strip() else words
