"""The job's objects as plain dicts: build the request first, send it elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import ceil
from pathlib import PurePosixPath
from typing import Any

from edl_allreduce import contract
from edl_allreduce.cluster.kubernetes import names
from edl_allreduce.cluster.kubernetes.cluster_spec_json import adapted, with_pieces
from edl_allreduce.cluster.kubernetes.kueue import queued, together
from edl_allreduce.cluster.kubernetes.names import Object, Replica
from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.spec import JobSpec, to_argv
from edl_allreduce.spec.choices import RestartPolicy
from edl_allreduce.spec.cluster_flags import DASHBOARD_PORT, DOCUMENTED_PORT
from edl_allreduce.spec.declare import Command, Group, flag_of
from edl_allreduce.spec.params import Toleration
from edl_allreduce.spec.typed import Resources
from edl_allreduce.spec.volumes import Claim

USER = 65532
"""Of the processes in pods, whatever the image says: "restricted" wants anybody but root."""
STATE_DIRECTORY = "/run/elasticdl"
"""On the master: survives a restart of its container."""
SPEC_DIRECTORY = "/cluster_spec"
"""Where images of `elasticdl zoo init --cluster_spec` keep that file."""
LEAST_GRACE = 30
"""Seconds between SIGTERM and SIGKILL: Kubernetes' own default. Deadlines may ask for more."""
LOST_NODE_SECONDS = 30
"""How long a pod stays on a node that is lost; Kubernetes' default of 300 s would hold its place."""
KILLED = [137, 255]
"""Exit codes of a process that was killed, and of one that was lost when its node was switched off."""
TRAINING_JOB = "TrainingJob"
LONGEST_NAME = 63
"""Of a label of DNS."""


@dataclass(frozen=True)
class Credentials:
    """What authenticates a job's master and its workers to each other."""

    token: str
    certificate: str
    private_key: str


# ------------------------------------------------------------------------------------------- submitting


def job_objects(spec: JobSpec, credentials: Credentials, *, restart_killed: bool = False) -> list[Object]:
    """All that is submitted: the master's pod first, because it owns the others."""
    return [
        master_pod(spec, restart_killed=restart_killed),
        secret(spec, credentials),
        master_service(spec),
        network_policy(spec),
    ]


def master_pod(spec: JobSpec, *, restart_killed: bool = False, uid: str = "") -> Object:
    """`restart_killed`: the API server knows rules that restart a container after some exit codes.

    `uid`: of the TrainingJob, for a job that has one.
    """
    spec = for_master(spec)
    name = names.master_name(spec.job_name)
    secret_name = names.secret_name(spec.job_name, uid)
    volumes, mounts = _volumes(spec, name)
    environment = {
        **spec.typed.envs,
        contract.JOB_SECRET: secret_name,
        contract.MASTER_ADDR: f"{name}.{spec.namespace}.svc:{port_of(spec)}",
    }
    container = {
        **_container(spec, name, spec.image_name),
        "command": ["python", "-m", "edl_allreduce.master.main"],
        "args": to_argv(spec, "master"),
        "env": [
            *_plain(environment),
            *_about_the_pod(),
            _from_secret(secret_name, contract.JOB_TOKEN, "token"),
            _from_secret(secret_name, contract.MASTER_CERTIFICATE, "tls.crt"),
            _from_secret(secret_name, contract.MASTER_KEY, "tls.key"),
        ],
        "ports": [{"name": "master", "containerPort": port_of(spec)}, *_page_ports(spec)],
        **_probe(spec),
        "resources": _resources(spec.typed.master_resources),
        "volumeMounts": [*mounts, {"name": "state", "mountPath": STATE_DIRECTORY}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    policy = spec.restart_policy
    if restart_killed and policy is RestartPolicy.NEVER:
        # The process ended, not the job: the next one takes over.
        killed = {"action": "Restart", "exitCodes": {"operator": "In", "values": KILLED}}
        container |= {"restartPolicy": policy.value, "restartPolicyRules": [killed]}
        # The container's policy counts. But after a reboot of its node the kubelet looks at the pod's alone,
        # and with Never the pod would be left there: neither running nor ended, for ever.
        policy = RestartPolicy.ON_FAILURE
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": spec.namespace,
            "labels": {
                **names.labels(spec.job_name, Replica.MASTER, 0),
                names.STATUS_LABEL: "Pending",
            },
        },
        "spec": {
            **_pod_spec(spec.typed.master_priority),
            "restartPolicy": policy.value,
            **_account(spec.service_account),
            "containers": [container],
            "volumes": [*volumes, {"name": "state", "emptyDir": {}}],
        },
    }
    return adapted(queued(pod, spec), spec, Replica.MASTER)


def for_master(spec: JobSpec) -> JobSpec:
    """The job as its master reads it: without what only who submits or looks after it needs."""
    cluster_spec = f"{SPEC_DIRECTORY}/{PurePosixPath(spec.cluster_spec).name}" if spec.cluster_spec else ""
    sharing: dict[str, Any] = {
        each.name: each.default
        for each in fields(JobSpec)
        if flag_of(each).group is Group.SHARING and Command.MASTER not in flag_of(each).commands
    }
    return replace(
        spec,
        **sharing,
        yaml="",
        follow=False,
        force_use_kube_config_file=False,
        port=spec.port or DOCUMENTED_PORT,
        cluster_spec=cluster_spec,
    )


def secret(spec: JobSpec, credentials: Credentials, uid: str = "") -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": names.secret_name(spec.job_name, uid),
            "namespace": spec.namespace,
            "labels": names.labels(spec.job_name, Replica.MASTER, 0),
        },
        "type": "Opaque",
        "stringData": {
            "token": credentials.token,
            "tls.crt": credentials.certificate,
            "tls.key": credentials.private_key,
        },
    }


def master_service(spec: JobSpec) -> Object:
    """A name for the master that outlives its address."""
    name = names.master_name(spec.job_name)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": spec.namespace,
            "labels": names.labels(spec.job_name, Replica.MASTER, 0),
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.JOB_LABEL: spec.job_name, names.TYPE_LABEL: Replica.MASTER.value},
            "ports": [{"name": "master", "port": port_of(spec), "targetPort": port_of(spec)}],
        },
    }
    return with_pieces(service, spec.typed.adaptation.of("service_spec"))


def network_policy(spec: JobSpec, uid: str = "") -> Object:
    """Nobody but the job's own pods reaches them, where the network enforces it.

    What the API server forwards (`elasticdl status`) does not come over the network of pods; who else shall
    come in gets another policy. `uid`: of the TrainingJob; the policy of an earlier one of this name goes.
    """
    own = {"matchLabels": {names.JOB_LABEL: spec.job_name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": names.secret_name(spec.job_name, uid),
            "namespace": spec.namespace,
            "labels": names.labels(spec.job_name, Replica.MASTER, 0),
        },
        "spec": {
            "podSelector": own,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": own}]}],
        },
    }


def disruption_budget(spec: JobSpec, uid: str = "") -> Object:
    """`kubectl drain` takes the job's last pod only when another one is there.

    Without it a drain of the node with the master and the last worker asks both to leave at once: nobody is
    left who could plan the hand-over. With it the next master is there before the worker is asked, or the
    worker is asked while its master still plans. Pods that are not ready hold no drain up.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": names.secret_name(spec.job_name, uid),
            "namespace": spec.namespace,
            "labels": names.labels(spec.job_name, Replica.MASTER, 0),
        },
        "spec": {
            "minAvailable": 1,
            "selector": {"matchLabels": {names.JOB_LABEL: spec.job_name}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def port_of(spec: JobSpec) -> int:
    return spec.port or DOCUMENTED_PORT


def page_port_of(spec: JobSpec) -> int | None:
    """Of the job's page, of its metrics and probes; None without them."""
    port = spec.typed.dashboard_port
    return port or DASHBOARD_PORT if port is not None else None


def _page_ports(spec: JobSpec) -> list[Object]:
    port = page_port_of(spec)
    return [{"name": names.PAGE_PORT, "containerPort": port}] if port is not None else []


def _probe(spec: JobSpec) -> Object:
    """For people who look at pods; workers find a master that is not ready, too."""
    if page_port_of(spec) is None:
        return {}
    asked = {"path": "/readyz", "port": names.PAGE_PORT}
    return {"readinessProbe": {"httpGet": asked, "periodSeconds": 5, "timeoutSeconds": 5}}


def owned(manifest: Object, owner: Object) -> Object:
    """The object as one that goes when its owner does."""
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference(owner)]}}


def reference(owner: Object) -> Object:
    """How an object names its owner."""
    metadata = owner["metadata"]
    # A pod that has a controller is evicted by `kubectl drain` without --force.
    controls = {"controller": True} if owner["kind"] == TRAINING_JOB else {}
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        **controls,
    }


def adopting(master: Object) -> Object:
    """The master's pod as one that is applied by hand: whoever writes a file cannot know the pod's uid.

    So the master makes itself the owner of what was applied beside it.
    """
    metadata = master["metadata"]
    annotations = {**metadata.get("annotations", {}), names.ADOPTS: "true"}
    return {**master, "metadata": {**metadata, "annotations": annotations}}


# ---------------------------------------------------------------------------------------------- workers


@dataclass(frozen=True)
class MasterContext:
    """What the master knows beyond the job's flags when it writes a worker's pod."""

    master_addr: str
    secret: str = ""
    """The name of the job's Secret, where it is not that of the job."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The master's own, for --populate_env_names."""


def worker_pod(spec: JobSpec, worker_id: int, slot: int, context: MasterContext) -> Object:
    """`slot`: which of the wanted workers this one is; it decides the priority."""
    name = names.worker_name(spec.job_name, worker_id)
    volumes, mounts = _volumes(spec, name)
    own = replace(
        for_master(spec), worker_id=worker_id, master_addr=context.master_addr, port=0, queue_name=""
    )
    environment = {
        **populated(spec.typed.populated, context.environment),
        **spec.typed.envs,
        **_for_elasticdl(own),
    }
    container = {
        **_container(spec, name, spec.worker_image or spec.image_name),
        "command": ["python", "-m", "edl_allreduce.worker.main"],
        "args": to_argv(own, "worker"),
        "env": [*_plain(environment), *_about_the_pod(), *_trust(spec, context)],
        "resources": _resources(spec.typed.worker_resources),
        "volumeMounts": mounts,
    }
    priority = spec.typed.worker_priority.class_of(slot, spec.num_workers, together(spec))
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": spec.namespace,
            "labels": names.labels(spec.job_name, Replica.WORKER, worker_id),
            "annotations": {names.SLOT: str(slot)},
        },
        "spec": {
            **_pod_spec(priority),
            "restartPolicy": "Never",  # the master replaces workers, under new ids
            **_account(spec.worker_service_account),
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": grace_seconds(spec),
            **_placement(spec),
            "containers": [container],
            "volumes": volumes,
        },
    }
    return adapted(queued(pod, spec, slot), spec, Replica.WORKER)


def grace_seconds(spec: JobSpec) -> int:
    """Time to drain: to finish the step even when a peer falls silent in it, and hand over."""
    return max(LEAST_GRACE, ceil(3 * Deadlines(spec.failure_detection_seconds).failure_detection))


def populated(wanted: re.Pattern[str] | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of the master that workers get: those whose whole name matches."""
    if wanted is None:
        return {}
    return {
        name: value
        for name, value in environment.items()
        if wanted.fullmatch(name) and name not in names.OWN and name != contract.JOB_SECRET
    }


def _for_elasticdl(own: JobSpec) -> dict[str, str]:
    """The variables that ElasticDL's users know. Our worker reads its flags, which say the same."""
    return {
        contract.MASTER_ADDR: own.master_addr,
        contract.WORKER_ID: str(own.worker_id),
        contract.WORKER_NUM: str(own.num_workers),
    }


def _trust(spec: JobSpec, context: MasterContext) -> list[Object]:
    """Whoever may read pods must not learn them, so they are never in a pod's spec."""
    found = context.secret or names.secret_name(spec.job_name)
    return [
        _from_secret(found, contract.JOB_TOKEN, "token"),
        _from_secret(found, contract.MASTER_CERTIFICATE, "tls.crt"),
    ]


def _placement(spec: JobSpec) -> Object:
    tolerations = [_toleration(each) for each in spec.typed.worker_tolerations]
    nodes = dict(spec.typed.worker_node_selector)
    return {
        "tolerations": [*tolerations, *lost_nodes()],
        **({"nodeSelector": nodes} if nodes else {}),
    }


def lost_nodes() -> list[Object]:
    """A worker on a lost node is replaced soon: the usual five minutes are meant for what is hard to move."""
    return [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_SECONDS,
        }
        for state in ("not-ready", "unreachable")
    ]


def _toleration(toleration: Toleration) -> Object:
    value = {"operator": "Exists"} if toleration.value is None else {"value": toleration.value}
    effect = {} if toleration.effect is None else {"effect": toleration.effect.value}
    return {"key": toleration.key, **value, **effect}


# ----------------------------------------------------------------------------------------------- shared


def _pod_spec(priority: str) -> Object:
    return {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "enableServiceLinks": False,
        **({"priorityClassName": priority} if priority else {}),
    }


def _account(name: str) -> Object:
    return {"serviceAccountName": name} if name else {}


def _container(spec: JobSpec, name: str, image: str) -> Object:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": spec.image_pull_policy.value,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _resources(resources: Resources) -> Object:
    return {"requests": dict(resources.request), "limits": dict(resources.limit)}


def _volumes(spec: JobSpec, pod: str) -> tuple[list[Object], list[Object]]:
    parsed = spec.typed.volumes
    volumes: list[Object] = []
    for number, source in enumerate(parsed.sources):
        name = _volume_name(pod, number)
        if isinstance(source, Claim):
            volumes.append({"name": name, "persistentVolumeClaim": {"claimName": source.claim_name}})
        else:
            kind = {"type": source.type} if source.type else {}
            volumes.append({"name": name, "hostPath": {"path": source.path, **kind}})
    mounts = [
        {
            "name": _volume_name(pod, mount.volume),
            "mountPath": mount.mount_path,
            **({"subPath": mount.sub_path} if mount.sub_path else {}),
        }
        for mount in parsed.mounts
    ]
    return volumes, mounts


def _volume_name(pod: str, number: int) -> str:
    name = f"{pod}-volume-{number}"
    return name if len(name) <= LONGEST_NAME else f"volume-{number}"


def _plain(variables: Mapping[str, str], *, own: bool = False) -> list[Object]:
    allowed = {contract.MASTER_ADDR, contract.WORKER_ID, contract.WORKER_NUM}
    return [
        {"name": name, "value": value}
        for name, value in variables.items()
        if own or name in allowed or name not in names.OWN
    ]


def _about_the_pod() -> list[Object]:
    fields = {
        contract.POD_IP: "status.podIP",
        contract.POD_NAME: "metadata.name",
        contract.POD_NAMESPACE: "metadata.namespace",
    }
    home = {"name": "HOME", "value": "/tmp"}  # the user of the pod has no entry in the image
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": of}}} for name, of in fields.items()),
        home,
    ]


def _from_secret(secret_name: str, name: str, key: str) -> Object:
    reference = {"name": secret_name, "key": key}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}
