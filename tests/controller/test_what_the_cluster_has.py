"""Nodes and pods as the API server shows them → room as the scheduler counts it."""

from __future__ import annotations

import pytest

from edl_allreduce.core.autoscale.cluster import Match, Role
from edl_allreduce.core.controller import survey
from edl_allreduce.core.controller.inquiry import inquire
from edl_allreduce.core.controller.survey import Templates


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("cpu", "1k", 1_000_000), ("cpu", "250m", 250), ("cpu", "0.1", 100), ("cpu", "100u", 1),
        ("memory", "100Mi", 104_857_600), ("memory", "1e3", 1000), ("memory", "1500m", 2),
        ("memory", "2G", 2 * 10**9),
        ("nvidia.com/gpu", "10", 10), ("memory", "12E", 10**18), ("cpu", "nonsense", 0), ("cpu", "", 0),
    ],
)  # fmt: skip
def test_quantities_are_read_as_kubernetes_means_them_and_rounded_up(name, text, number):
    assert survey.amount(name, text) == number


def asks(**amounts: str) -> dict:
    return {"resources": {"requests": amounts}}


def test_a_pod_asks_for_what_its_containers_need_at_the_worst_moment():
    spec = {
        "initContainers": [
            asks(cpu="3"),
            {**asks(cpu="1"), "restartPolicy": "Always"},
            asks(cpu="1", memory="5"),
        ],
        "containers": [asks(cpu="1"), asks(cpu="500m", memory="1")],
        "overhead": {"cpu": "100m"},
    }
    assert survey.requests_of(spec) == {"cpu": 3100, "memory": 5}
    only_limits = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}
    assert survey.requests_of(only_limits) == {"nvidia.com/gpu": 2}


def test_pods_that_ask_the_same_share_a_template_and_affinity_is_kept():
    templates = Templates()
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    spec = {"containers": [asks(cpu="1")], "affinity": {"nodeAffinity": required}}
    first, second = templates.of(spec), templates.of({**spec, "containers": [asks(cpu="1000m")]})
    assert first is second
    ((requirement,),) = first.affinity
    assert (requirement.key, requirement.match, requirement.values) == ("zone", Match.IN, ("a",))
    assert first.admits({"zone": "a"}, ()) and not first.admits({"zone": "b"}, ())


def test_pods_that_are_over_or_held_back_need_no_room_and_those_that_leave_still_hold_theirs():
    def pod(**what):
        spec = {"containers": [asks(cpu="1")], **what.pop("spec", {})}
        metadata = {"namespace": "n", "name": "p", **what.pop("metadata", {})}
        return survey.pod({"metadata": metadata, "spec": spec, "status": what}, Templates())

    assert pod(phase="Succeeded", spec={"nodeName": "n0"}) is None
    assert pod(phase="Pending", spec={"schedulingGates": [{"name": "kueue"}]}) is None
    leaving = pod(
        phase="Running", spec={"nodeName": "n0"}, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}
    )
    assert leaving is not None and leaving.terminating and leaving.role is Role.SERVICE
    waiting = pod(phase="Pending")
    assert waiting is not None and waiting.node is None


def test_nodes_that_are_cordoned_or_not_ready_take_nothing_new_and_who_is_there_stays():
    def node(status: str, **spec):
        conditions = [{"type": "Ready", "status": status}]
        shown = {"allocatable": {"cpu": "2"}, "conditions": conditions}
        return survey.node({"metadata": {"name": "n0"}, "spec": spec, "status": shown})

    assert node("True").schedulable
    for held in (node("True", unschedulable=True), node("Unknown"), node("False")):
        assert (held.schedulable, held.ready) == (False, True)


def test_the_inquiry_has_the_quantities_of_the_documents():
    """PaddlePaddle EDL's example: one node of 2 CPUs with 265 thousandths asked for."""
    node = {
        "metadata": {"name": "minikube"},
        "status": {
            "allocatable": {"cpu": "2", "memory": "1993Mi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    pod = {
        "metadata": {"name": "dns", "namespace": "kube-system"},
        "spec": {"nodeName": "minikube", "containers": [
            {"resources": {"requests": {"cpu": "265m", "memory": "168M"}, "limits": {"cpu": "300m"}}}
        ]},
        "status": {"phase": "Running"},
    }  # fmt: skip
    found = inquire([node], [pod, {**pod, "status": {"phase": "Failed"}}])
    assert found["NodeCount"] == 1
    assert (found["CPURequestMilli"], found["CPULimitMilli"], found["CPUTotalMilli"]) == (265, 300, 2000)
    assert found["MemoryRequestMega"] == 168
    assert found["Nodes"]["NodesCPUIdleMilli"] == {"minikube": 1735}
    assert set(found) >= {"GPURequest", "GPULimit", "GPUTotal", "MemoryLimitMega", "MemoryTotalMega"}
