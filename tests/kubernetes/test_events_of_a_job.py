"""What `kubectl` tells of a job: Events and a state on its master's pod, on a real API server."""

from __future__ import annotations

import asyncio

import pytest

from edl_allreduce import clock
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.events import Recorder
from edl_allreduce.core import event_data, events
from edl_allreduce.core.status import EventRecord
from tests.kubernetes.training import ROOT
from tests.terminal.statuses import status

pytestmark = pytest.mark.controlplane


def made_pod(controlplane, namespace: str) -> names.Object:
    """It needs no node to be told about."""
    spec = {"containers": [{"name": "master", "image": "example/none:1"}]}
    manifest = {"metadata": {"name": "elasticdl-job-master"}, "spec": spec}
    made = controlplane.api.create(names.path("pods", namespace), manifest)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made["metadata"]}


def test_kubectl_describe_tells_what_happened(controlplane, namespace, connect):
    api = connect(controlplane.kubeconfig)
    pod = made_pod(controlplane, namespace)
    seen = status()
    recorder = Recorder(api, [pod], lambda: seen)
    told = [
        events.WorkerLaunched(0), events.WorkerLaunched(1),
        events.WorkerExited(1, "disrupted", "was preempted by another pod"),
        events.RingReformed(0, 2, 1, 0.0, 0.0, 0.05, 0.0, 0.01),
        *([events.JobWaits("for 2 workers")] * 3), events.JobEnded("Failed", "nobody is left"),
    ]  # fmt: skip

    async def story() -> None:
        for number, event in enumerate(told):
            facts = event_data.to_data(event)
            recorder.tell(EventRecord(number, clock.wall(), event.kind, event.text(), facts))
            await recorder.flush()  # one by one: the same again is counted
        await recorder.close()

    asyncio.run(story())
    name = pod["metadata"]["name"]
    described = controlplane.kubectl("describe", "pod", "-n", namespace, name)
    for words in (
        "WorkerDisrupted", "worker 1 was preempted by another pod", "RingReformed", "after 0.060 s",
        "x3 over", "for 2 workers", "Failed", "nobody is left", "elasticdl-master", "elasticdl-ring=2-of-2",
        "elasticdl.org/state: Training: step 100 of 200",
    ):  # fmt: skip
        assert words in described, f"{words}\n{described}"
    listed = controlplane.kubectl("get", "pods", "-n", namespace, "-L", "elasticdl-phase,elasticdl-ring")
    assert "Training" in listed and "2-of-2" in listed
    kept = api.get(names.path("events", namespace))["items"]
    assert len([event for event in kept if event["source"].get("component") == "elasticdl-master"]) == 6


def test_the_role_of_masters_allows_events(controlplane, namespace):
    controlplane.kubectl("apply", "-n", namespace, "-f", str(ROOT / "manifests/elasticdl-rbac.yaml"))
    account = f"system:serviceaccount:{namespace}:elasticdl"
    for verb in ("create", "patch"):
        may = controlplane.kubectl("auth", "can-i", verb, "events", "-n", namespace, f"--as={account}")
        assert may.strip() == "yes"
