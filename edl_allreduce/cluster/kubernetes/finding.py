"""The jobs of a namespace: TrainingJobs, and masters' pods that belong to none."""

from __future__ import annotations

from edl_allreduce import clock, outside
from edl_allreduce.cluster.kubernetes import names, training_jobs
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.managed import ManagedJob
from edl_allreduce.cluster.kubernetes.names import Object, Replica
from edl_allreduce.cluster.kubernetes.remote import ClusterJob
from edl_allreduce.errors import ApiRefused, UsageError
from edl_allreduce.spec.words import did_you_mean


def find_job(namespace: str, job_name: str, *, force_kubeconfig: bool = False) -> ClusterJob:
    """The job of this name; without one the only one that runs."""
    api = Api.connect(force_kubeconfig=force_kubeconfig)
    known = _known(api, namespace)
    if not job_name:
        running = [job for job in known if not job.over()]
        if len(running) == 1:
            return running[0]
        raise UsageError(
            f"--job_name is missing, and {len(running) or 'no'} jobs run in namespace {namespace}. "
            f"{_listed(known)}"
        )
    for job in known:
        if job.name == job_name:
            return job
    guess = _traces(api, namespace, job_name) or did_you_mean(job_name, [job.name for job in known])
    raise UsageError(f"there is no job {job_name} in namespace {namespace}.{guess} {_listed(known)}")


def known_jobs(namespace: str) -> list[ClusterJob]:
    """All TrainingJobs, and all others whose master's pod is there."""
    return _known(Api.connect(), namespace)


def _known(api: Api, namespace: str) -> list[ClusterJob]:
    chosen = f"app=elasticdl,{names.TYPE_LABEL}={Replica.MASTER.value}"
    found = api.get(names.path("pods", namespace), labelSelector=chosen).get("items") or []
    pods = {pod["metadata"]["labels"][names.JOB_LABEL]: pod for pod in found}
    resources = {each["metadata"]["name"]: each for each in training_jobs.listed(api, namespace)}
    now = clock.now()
    return [
        *(
            ManagedJob(api, namespace, name, pods.get(name), now, resource=resources[name])
            for name in resources
        ),
        *(ClusterJob(api, namespace, name, pods[name], now) for name in pods if name not in resources),
    ]


def _traces(api: Api, namespace: str, job_name: str) -> str:
    """What became of a job that ended with its master's pod: Kubernetes keeps events about it for an hour."""
    pod = names.master_name(job_name)
    try:
        found = api.get(names.path("events", namespace), fieldSelector=f"involvedObject.name={pod}")
    except ApiRefused:
        return ""  # this user may not look
    events = sorted(found.get("items") or [], key=_when)
    if not events:
        return ""
    reason, message = (outside.line(events[-1].get(key, "")) for key in ("reason", "message"))
    return (
        f" It ended with its master's pod {pod}, of which Kubernetes said last: {reason}: {message}. "
        "The same `elasticdl train` again goes on from its last checkpoint."
    )


def _when(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _listed(jobs: list[ClusterJob]) -> str:
    if not jobs:
        return "No job is there; `elasticdl train --image_name=…` submits one."
    return f"Jobs: {', '.join(f'{job.name} ({job.phase()})' for job in jobs)}."
