"""The job in one frozen dataclass: ElasticDL's flags under their own names, and ours.

Flags that mean nothing without parameter servers, and flags that old documents still show, are not fields:
they have no effect beyond a notice. They live in `legacy.py`.
"""

# ruff: noqa: RUF009  flag() makes a dataclasses.field, which is what the rule asks for.

from __future__ import annotations

import dataclasses
import enum
import functools
import os
from collections.abc import Mapping
from pathlib import Path

from edl_allreduce.spec.declare import PROCESSES, SUBMITTING, TRAINING, Command, Group, flag
from edl_allreduce.spec.typed import TypedFlags

__all__ = [
    "CleanPodPolicy",
    "Command",
    "ElasticBatch",
    "GradientCompression",
    "ImagePullPolicy",
    "JobSpec",
    "JobType",
    "LogLevel",
    "MixedPrecision",
    "OnNan",
    "RestartPolicy",
    "Strategy",
    "job_directory",
]

# Where the documents start a master by hand and where workers look for it.
DOCUMENTED_PORT = 50001
DASHBOARD_PORT = 50002
"""Of the page of a job in pods."""
DEFAULT_CHECKPOINTS = "checkpoint_dir"


class Strategy(enum.StrEnum):
    """How the work is distributed."""

    ALLREDUCE = "AllreduceStrategy"
    LOCAL = "Local"


class ElasticBatch(enum.StrEnum):
    """What stays constant when the number of workers changes."""

    GLOBAL = "global"
    WORKER = "worker"


class MixedPrecision(enum.StrEnum):
    """In which precision models compute."""

    FROM_FILE = "from_file"
    """As the model file says; full precision if it says nothing."""
    FLOAT16 = "mixed_float16"
    BFLOAT16 = "mixed_bfloat16"


class OnNan(enum.StrEnum):
    """What to do when the loss of a step is not finite."""

    STOP = "stop"
    SKIP = "skip"
    CONTINUE = "continue"


class GradientCompression(enum.StrEnum):
    """How gradients travel between workers."""

    NONE = "none"
    FP16 = "fp16"


class LogLevel(enum.StrEnum):
    """Python's names of log levels."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


class LogFormat(enum.StrEnum):
    """What a line of a log is."""

    TEXT = "text"
    JSON = "json"


class ImagePullPolicy(enum.StrEnum):
    """Kubernetes' names."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class RestartPolicy(enum.StrEnum):
    """Kubernetes' names."""

    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ALWAYS = "Always"


class CleanPodPolicy(enum.StrEnum):
    """Kubeflow's names: which pods of a job that is over are deleted."""

    RUNNING = "Running"
    """Those that still run; ended ones stay, with their logs."""
    ALL = "All"
    NONE = "None"


class JobType(enum.StrEnum):
    """What a job does; follows from the data that it was given."""

    TRAINING_ONLY = "training_only"
    TRAINING_WITH_EVALUATION = "training_with_evaluation"
    EVALUATION_ONLY = "evaluation_only"
    PREDICTION_ONLY = "prediction_only"


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Everything that a user can say about a job. Text fields hold the flag's syntax, `typed` its meaning."""

    # -- job ---------------------------------------------------------------------------------------------
    job_name: str = flag(
        "",
        group=Group.JOB,
        metavar="NAME",
        help="Name of the job, by which status, scale, stop and logs find it. Lower-case letters, digits "
        "and '-', at most 40; unique on this machine or in the namespace.",
    )
    distribution_strategy: Strategy = flag(
        Strategy.ALLREDUCE,
        group=Group.JOB,
        help="AllreduceStrategy: workers average gradients among themselves. Local: one process, no Horovod.",
    )
    image_name: str = flag(
        "",
        group=Group.JOB,
        metavar="IMAGE",
        help="Container image of the job. With it the job runs on Kubernetes, without it as local processes.",
    )
    job_command: str = flag(
        "",
        group=Group.JOB,
        metavar="COMMAND",
        commands=TRAINING,
        help="Run this command in each worker instead of training a model of the zoo, e.g. "
        "--job_command='python my_train.py'. The script joins the job through the Python API.",
    )
    detach: bool = flag(
        False,
        group=Group.JOB,
        commands=SUBMITTING,
        help="Run a local job in the background, in a session of its own: return as soon as its master "
        "listens, and say how to attach to it, follow it and stop it.",
    )
    job_dir: str = flag(
        "",
        group=Group.JOB,
        metavar="DIR",
        help="Where a local job keeps its address, token, events and worker logs. "
        "Empty: elasticdl/jobs/<job_name> in the user's state directory ($XDG_STATE_HOME or ~/.local/state).",
    )

    # -- model -------------------------------------------------------------------------------------------
    model_zoo: str = flag(
        "",
        group=Group.MODEL,
        metavar="DIR",
        help="Directory with model files (a path in the image on Kubernetes). Empty: the current directory.",
    )
    model_def: str = flag(
        "",
        group=Group.MODEL,
        metavar="DOTTED.PATH",
        help="The function or class that makes the Keras model, as directory.file.name below --model_zoo: "
        "digits.mlp.custom_model is custom_model in digits/mlp.py.",
    )
    model_params: str = flag(
        "",
        group=Group.MODEL,
        metavar="'K=V; K=V'",
        help="Keyword arguments of the function or class that --model_def names; Python literals or text.",
    )
    feed: str = flag(
        "feed",
        group=Group.MODEL,
        metavar="NAME",
        help="Name of the function feed(dataset, mode, metadata) that turns raw records into "
        "(features, labels). These names may be dotted paths below --model_zoo.",
    )
    loss: str = flag(
        "loss", group=Group.MODEL, metavar="NAME", help="Name of the function loss(labels, predictions)."
    )
    optimizer: str = flag(
        "optimizer",
        group=Group.MODEL,
        metavar="NAME",
        help="Name of the function that makes the Keras optimizer; called without arguments.",
    )
    eval_metrics_fn: str = flag(
        "eval_metrics_fn",
        group=Group.MODEL,
        metavar="NAME",
        help="Name of the function that returns {metric name: function or Keras metric}.",
    )
    callbacks: str = flag(
        "callbacks",
        group=Group.MODEL,
        metavar="NAME",
        help="Name of the function that returns a list of Keras callbacks. May be absent from the file.",
    )
    custom_data_reader: str = flag(
        "custom_data_reader",
        group=Group.MODEL,
        metavar="NAME",
        help="Name of the function that makes a reader for your own data format. May be absent.",
    )
    prediction_outputs_processor: str = flag(
        "PredictionOutputsProcessor",
        group=Group.MODEL,
        metavar="NAME",
        commands=frozenset({Command.PREDICT}) | PROCESSES,
        help="Name of the class whose process(predictions, worker_id) receives what the model predicted.",
    )

    # -- data --------------------------------------------------------------------------------------------
    training_data: str = flag(
        "",
        group=Group.DATA,
        metavar="PATH",
        commands=TRAINING,
        help="Directory or file with the records to train on.",
    )
    validation_data: str = flag(
        "",
        group=Group.DATA,
        metavar="PATH",
        commands=TRAINING | {Command.EVALUATE},
        help="Directory or file with the records to evaluate on; while training, see --evaluation_steps.",
    )
    prediction_data: str = flag(
        "",
        group=Group.DATA,
        metavar="PATH",
        commands=frozenset({Command.PREDICT}) | PROCESSES,
        help="Directory or file with the records to predict.",
    )
    data_reader_params: str = flag(
        "",
        group=Group.DATA,
        metavar="'K=V; K=V'",
        help="Parameters of the data reader, such as 'reader_type=CSV; sep=semicolon'. "
        "Known: reader_type, columns, header, sep, quoting; a custom_data_reader gets whatever is given.",
    )
    num_minibatches_per_task: int = flag(
        8,
        group=Group.DATA,
        metavar="N",
        minimum=1,
        help="Size of one piece of work of evaluation and prediction, in minibatches.",
    )
    max_bad_records: int = flag(
        0,
        group=Group.DATA,
        metavar="N",
        minimum=0,
        help="How many different records may be bad and left out, each named, before the job fails.",
    )
    shuffle: bool = flag(
        True,
        group=Group.DATA,
        commands=TRAINING,
        help="Train on the records in a new order in each epoch. The order depends on --seed and the "
        "epoch alone, never on the number of workers.",
    )
    seed: int = flag(
        0,
        group=Group.DATA,
        metavar="N",
        commands=TRAINING,
        help="Seed of the data order and of the initial weights. The same seed gives the same run.",
    )

    # -- training ----------------------------------------------------------------------------------------
    minibatch_size: int = flag(
        64,
        group=Group.TRAINING,
        metavar="RECORDS",
        minimum=1,
        help="Records that one worker works on at a time. One optimiser step uses "
        "--minibatch_size x --num_workers records (see --elastic_batch).",
    )
    num_epochs: int = flag(
        1, group=Group.TRAINING, metavar="N", commands=TRAINING, minimum=1, help="Passes over the data."
    )
    max_step: int = flag(
        0,
        group=Group.TRAINING,
        metavar="STEPS",
        commands=TRAINING,
        minimum=0,
        help="Stop after this many steps even if epochs remain. 0: no limit.",
    )
    evaluation_steps: int = flag(
        0,
        group=Group.TRAINING,
        metavar="STEPS",
        commands=TRAINING,
        minimum=0,
        help="Evaluate on --validation_data every so many steps, and at the end. 0: only at the end.",
    )
    elastic_batch: ElasticBatch = flag(
        ElasticBatch.GLOBAL,
        group=Group.TRAINING,
        commands=TRAINING,
        help="What stays constant when workers come and go. global: the batch of a step, so that the "
        "optimisation stays the same. worker: the batch of each worker, as in ElasticDL.",
    )

    mixed_precision: MixedPrecision = flag(
        MixedPrecision.FROM_FILE,
        group=Group.TRAINING,
        help="Keras' dtype policy: compute in half precision, keep variables in float32. mixed_float16 comes "
        "with dynamic loss scaling. from_file: what the model file sets, else full precision.",
    )
    on_nan: OnNan = flag(
        OnNan.STOP,
        group=Group.TRAINING,
        commands=TRAINING,
        help="When the loss of a step is NaN or infinite. stop: the job fails at once, keeps its last good "
        "checkpoint and writes no model. skip: that update is left out. continue: train on.",
    )
    bucket_mb: float = flag(
        0.0,
        group=Group.TRAINING,
        metavar="MB",
        minimum=0.0,
        commands=TRAINING,
        help="Gradients are summed over the workers in buckets of at least so many megabytes, while the "
        "backward pass computes the others. 0: 4 for models of more than 4 MB, all at once for smaller ones. "
        "A value above the model's size: all at once.",
    )
    gradient_compression: GradientCompression = flag(
        GradientCompression.NONE,
        group=Group.TRAINING,
        commands=TRAINING,
        help="fp16: gradients travel and are added as 16-bit floats, half the bytes, with three digits left "
        "of each. Not together with --reproducible.",
    )
    reproducible: bool = flag(
        False,
        group=Group.TRAINING,
        commands=TRAINING,
        help="The same final weights to the bit, whatever the number of workers, and whoever comes, goes or "
        "is killed on the way. Workers whose processor or software would compute other bits are refused.",
    )
    virtual_workers: int = flag(
        12,
        group=Group.TRAINING,
        metavar="N",
        commands=TRAINING,
        minimum=1,
        help="With --reproducible: each step is cut into so many parts, whoever computes them. A number that "
        "the likely numbers of workers divide, and never less than --num_workers.",
    )
    verify_fingerprint: str = flag(
        "",
        group=Group.TRAINING,
        metavar="SHA256",
        commands=TRAINING,
        help="With --reproducible: the job fails unless the weights at its end have this fingerprint, which "
        "an earlier run printed.",
    )

    # -- elasticity --------------------------------------------------------------------------------------
    num_workers: int = flag(
        2,
        group=Group.ELASTICITY,
        metavar="N",
        minimum=0,
        help="Wanted number of workers. The job trains with fewer while there is no room for all.",
    )
    min_workers: int = flag(
        1,
        group=Group.ELASTICITY,
        metavar="N",
        minimum=1,
        help="The job starts once so many workers are ready, and goes on while so many remain.",
    )
    failure_detection_seconds: float = flag(
        10.0,
        group=Group.ELASTICITY,
        metavar="SECONDS",
        minimum=0.5,
        help="How long a silent worker is waited for before the others go on without it: the one setting "
        "from which all deadlines derive. A process that exits is noticed at once.",
    )
    cool_down_seconds: float = flag(
        3.0,
        group=Group.ELASTICITY,
        metavar="SECONDS",
        commands=TRAINING,
        minimum=0,
        help="How long newcomers are gathered so that all of them join in one re-form of the ring.",
    )
    replace_stragglers: float = flag(
        0.0,
        group=Group.ELASTICITY,
        metavar="FACTOR",
        commands=TRAINING,
        minimum=0,
        help="Drain and replace a worker whose part of a step takes FACTOR (1.5 or more) times as long as "
        "that of the others for half a minute; one at a time, never below --min_workers. 0: such a worker is "
        "only named.",
    )
    max_worker_crashes: int = flag(
        3,
        group=Group.ELASTICITY,
        metavar="N",
        minimum=0,
        help="Crashes of workers that are answered by a new worker. One more fails the job with the "
        "reason. Preempted, deleted and drained workers cost nothing.",
    )
    master_grace_seconds: float = flag(
        60.0,
        group=Group.ELASTICITY,
        metavar="SECONDS",
        minimum=0,
        help="How long workers train on without a master before they stop cleanly.",
    )
    threads_per_worker: int = flag(
        0,
        group=Group.ELASTICITY,
        metavar="N",
        minimum=0,
        help="Threads of one worker's TensorFlow. 0: the cores divided by the workers that share a machine, "
        "or 1 with --reproducible.",
    )
    aux_params: str = flag(
        "",
        group=Group.ELASTICITY,
        metavar="'K=V; K=V'",
        help="Rarely needed parameters. Known: disable_relaunch=true (a lost worker is not replaced).",
    )

    # -- checkpoints and results -------------------------------------------------------------------------
    output: str = flag(
        "",
        group=Group.OUTPUT,
        metavar="DIR",
        help="Where the trained model is written, as a SavedModel and as model.keras; of `predict`, where "
        "the predictions go. Empty: not written.",
    )
    passes_dir: str = flag(
        "",
        group=Group.OUTPUT,
        metavar="DIR",
        commands=PROCESSES,
        help="Also write the model after each epoch, to pass-<epoch> in this directory. Empty: not written.",
    )
    overwrite: bool = flag(
        False,
        group=Group.OUTPUT,
        commands=frozenset({Command.PREDICT}) | PROCESSES,
        help="Replace the predictions of another run in --output. Without it such a directory is refused.",
    )
    checkpoint_dir: str = flag(
        "",
        group=Group.OUTPUT,
        metavar="DIR",
        help="Where checkpoints are written, and from where the job goes on when it is started again. "
        "Alone: one when the job stops or ends. Empty with --checkpoint_steps: ./checkpoint_dir.",
    )
    checkpoint_steps: int = flag(
        0,
        group=Group.OUTPUT,
        metavar="STEPS",
        minimum=0,
        help="Write a checkpoint every so many steps. 0: none on the way.",
    )
    keep_checkpoint_max: int = flag(
        0,
        group=Group.OUTPUT,
        metavar="N",
        minimum=0,
        help="Keep so many of the newest checkpoints. 0: keep all.",
    )
    checkpoint_dir_for_init: str = flag(
        "",
        group=Group.OUTPUT,
        metavar="DIR",
        help="Begin with the model of the newest checkpoint in this directory, or of one version-<step>.",
    )

    # -- logs --------------------------------------------------------------------------------------------
    log_level: LogLevel = flag(LogLevel.INFO, group=Group.LOGGING, help="The least level that is logged.")
    log_format: LogFormat = flag(
        LogFormat.TEXT,
        group=Group.LOGGING,
        help="What a line of a log is: text for people, or a JSON object for collectors of logs; with json "
        "no table is drawn.",
    )
    full_traceback: bool = flag(
        False,
        group=Group.LOGGING,
        help="When user code fails, show every frame, also those of TensorFlow and Keras. "
        "The worker's log always has them.",
    )
    log_file_path: str = flag(
        "", group=Group.LOGGING, metavar="FILE", help="Copy what is printed into this file, too."
    )
    log_loss_steps: int = flag(
        100,
        group=Group.LOGGING,
        metavar="STEPS",
        commands=TRAINING,
        minimum=1,
        help="Workers log 'Loss = ..., steps = ...' every so many steps.",
    )
    tensorboard_log_dir: str = flag(
        "", group=Group.LOGGING, metavar="DIR", help="Write loss, metrics and ring size for TensorBoard."
    )
    audit_dir: str = flag(
        "",
        group=Group.LOGGING,
        metavar="DIR",
        help="Each worker writes here which records it really used; `elasticdl audit` then proves that "
        "every record was used exactly once per epoch. Empty: no audit.",
    )

    dashboard_port: str = flag(
        "auto",
        group=Group.LOGGING,
        metavar="PORT",
        commands=frozenset(Command) - {Command.WORKER},
        help="Port of the job's page; `elasticdl dashboard` opens it. auto: any free one on this machine's "
        "loopback, 50002 in a pod. off: no page.",
    )
    report: str = flag(
        "",
        group=Group.LOGGING,
        metavar="FILE",
        commands=frozenset({Command.TRAIN, Command.EVALUATE, Command.PREDICT, Command.MASTER}),
        help="When the job is over, write its report here, too, as one HTML file; on Kubernetes a path on a "
        "--volume. A local job always has one in its directory; `elasticdl report` makes other forms of it.",
    )

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

    @functools.cached_property
    def typed(self) -> TypedFlags:
        """Text flags in typed form."""
        return TypedFlags(self)

    @property
    def job_type(self) -> JobType:
        """ElasticDL's rule: what a job does follows from its data."""
        if self.prediction_data:
            return JobType.PREDICTION_ONLY
        if self.validation_data and not (self.training_data or self.job_command):
            return JobType.EVALUATION_ONLY
        if self.training_data and self.validation_data and self.evaluation_steps:
            return JobType.TRAINING_WITH_EVALUATION
        return JobType.TRAINING_ONLY

    @property
    def logs_json(self) -> bool:
        return self.log_format is LogFormat.JSON

    @property
    def checkpoints(self) -> str:
        """Where checkpoints are written; empty when none were asked for."""
        return self.checkpoint_dir or (DEFAULT_CHECKPOINTS if self.checkpoint_steps else "")

    @property
    def virtual_ranks(self) -> int:
        """Into how many parts each step is cut, whoever computes them; 0: one for each worker."""
        return self.virtual_workers if self.reproducible else 0

    @property
    def micro_batch(self) -> int:
        """The most records of one forward pass."""
        if self.reproducible:  # the same for all ways to come to this batch
            return -(-self.global_batch_size // self.virtual_workers)
        return self.minibatch_size

    @property
    def global_batch_size(self) -> int:
        """Records of one step when all wanted workers are there.

        A master by hand wants none (--num_workers=0); then the least number that may train counts.
        """
        return self.minibatch_size * max(self.num_workers, self.min_workers)

    @property
    def threads(self) -> int:
        """Threads that TensorFlow gets in one worker: workers that share a machine share its cores.

        Bits depend on it, so it must not depend on the machine or on the workers of a reproducible job.
        """
        if self.reproducible:
            return self.threads_per_worker or 1
        return self.threads_per_worker or max(1, (os.cpu_count() or 1) // max(1, self.num_workers))


def job_directory(spec: JobSpec, environ: Mapping[str, str] = os.environ) -> Path:
    """Where a local job keeps its files; by default a place that the job's name alone determines."""
    return Path(spec.job_dir) if spec.job_dir else jobs_root(environ) / spec.job_name


def jobs_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The directory with one directory per local job of this user."""
    state = environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state else Path(environ.get("HOME", "~")).expanduser() / ".local" / "state"
    return base / "elasticdl" / "jobs"
