"""Pods that a queue of Kueue admits: the minimum all at once, every further worker on its own.

So Kueue shrinks a job instead of evicting it: a worker above the minimum is a workload of one pod, which is
preempted alone. The master comes first, alone too: it makes the workers, and a group is admitted only when
all its pods are there. Names of labels and annotations are Kueue's.
"""

from __future__ import annotations

from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.spec import JobSpec
from edl_allreduce.spec.resource.names import API_VERSION, KIND, QUEUE_LABEL

MANAGED_LABEL = "kueue.x-k8s.io/managed"
PARENT = "kueue.x-k8s.io/pod-suspending-parent"
"""Annotation: the pod has an owner, and Kueue is to look at it all the same."""
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"


def together(spec: JobSpec) -> int:
    """How many of the first workers are one workload to the job's queue."""
    return spec.min_workers if spec.queue_name and spec.min_workers > 1 else 0


def queued(pod: Object, spec: JobSpec, slot: int | None = None) -> Object:
    """The pod as one for the job's queue, if it has one. `slot`: which of the wanted workers it is."""
    if not spec.queue_name:
        return pod
    metadata = dict(pod["metadata"])
    labels = {QUEUE_LABEL: spec.queue_name, MANAGED_LABEL: "true"}
    annotations = {PARENT: f"{API_VERSION}/{KIND}".lower()}
    if slot is not None and slot < together(spec):
        labels[GROUP_LABEL] = f"elasticdl-{spec.job_name}-minimum"
        annotations[GROUP_SIZE] = str(spec.min_workers)
    metadata["labels"] = {**metadata.get("labels", {}), **labels}
    metadata["annotations"] = {**metadata.get("annotations", {}), **annotations}
    return {**pod, "metadata": metadata}
