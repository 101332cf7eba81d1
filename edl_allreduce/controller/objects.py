"""The master's pod of a TrainingJob; the rest of its objects are those of any job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edl_allreduce.cluster.kubernetes import manifests
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.spec import JobSpec
from edl_allreduce.spec.choices import RestartPolicy

MASTER_GRACE = 10
"""Seconds between SIGTERM and SIGKILL: it leaves at once, and while it leaves no other has its name."""
NEXT_MASTER_SECONDS = 300.0
"""How long workers train on without a master, at least: on a lost node it takes more than a minute until its
pod is given up and another one started."""


def master_pod_of(
    spec: JobSpec, owner: Object, annotations: Mapping[str, str], *, restart_killed: bool = False
) -> Object:
    """The master's pod of the TrainingJob `owner`: when its node is lost, another is made elsewhere soon.

    `restart_killed`: the cluster can start a killed master again in the same pod, which is quicker. A kubelet
    that starts it after every end, as the spec may ask, would never let a job that failed be over.
    """
    grace = max(spec.master_grace_seconds, NEXT_MASTER_SECONDS)
    spec = replace(spec, master_grace_seconds=grace, restart_policy=RestartPolicy.NEVER)
    pod = manifests.master_pod(spec, restart_killed=restart_killed, uid=owner["metadata"]["uid"])
    told = {**pod["metadata"].get("annotations", {}), **annotations}
    rest = {
        "tolerations": [*pod["spec"].get("tolerations", []), *manifests.lost_nodes()],
        "terminationGracePeriodSeconds": MASTER_GRACE,
    }
    pod = {**pod, "metadata": {**pod["metadata"], "annotations": told}, "spec": {**pod["spec"], **rest}}
    return manifests.owned(pod, owner)
