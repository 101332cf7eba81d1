"""Before anything is created: what would go wrong, each with its cure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.kueue import together
from edl_allreduce.cluster.kubernetes.names import Object, Replica
from edl_allreduce.errors import ApiRefused, ClusterError
from edl_allreduce.spec import JobSpec
from edl_allreduce.spec.resource import GROUP, PLURAL
from edl_allreduce.spec.resource import path as resource_path
from edl_allreduce.spec.resources import amount
from edl_allreduce.spec.volumes import Claim

RBAC = "manifests/elasticdl-rbac.yaml"
CLASSES = "manifests/high.yaml -f manifests/low.yaml"
DEFAULT_VALUES = {"high": 1000000, "low": 1000}


class ReadingApi(Protocol):
    """The part of the API that is needed here."""

    def get(self, path: str, **query: str | int) -> Object: ...

    def create(self, path: str, manifest: Object, **query: str | int) -> Object: ...

    def may(self, namespace: str, verb: str, resource: str) -> bool: ...


def check(api: ReadingApi, spec: JobSpec, *, managed: bool = False) -> None:
    """Raise one error that lists every problem. `managed`: a controller makes the job's objects."""
    api.get("/version")  # nobody there: the error says so, and nothing else can be asked
    problems = [
        *_namespace(api, spec),
        *_rights(api, spec, managed),
        *(_resource_name(api, spec) if managed else ()),
        *_name(api, spec),
        *_classes(api, spec),
        *_claims(api, spec),
        *_account(api, spec),
        *_quota(api, spec),
    ]
    if problems:
        raise ClusterError(
            f"job {spec.job_name} was not submitted, and nothing was created:\n"
            + "\n".join(f"- {problem}" for problem in problems)
        )


def _exists(api: ReadingApi, path: str) -> bool:
    """Only a clear no counts: who may not look must not be told that nothing is there."""
    try:
        api.get(path)
    except ApiRefused as error:
        return error.status != 404
    return True


def _namespace(api: ReadingApi, spec: JobSpec) -> list[str]:
    if _exists(api, f"/api/v1/namespaces/{spec.namespace}"):
        return []
    return [
        f"there is no namespace {spec.namespace}. Create it: kubectl create namespace {spec.namespace} "
        "(or choose another with --namespace)."
    ]


def _rights(api: ReadingApi, spec: JobSpec, managed: bool) -> list[str]:
    """Of the user, to submit; and of the master's account, as far as the user may ask for it."""
    kinds = [f"{GROUP}/{PLURAL}"] if managed else ["pods", "secrets", "services"]
    lacking = [f"create {kind}" for kind in kinds if not api.may(spec.namespace, "create", kind)]
    problems = []
    if lacking:
        problems.append(
            f"you are not allowed to {', '.join(lacking)} in namespace {spec.namespace} (RBAC). "
            "Ask the owner of the cluster for the role `edit` in it."
        )
    account = spec.service_account or "default"
    for verb in ("create", "watch", "delete"):
        if not _account_may(api, spec.namespace, account, verb):
            problems.append(
                f"the master's service account {account} is not allowed to {verb} pods in namespace "
                f"{spec.namespace} (RBAC). Allow it: kubectl apply -n {spec.namespace} -f {RBAC}"
            )
            break
    return problems


def _account_may(api: ReadingApi, namespace: str, account: str, verb: str) -> bool:
    review = {
        "spec": {
            "user": f"system:serviceaccount:{namespace}:{account}",
            "groups": [
                "system:serviceaccounts",
                f"system:serviceaccounts:{namespace}",
                "system:authenticated",
            ],
            "resourceAttributes": {"namespace": namespace, "verb": verb, "resource": "pods"},
        }
    }
    path = f"/apis/authorization.k8s.io/v1/namespaces/{namespace}/localsubjectaccessreviews"
    try:
        answer = api.create(path, {**review, "metadata": {"namespace": namespace}})
    except ApiRefused:
        return True  # this user may not ask; the master will tell
    return bool(answer.get("status", {}).get("allowed"))


def _resource_name(api: ReadingApi, spec: JobSpec) -> list[str]:
    if not _exists(api, resource_path(spec.namespace, spec.job_name)):
        return []
    return [
        f"there is a TrainingJob {spec.job_name}. Remove it with its pods and logs: "
        f"kubectl delete -n {spec.namespace} tj {spec.job_name} (or choose another --job_name)."
    ]


def _name(api: ReadingApi, spec: JobSpec) -> list[str]:
    name = names.master_name(spec.job_name)
    cure = (
        f"Remove it with its logs: kubectl delete -n {spec.namespace} pod,service,secret "
        f"-l {names.selector(spec.job_name)} (or choose another --job_name)."
    )
    try:
        pod = api.get(names.path("pods", spec.namespace, name))
    except ApiRefused as error:
        if error.status != 404:
            return []
    else:
        phase = pod.get("status", {}).get("phase", "Pending")
        over = phase in ("Succeeded", "Failed")
        return [
            f"a job named {spec.job_name} {'has ended' if over else 'is there'} ({name} is {phase}). {cure}"
        ]
    try:
        pods = api.get(
            names.path("pods", spec.namespace),
            labelSelector=names.selector(spec.job_name, Replica.WORKER),
        )
    except ApiRefused:
        return []
    left = [pod["metadata"]["name"] for pod in pods.get("items") or []]
    if not left:
        return []
    return [f"pods of an earlier job {spec.job_name} are still there ({', '.join(left[:3])}). {cure}"]


def _classes(api: ReadingApi, spec: JobSpec) -> list[str]:
    workers = spec.typed.worker_priority
    wanted = {spec.typed.master_priority}
    slots = range(spec.num_workers + spec.standby)
    wanted |= {workers.class_of(slot, spec.num_workers, together(spec)) for slot in slots}
    missing = [
        name
        for name in sorted(wanted - {""})
        if not _exists(api, f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")
    ]
    return [
        f"there is no PriorityClass {name}. "
        + (
            f"Create high and low: kubectl apply -f {CLASSES}"
            if name in DEFAULT_VALUES
            else "`kubectl get priorityclasses` lists those that exist."
        )
        for name in missing
    ]


def _claims(api: ReadingApi, spec: JobSpec) -> list[str]:
    claims = {s.claim_name for s in spec.typed.volumes.sources if isinstance(s, Claim)}
    return [
        f"there is no PersistentVolumeClaim {claim} in namespace {spec.namespace} (--volume). "
        "`kubectl get pvc` lists those that exist; kubectl apply -k manifests/data makes one."
        for claim in sorted(claims)
        if not _exists(api, names.path("persistentvolumeclaims", spec.namespace, claim))
    ]


def _account(api: ReadingApi, spec: JobSpec) -> list[str]:
    cures = {
        spec.worker_service_account: "`kubectl get serviceaccounts` lists those that exist; docs/guides/"
        "object-storage.md has one that a cloud knows.",
        spec.service_account: f"Make it and its rights: kubectl apply -n {spec.namespace} -f {RBAC}",
    }
    return [
        f"there is no service account {account} in namespace {spec.namespace}. {cure}"
        for account, cure in cures.items()
        if account and not _exists(api, names.path("serviceaccounts", spec.namespace, account))
    ]


def _quota(api: ReadingApi, spec: JobSpec) -> list[str]:
    """The master and the least number of workers must fit; more is a matter of patience."""
    try:
        quotas = api.get(names.path("resourcequotas", spec.namespace)).get("items") or []
    except ApiRefused:
        return []
    master, worker = spec.typed.master_resources.request, spec.typed.worker_resources.request
    problems = []
    for quota in quotas:
        hard, used = quota.get("status", {}).get("hard", {}), quota.get("status", {}).get("used", {})
        for name, limit in hard.items():
            need = _need(name, master, worker, spec.min_workers)
            if need is None or not _exceeds(need, str(limit), str(used.get(name, "0"))):
                continue
            problems.append(
                f"the quota {quota['metadata']['name']} allows {name}={limit}, {used.get(name, 0)} are used, "
                f"and master and {spec.min_workers} worker need {need} more. Ask for less, or a larger quota."
            )
    return problems


def _need(name: str, master: Mapping[str, str], worker: Mapping[str, str], workers: int) -> str | None:
    """In plain units, so that it can be compared and read."""
    if name == "pods":
        return str(1 + workers)
    resource = name.removeprefix("requests.")
    if resource not in ("cpu", "memory") or name.startswith("limits."):
        return None
    total = amount(master.get(resource, "0")) + workers * amount(worker.get(resource, "0"))
    return f"{float(total):g}" if resource == "cpu" else str(int(total))


def _exceeds(need: str, limit: str, used: str) -> bool:
    """Whether there is too little; an amount in a form that we do not read is left to the API server."""
    try:
        return float(need) > float(amount(limit)) - float(amount(used))
    except ValueError:
        return False
