"""`elasticdl train --image_name=…`: check, build the manifests, send them; or write them to a file."""

from __future__ import annotations

import sys
from pathlib import Path

from edl_allreduce.cluster.kubernetes import names, preflight
from edl_allreduce.cluster.kubernetes.adaptation import adapted_by_file
from edl_allreduce.cluster.kubernetes.api import Api
from edl_allreduce.cluster.kubernetes.credentials import make_credentials
from edl_allreduce.cluster.kubernetes.manifests import job_objects, owned
from edl_allreduce.cluster.kubernetes.names import Object
from edl_allreduce.errors import ClusterError
from edl_allreduce.spec import JobSpec

RULES_SINCE = 35
"""The first minor version of Kubernetes 1 in which a container is restarted after chosen exit codes."""
COLLECTIONS = {"Pod": "pods", "Secret": "secrets", "Service": "services"}


def submit(spec: JobSpec) -> int:
    """Create the job's objects, all or none; returns the exit code."""
    if spec.yaml:
        return _write(spec)
    api = Api.connect(force_kubeconfig=spec.force_use_kube_config_file)
    preflight.check(api, spec)
    objects = _objects(spec, restart_killed=_knows_rules(api))
    _create(api, spec.namespace, objects)
    flags = f"--job_name={spec.job_name} --namespace={spec.namespace}"
    print(f"Submitted: pod {names.master_name(spec.job_name)} in namespace {spec.namespace}.")
    print(
        f"  elasticdl top {flags}       watch it train\n"
        f"  kubectl get pods -n {spec.namespace} -l {names.selector(spec.job_name)}\n"
        f"  elasticdl stop {flags}      stop it at a step boundary"
    )
    return 0


def _objects(spec: JobSpec, *, restart_killed: bool) -> list[Object]:
    objects = job_objects(spec, make_credentials(), restart_killed=restart_killed)
    if not spec.cluster_spec:
        return objects
    kinds = ("Pod", "Service")
    return [adapted_by_file(spec.cluster_spec, o) if o["kind"] in kinds else o for o in objects]


def _create(api: Api, namespace: str, objects: list[Object]) -> None:
    """The master's pod owns the rest: when something fails, deleting it removes all."""
    pod, *rest = objects
    master = api.create(names.path("pods", namespace), pod, fieldValidation="Strict")
    try:
        for manifest in rest:
            path = names.path(COLLECTIONS[manifest["kind"]], namespace)
            api.create(path, owned(manifest, {**master, "apiVersion": "v1", "kind": "Pod"}))
    except ClusterError as error:
        name = names.master_name(master["metadata"]["labels"][names.JOB_LABEL])
        api.delete(names.path("pods", namespace, name), grace=0, uid=master["metadata"]["uid"])
        raise ClusterError(
            f"the job was not submitted, and what had been created is deleted again: {error}"
        ) from error


def _knows_rules(api: Api) -> bool:
    version = api.get("/version")
    minor = str(version.get("minor", "")).rstrip("+")
    return version.get("major") == "1" and minor.isdecimal() and int(minor) >= RULES_SINCE


def _write(spec: JobSpec) -> int:
    import yaml  # type: ignore[import-untyped]  # comes with the kubernetes client

    objects = _objects(spec, restart_killed=False)
    header = (
        f"# Job {spec.job_name}, written by elasticdl. It holds the job's secrets: keep it to yourself.\n"
        f"# Start: kubectl apply -f {spec.yaml}\n"
        f"# Remove: kubectl delete -f {spec.yaml}\n"
    )
    text = header + yaml.safe_dump_all(objects, sort_keys=False)
    if spec.yaml == "-":
        sys.stdout.write(text)
        return 0
    path = Path(spec.yaml)
    path.touch(mode=0o600)
    path.write_text(text)
    print(f"Wrote {path}; nothing was submitted.")
    return 0
