"""Flags about where a job runs: on Kubernetes, beside other jobs, by hand."""

# ruff: noqa: RUF009  flag() makes a dataclasses.field, which is what the rule asks for.

from __future__ import annotations

import dataclasses

from edl_allreduce.spec.choices import CleanPodPolicy, ImagePullPolicy, RestartPolicy
from edl_allreduce.spec.declare import SUBMITTING, Command, Group, flag

# Where the documents start a master by hand and where workers look for it.
DOCUMENTED_PORT = 50001
DASHBOARD_PORT = 50002
"""Of the page of a job in pods."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterFlags:
    """A part of `JobSpec`."""

    # -- Kubernetes --------------------------------------------------------------------------------------
    namespace: str = flag("default", group=Group.CLUSTER, metavar="NAME", help="Namespace of the job's pods.")
    worker_image: str = flag(
        "", group=Group.CLUSTER, metavar="IMAGE", help="Image of workers. Empty: --image_name."
    )
    image_pull_policy: ImagePullPolicy = flag(
        ImagePullPolicy.ALWAYS, group=Group.CLUSTER, help="When nodes pull the image."
    )
    restart_policy: RestartPolicy = flag(
        RestartPolicy.NEVER,
        group=Group.CLUSTER,
        help="Restart policy of the master's container; workers are replaced by the master.",
    )
    service_account: str = flag(
        "elasticdl",
        group=Group.CLUSTER,
        metavar="NAME",
        help="Service account of the master, allowed to manage pods (manifests/elasticdl-rbac.yaml). "
        "Empty: the namespace's default, which every other pod of the namespace has, too.",
    )
    worker_service_account: str = flag(
        "",
        group=Group.CLUSTER,
        metavar="NAME",
        help="Service account of workers, for a cloud that gives it rights on object storage. It needs none "
        "in the cluster, and its token is not mounted. Empty: the namespace's default.",
    )
    master_resource_request: str = flag(
        "cpu=0.1,memory=1024Mi",
        group=Group.CLUSTER,
        metavar="RESOURCES",
        help="What the master's pod asks for, as name=amount,...; names: cpu, memory, disk, "
        "ephemeral-storage, gpu, or a device such as amd.com/gpu.",
    )
    master_resource_limit: str = flag(
        "", group=Group.CLUSTER, metavar="RESOURCES", help="Limit of the master's pod. Empty: the request."
    )
    worker_resource_request: str = flag(
        "cpu=1,memory=4096Mi",
        group=Group.CLUSTER,
        metavar="RESOURCES",
        help="What each worker's pod asks for, such as cpu=2,memory=4Gi,gpu=1.",
    )
    worker_resource_limit: str = flag(
        "", group=Group.CLUSTER, metavar="RESOURCES", help="Limit of a worker's pod. Empty: the request."
    )
    master_pod_priority: str = flag(
        "", group=Group.CLUSTER, metavar="CLASS", help="PriorityClass of the master's pod."
    )
    worker_pod_priority: str = flag(
        "",
        group=Group.CLUSTER,
        metavar="PRIORITY",
        help="PriorityClass of workers: high, low or any class; or a fraction such as 0.5: that part of the "
        "workers is high and the rest low.",
    )
    worker_tolerations: str = flag(
        "",
        group=Group.CLUSTER,
        metavar="TAINTS",
        help="Taints of nodes that workers may use (spot nodes), in kubectl's syntax: "
        "key=value:NoSchedule,key:NoExecute.",
    )
    worker_node_selector: str = flag(
        "",
        group=Group.CLUSTER,
        metavar="K=V,K=V",
        help="Labels of the nodes that workers run on, e.g. cloud.google.com/gke-spot=true.",
    )
    volume: str = flag(
        "",
        group=Group.CLUSTER,
        metavar="VOLUMES",
        help="Volumes of all pods: claim_name=NAME,mount_path=PATH or host_path=PATH,mount_path=PATH, "
        "with sub_path and type (of a host path); several are separated by ';'.",
    )
    envs: str = flag("", group=Group.CLUSTER, metavar="K=V,K=V", help="Environment variables of all pods.")
    populate_env_names: str = flag(
        "",
        group=Group.CLUSTER,
        metavar="REGEX",
        help="Copy the master's environment variables whose whole name matches to the workers.",
    )
    cluster_spec: str = flag(
        "",
        group=Group.CLUSTER,
        metavar="FILE",
        help="Python file with an object `cluster` whose with_pod(pod) and with_service(service) adapt the "
        "manifests to your cluster.",
    )
    cluster_spec_json: str = flag(
        "",
        group=Group.CLUSTER,
        metavar="JSON",
        help="The same as JSON: pod_spec, master_pod_spec, worker_pod_spec, service_spec with labels, "
        "annotations, affinity, tolerations, env.",
    )
    yaml: str = flag(
        "",
        group=Group.CLUSTER,
        metavar="FILE",
        help="Write the manifests to this file instead of submitting the job.",
    )
    force_use_kube_config_file: bool = flag(
        False, group=Group.CLUSTER, help="Use the kubeconfig file even inside a pod."
    )
    follow: bool = flag(False, group=Group.CLUSTER, help="Stay and show the live table until the job ends.")

    # -- sharing a cluster -------------------------------------------------------------------------------
    no_controller: bool = flag(
        False,
        group=Group.SHARING,
        commands=SUBMITTING,
        help="Submit a bare master pod even where the cluster has TrainingJobs. Such a job ends with its "
        "master's pod, and no autoscaler looks after it.",
    )
    max_workers: int = flag(
        0,
        group=Group.SHARING,
        metavar="N",
        commands=SUBMITTING,
        minimum=0,
        help="Most workers that the autoscaler may give; --num_workers then only decides the batch of a "
        "step. 0: --num_workers.",
    )
    weight: float = flag(
        1.0,
        group=Group.SHARING,
        metavar="SHARE",
        commands=SUBMITTING,
        minimum=0.01,
        help="Share of the cluster beside other jobs: one with weight 2 counts twice.",
    )
    deadline: str = flag(
        "",
        group=Group.SHARING,
        metavar="TIME",
        commands=SUBMITTING,
        help="When the job should be over, as 2030-12-31T08:00:00Z: the autoscaler gives it the fewest "
        "workers that meet it. Nothing is ended when it passes.",
    )
    active_deadline_seconds: int = flag(
        0,
        group=Group.SHARING,
        metavar="SECONDS",
        commands=SUBMITTING,
        minimum=0,
        help="The job is stopped and fails when it has been active for so long. 0: no limit.",
    )
    ttl_seconds_after_finished: int | None = flag(
        None,
        group=Group.SHARING,
        metavar="SECONDS",
        commands=SUBMITTING,
        minimum=0,
        help="The TrainingJob is deleted so long after its end, with its pods and their logs. "
        "Empty: it stays until somebody deletes it.",
    )
    clean_pod_policy: CleanPodPolicy = flag(
        CleanPodPolicy.RUNNING,
        group=Group.SHARING,
        commands=SUBMITTING,
        help="Which pods are deleted when the job is over. Running: those that have not ended; the others "
        "stay with their logs. All. None.",
    )
    queue_name: str = flag(
        "",
        group=Group.SHARING,
        metavar="NAME",
        commands=SUBMITTING | {Command.MASTER},
        help="Kueue's queue: the label kueue.x-k8s.io/queue-name of the TrainingJob and of its pods. What a "
        "queue manages is left alone by the autoscaler.",
    )

    # -- by hand -----------------------------------------------------------------------------------------
    port: int = flag(
        0,
        group=Group.BY_HAND,
        metavar="PORT",
        minimum=0,
        default_for={Command.MASTER: DOCUMENTED_PORT},
        help="Port of the master. 0: any free one.",
    )
    bind: str = flag(
        "127.0.0.1",
        group=Group.BY_HAND,
        metavar="HOST",
        commands=frozenset({Command.MASTER}),
        help="Address that the master listens on. 0.0.0.0: also for workers on other machines, which then "
        "need the job's token in EDL_JOB_TOKEN.",
    )
    master_addr: str = flag(
        "",
        group=Group.BY_HAND,
        metavar="HOST:PORT",
        commands=frozenset({Command.WORKER}),
        help="Where the worker finds its master.",
    )
    worker_id: int | None = flag(
        None,
        group=Group.BY_HAND,
        metavar="N",
        commands=frozenset({Command.WORKER}),
        minimum=0,
        help="Number of this worker; never used twice in one job.",
    )
