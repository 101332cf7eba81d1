"""`elasticdl train --image_name=…`: check, plan the objects, send them; or write the plan to a file.

Where the cluster has TrainingJobs the plan is one of them, and the controller makes the rest; elsewhere it is
the master's pod with what belongs to it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from edl_allreduce import clock
from edl_allreduce.cluster.base import DryRun
from edl_allreduce.cluster.kubernetes import names, preflight, training_jobs
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.cluster_spec_file import adapted_by_file
from edl_allreduce.cluster.kubernetes.credentials import make_credentials
from edl_allreduce.cluster.kubernetes.manifests import adopting, job_objects, owned
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.errors import ApiRefused, ClusterError
from edl_allreduce.spec import JobSpec
from edl_allreduce.spec.resource import path as resource_path
from edl_allreduce.spec.resource import to_object

log = logging.getLogger(__name__)

RULES_SINCE = 35
"""The first minor version of Kubernetes 1 in which a container is restarted after chosen exit codes."""
COLLECTIONS = {"Pod": "pods", "Secret": "secrets", "Service": "services"}
GONE_SECONDS = 10.0
"""How long an object that is being deleted may keep its name."""
POLL_SECONDS = 0.2
"""Between two looks whether it is gone."""
OF_TRAINING_JOBS = (
    "max_workers", "weight", "deadline", "active_deadline_seconds", "ttl_seconds_after_finished",
    "clean_pod_policy",
)  # fmt: skip
"""Flags that a controller reads, and nobody else."""


class SubmittingApi(Protocol):
    """The part of the API that is needed here."""

    def get(self, path: str, **query: str | int) -> Object: ...

    def create(self, path: str, manifest: Object, **query: str | int) -> Object: ...

    def delete(self, path: str, grace: int | None = None, uid: str = "") -> bool: ...


def submit(spec: JobSpec) -> int:
    """Create the job's objects, all or none; returns the exit code."""
    if spec.yaml:
        return _write(spec)
    api = Api.connect(force_kubeconfig=spec.force_use_kube_config_file)
    why_bare = bare(spec, lambda: training_jobs.installed(api))
    preflight.check(api, spec, managed=not why_bare)
    if why_bare:
        send(api, spec, plan(spec, restart_killed=knows_rules(api)))
        print(f"Submitted: pod {names.master_name(spec.job_name)} in namespace {spec.namespace}.")
        print(f"{why_bare} The job ends when its master's pod is deleted.{_idle(spec)}")
        look = f"kubectl get pods -n {spec.namespace} -l {names.selector(spec.job_name)}"
    else:
        api.create(resource_path(spec.namespace), to_object(spec), fieldValidation="Strict")
        print(f"Submitted: TrainingJob {spec.job_name} in namespace {spec.namespace}.")
        print("The cluster's controller starts it, and keeps it when its master is lost.")
        look = f"kubectl get tj -n {spec.namespace} {spec.job_name} -o wide"
    flags = f"--job_name={spec.job_name} --namespace={spec.namespace}"
    print(
        f"  elasticdl top {flags}       watch it train\n"
        f"  {look}\n"
        f"  elasticdl stop {flags}      stop it at a step boundary"
    )
    return 0


def bare(spec: JobSpec, installed: Callable[[], bool]) -> str:
    """Why the job is submitted without a TrainingJob; empty when it is not."""
    if spec.no_controller:
        return "Without a controller, as --no_controller says."
    if spec.cluster_spec:
        return "Without a controller: --cluster_spec is Python code, which must run here."
    if not installed():
        return "Without a controller: this cluster has no TrainingJobs (manifests/crd)."
    return ""


def _idle(spec: JobSpec) -> str:
    default = JobSpec()
    idle = [f"--{name}" for name in OF_TRAINING_JOBS if getattr(spec, name) != getattr(default, name)]
    return f" Not used without one: {', '.join(idle)}." if idle else ""


def plan(spec: JobSpec, *, restart_killed: bool) -> DryRun:
    """The objects of the job, the master's pod first."""
    objects = job_objects(spec, make_credentials(), restart_killed=restart_killed)
    if spec.cluster_spec:
        kinds = ("Pod", "Service")
        objects = [adapted_by_file(spec.cluster_spec, o) if o["kind"] in kinds else o for o in objects]
    return DryRun(objects=tuple(objects))


def send(api: SubmittingApi, spec: JobSpec, planned: DryRun) -> None:
    """The master's pod owns the rest: when something fails, deleting it removes all."""
    pod, *rest = map(dict, planned.objects)
    path = names.path("pods", spec.namespace)
    master = api.create(path, pod, fieldValidation="Strict")
    owner = {**master, "apiVersion": "v1", "kind": "Pod"}
    try:
        for manifest in rest:
            _create(api, spec, owned(manifest, owner))
    except ClusterError as error:
        name = names.master_name(spec.job_name)
        api.delete(names.path("pods", spec.namespace, name), grace=0, uid=master["metadata"]["uid"])
        raise ClusterError(
            f"the job was not submitted, and what had been created is deleted again: {error}"
        ) from error


def _create(api: SubmittingApi, spec: JobSpec, manifest: Object) -> None:
    """In the place of what an earlier job of this name left: its master is gone, or the name was not free."""
    collection, name = COLLECTIONS[manifest["kind"]], manifest["metadata"]["name"]
    path = names.path(collection, spec.namespace, name)
    for _ in clock.polls(POLL_SECONDS, GONE_SECONDS):
        try:
            api.create(names.path(collection, spec.namespace), manifest)
            return
        except ApiRefused as error:
            if error.status != 409 or error.reason != "AlreadyExists":
                raise
            _remove_leftover(api, spec, path, error)
    raise ClusterError(f"{collection} {name} of an earlier job {spec.job_name} does not go away.")


def _remove_leftover(api: SubmittingApi, spec: JobSpec, path: str, taken: ApiRefused) -> None:
    try:
        found = api.get(path)["metadata"]
    except ApiRefused as error:
        if error.status == 404:  # it went by itself
            return
        raise
    labels = found.get("labels") or {}
    if labels.get("app") != names.APP or labels.get(names.JOB_LABEL) != spec.job_name:
        raise ClusterError(f"{taken} It does not belong to a job; choose another --job_name.") from taken
    log.info("%s was left by an earlier job of this name, and is replaced", path)
    api.delete(path, uid=found["uid"])


def knows_rules(api: Api) -> bool:
    """Whether a container can be started again after chosen exit codes."""
    version = api.get("/version")
    minor = str(version.get("minor", "")).rstrip("+")
    return version.get("major") == "1" and minor.isdecimal() and int(minor) >= RULES_SINCE


# ----------------------------------------------------------------------------------------------- to a file


def _write(spec: JobSpec) -> int:
    if bare(spec, lambda: _has_training_jobs(spec)):
        rules, why = _rules_of_the_cluster(spec)
        text = _text(spec, plan(spec, restart_killed=rules), why)
    else:
        text = _resource_text(spec)
    if spec.yaml == "-":
        sys.stdout.write(text)
        return 0
    path = Path(spec.yaml)
    path.touch(mode=0o600)
    if path.is_file():  # also one that was there before; a pipe is not ours to close
        path.chmod(0o600)
    path.write_text(text)
    print(f"Wrote {path}; nothing was submitted.")
    return 0


def _rules_of_the_cluster(spec: JobSpec) -> tuple[bool, str]:
    """Whether a rule of its container can start a killed master again, and a sentence for the file."""
    newer = f"Kubernetes 1.{RULES_SINCE} or newer"
    try:
        knows = knows_rules(Api.connect(force_kubeconfig=spec.force_use_kube_config_file))
    except ClusterError:
        return True, f"For {newer} (no cluster could be asked); on older ones say --restart_policy=OnFailure."
    if knows:
        return True, f"For {newer}, as the cluster that was asked is."
    return False, f"A master that is killed is not started again: the cluster that was asked is not {newer}."


def _has_training_jobs(spec: JobSpec) -> bool:
    try:
        return training_jobs.installed(Api.connect(force_kubeconfig=spec.force_use_kube_config_file))
    except ClusterError:
        return False


def _resource_text(spec: JobSpec) -> str:
    import yaml  # type: ignore[import-untyped]  # comes with the kubernetes client

    header = (
        f"# Job {spec.job_name}, written by elasticdl for a cluster with TrainingJobs.\n"
        f"# Start: kubectl apply -f {spec.yaml}\n"
        f"# Remove: kubectl delete -f {spec.yaml}\n"
    )
    return header + str(yaml.safe_dump(to_object(spec), sort_keys=False))


def _text(spec: JobSpec, planned: DryRun, why: str) -> str:
    import yaml  # comes with the kubernetes client

    pod, *rest = map(dict, planned.objects)
    header = (
        f"# Job {spec.job_name}, written by elasticdl. It holds the job's secrets: keep it to yourself.\n"
        f"# Start: kubectl apply -f {spec.yaml}\n"
        f"# Remove: kubectl delete -f {spec.yaml}\n"
        f"# {why}\n"
    )
    return header + str(yaml.safe_dump_all([*rest, adopting(pod)], sort_keys=False))
