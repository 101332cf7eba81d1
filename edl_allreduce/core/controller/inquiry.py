"""What the cluster has and what its pods ask for, in one line: the quantities that the documents log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from edl_allreduce.core.controller.survey import CPU, ENDED, amounts, condition, requests_of

Object = Mapping[str, Any]

MEMORY: Final = "memory"
MEGA: Final = 10**6
DEVICES: Final = ("nvidia.com/gpu", "amd.com/gpu", "alpha.kubernetes.io/nvidia-gpu")
WORDS: Final = "Cluster.InquiryResource done"


def inquire(nodes: Iterable[Object], pods: Iterable[Object]) -> dict[str, Any]:
    """Sums over ready nodes and over pods that have one of them, in PaddlePaddle EDL's names and units."""
    ready = {
        node["metadata"]["name"]: amounts(node["status"].get("allocatable"))
        for node in nodes
        if condition(node.get("status") or {}, "Ready") == "True"
    }
    requested = {name: amounts({}) for name in ready}
    limited = amounts({})
    for pod in pods:
        place = pod["spec"].get("nodeName")
        if place not in ready or (pod.get("status") or {}).get("phase") in ENDED:
            continue
        requested[place].update(requests_of(pod["spec"]))
        for container in pod["spec"].get("containers") or ():
            limited.update(amounts((container.get("resources") or {}).get("limits")))
    asked, total = amounts({}), amounts({})
    for name in ready:
        asked.update(requested[name])
        total.update(ready[name])
    return {
        "NodeCount": len(ready),
        "GPURequest": sum(asked[name] for name in DEVICES),
        "GPULimit": sum(limited[name] for name in DEVICES),
        "GPUTotal": sum(total[name] for name in DEVICES),
        "CPURequestMilli": asked[CPU],
        "CPULimitMilli": limited[CPU],
        "CPUTotalMilli": total[CPU],
        "MemoryRequestMega": asked[MEMORY] // MEGA,
        "MemoryLimitMega": limited[MEMORY] // MEGA,
        "MemoryTotalMega": total[MEMORY] // MEGA,
        "Nodes": {
            "NodesCPUIdleMilli": {name: ready[name][CPU] - requested[name][CPU] for name in sorted(ready)},
            "NodesMemoryFreeMega": {
                name: (ready[name][MEMORY] - requested[name][MEMORY]) // MEGA for name in sorted(ready)
            },
        },
    }
