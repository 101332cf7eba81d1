"""Names, labels and paths of a job's objects: what people and scripts know ElasticDL by."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from edl_allreduce import contract

Object = dict[str, Any]

JOB_LABEL = "elasticdl-job-name"
TYPE_LABEL = "elasticdl-replica-type"
INDEX_LABEL = "elasticdl-replica-index"
STATUS_LABEL = "status"
PAGE_PORT = "page"
"""The name of the master's second port: page, metrics, probes."""
APP = "elasticdl"
"""Of the label `app` on everything that belongs to a job."""
ADOPTS = "elasticdl-adopts"
"""Annotation of a master's pod that was applied by hand: it becomes the owner of its Secret and Service."""
SLOT = "elasticdl-slot"
"""Annotation of a worker's pod: which of the wanted workers it is."""

OWN = frozenset(
    {
        contract.MASTER_ADDR,
        contract.WORKER_ID,
        contract.WORKER_NUM,
        contract.POD_IP,
        contract.POD_NAME,
        contract.POD_NAMESPACE,
        contract.JOB_TOKEN,
        contract.MASTER_CERTIFICATE,
        contract.MASTER_KEY,
    }
)
"""Variables that --envs and --populate_env_names cannot change."""


GROUPS = {
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
}
"""Where objects of other groups than the core one are."""


class Replica(StrEnum):
    """What a pod is in its job."""

    MASTER = "master"
    WORKER = "worker"


def master_name(job_name: str) -> str:
    """Of the pod, and of the Service in front of it."""
    return f"elasticdl-{job_name}-master"


def worker_name(job_name: str, worker_id: int) -> str:
    return f"elasticdl-{job_name}-worker-{worker_id}"


def secret_name(job_name: str, uid: str = "") -> str:
    """`uid`: of the TrainingJob, so that nobody takes the Secret of an earlier job of this name for it."""
    return f"elasticdl-{job_name}-{uid[:8]}" if uid else f"elasticdl-{job_name}"


def labels(job_name: str, replica: Replica, index: int) -> dict[str, str]:
    return {
        "app": APP,
        JOB_LABEL: job_name,
        TYPE_LABEL: replica.value,
        INDEX_LABEL: str(index),
    }


def selector(job_name: str, replica: Replica | None = None) -> str:
    """A label selector for the job's objects."""
    kind = f",{TYPE_LABEL}={replica.value}" if replica is not None else ""
    return f"{JOB_LABEL}={job_name}{kind}"


def worker_id_of(pod: Mapping[str, Any]) -> int | None:
    """The id of a worker's pod, from its label; None for any other pod."""
    found = pod["metadata"].get("labels", {})
    index = found.get(INDEX_LABEL, "")
    return int(index) if found.get(TYPE_LABEL) == Replica.WORKER and index.isdecimal() else None


def path(kind: str, namespace: str, name: str = "") -> str:
    """Where the API server keeps objects: pods, secrets, services… of the core group, or of another."""
    group = GROUPS.get(kind, "/api/v1")
    return f"{group}/namespaces/{namespace}/{kind}" + (f"/{name}" if name else "")
