"""Arguments of `api.submit`: the flags of `elasticdl train`. Written by `spec.flag_types`."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any, TypedDict


class TrainFlags(TypedDict, total=False):
    """All of them may be left out; those that must be there are checked when the job is submitted."""

    job_name: str | PathLike[str]
    """Name of the job, by which status, scale, stop and logs find it. Lower-case letters, digits and '-',
    at most 40; unique on this machine or in the namespace."""

    distribution_strategy: str | PathLike[str]
    """AllreduceStrategy: workers average gradients among themselves. Local: one process, no Horovod."""

    image_name: str | PathLike[str]
    """Container image of the job. With it the job runs on Kubernetes, without it as local processes."""

    job_command: str | PathLike[str]
    """Run this command in each worker instead of training a model of the zoo, e.g. --job_command='python
    my_train.py'. The script joins the job through the Python API."""

    detach: bool
    """Run a local job in the background, in a session of its own: return as soon as its master listens,
    and say how to attach to it, follow it and stop it."""

    job_dir: str | PathLike[str]
    """Where a local job keeps its address, token, events and worker logs. Empty:
    elasticdl/jobs/<job_name> in the user's state directory ($XDG_STATE_HOME or ~/.local/state)."""

    model_zoo: str | PathLike[str]
    """Directory with model files (a path in the image on Kubernetes). Empty: the current directory."""

    model_def: str | Callable[..., Any] | object
    """The function or class that makes the Keras model, as directory.file.name below --model_zoo:
    digits.mlp.custom_model is custom_model in digits/mlp.py."""

    model_params: str | PathLike[str]
    """Keyword arguments of the function or class that --model_def names; Python literals or text."""

    feed: str | Callable[..., Any]
    """Name of the function feed(dataset, mode, metadata) that turns raw records into (features, labels).
    These names may be dotted paths below --model_zoo."""

    loss: str | Callable[..., Any]
    """Name of the function loss(labels, predictions)."""

    optimizer: str | Callable[..., Any]
    """Name of the function that makes the Keras optimizer; called without arguments."""

    eval_metrics_fn: str | Callable[..., Any]
    """Name of the function that returns {metric name: function or Keras metric}."""

    callbacks: str | Callable[..., Any]
    """Name of the function that returns a list of Keras callbacks. May be absent from the file."""

    custom_data_reader: str | Callable[..., Any]
    """Name of the function that makes a reader for your own data format. May be absent."""

    training_data: str | PathLike[str]
    """Directory or file with the records to train on."""

    validation_data: str | PathLike[str]
    """Directory or file with the records to evaluate on; while training, see --evaluation_steps."""

    data_reader_params: str | PathLike[str]
    """Parameters of the data reader, such as 'reader_type=CSV; sep=semicolon'. Known: reader_type,
    columns, header, sep, quoting; a custom_data_reader gets whatever is given."""

    num_minibatches_per_task: int
    """Size of one piece of work of evaluation and prediction, in minibatches."""

    max_bad_records: int
    """How many different records may be bad and left out, each named, before the job fails."""

    shuffle: bool
    """Train on the records in a new order in each epoch. The order depends on --seed and the epoch alone,
    never on the number of workers."""

    seed: int
    """Seed of the data order and of the initial weights. The same seed gives the same run."""

    minibatch_size: int
    """Records that one worker works on at a time. One optimiser step uses --minibatch_size x
    --num_workers records (see --elastic_batch)."""

    num_epochs: int
    """Passes over the data."""

    max_step: int
    """Stop after this many steps even if epochs remain. 0: no limit."""

    evaluation_steps: int
    """Evaluate on --validation_data every so many steps, and at the end. 0: only at the end."""

    elastic_batch: str | PathLike[str]
    """What stays constant when workers come and go. global: the batch of a step, so that the optimisation
    stays the same. worker: the batch of each worker, as in ElasticDL."""

    mixed_precision: str | PathLike[str]
    """Keras' dtype policy: compute in half precision, keep variables in float32. mixed_float16 comes with
    dynamic loss scaling. from_file: what the model file sets, else full precision."""

    on_nan: str | PathLike[str]
    """When the loss of a step is NaN or infinite. stop: the job fails at once, keeps its last good
    checkpoint and writes no model. skip: that update is left out. continue: train on."""

    bucket_mb: float
    """Gradients are summed over the workers in buckets of at least so many megabytes, while the backward
    pass computes the others. 0: 4 for models of more than 4 MB, all at once for smaller ones. A value
    above the model's size: all at once."""

    gradient_compression: str | PathLike[str]
    """fp16: gradients travel and are added as 16-bit floats, half the bytes, with three digits left of
    each. Not together with --reproducible."""

    reproducible: bool
    """The same final weights to the bit, whatever the number of workers, and whoever comes, goes or is
    killed on the way. Workers whose processor or software would compute other bits are refused."""

    virtual_workers: int
    """With --reproducible: each step is cut into so many parts, whoever computes them. Runs come to the
    same bits only with the same number. 0: --num_workers, or its first multiple from 4 on."""

    verify_fingerprint: str | PathLike[str]
    """With --reproducible: the job fails unless the weights at its end have this fingerprint, which an
    earlier run printed."""

    num_workers: int
    """Wanted number of workers. The job trains with fewer while there is no room for all."""

    min_workers: int
    """The job starts once so many workers are ready, and goes on while so many remain."""

    standby: int
    """Workers beyond the wanted ones that are kept ready: they have imported, built and traced, and take
    the place of the next worker that is lost, drained or added, without a start. Each costs a process or
    a pod that does not train."""

    failure_detection_seconds: float
    """How long a silent worker is waited for before the others go on without it: the one setting from
    which all deadlines derive. A process that exits is noticed at once."""

    cool_down_seconds: float
    """How long newcomers are gathered so that all of them join in one re-form of the ring."""

    replace_stragglers: float
    """Drain and replace a worker whose part of a step takes FACTOR (1.5 or more) times as long as that of
    the others for half a minute; one at a time, never below --min_workers. 0: such a worker is only
    named."""

    max_worker_crashes: int
    """Crashes of workers that are answered by a new worker. One more fails the job with the reason.
    Preempted, deleted and drained workers cost nothing."""

    master_grace_seconds: float
    """How long workers train on without a master before they stop cleanly."""

    threads_per_worker: int
    """Threads of one worker's TensorFlow. 0: the cores divided by the workers that share a machine, or 1
    with --reproducible."""

    aux_params: str | PathLike[str]
    """Rarely needed parameters. Known: disable_relaunch=true (a lost worker is not replaced)."""

    output: str | PathLike[str]
    """Where the trained model is written, as a SavedModel and as model.keras; of `predict`, where the
    predictions go. Empty: not written."""

    checkpoint_dir: str | PathLike[str]
    """Where checkpoints are written, and from where the job goes on when it is started again. Alone: one
    when the job stops or ends. Empty with --checkpoint_steps: ./checkpoint_dir."""

    checkpoint_steps: int
    """Write a checkpoint every so many steps. 0: none on the way."""

    keep_checkpoint_max: int
    """Keep so many of the newest checkpoints. 0: keep all."""

    checkpoint_dir_for_init: str | PathLike[str]
    """Begin with the model of the newest checkpoint in this directory, or of one version-<step>."""

    log_level: str | PathLike[str]
    """The least level that is logged."""

    log_format: str | PathLike[str]
    """What a line of a log is: text for people, or a JSON object for collectors of logs; with json no
    table is drawn."""

    full_traceback: bool
    """When user code fails, show every frame, also those of TensorFlow and Keras. The worker's log always
    has them."""

    log_file_path: str | PathLike[str]
    """Copy what is printed into this file, too."""

    log_loss_steps: int
    """Workers log 'Loss = ..., steps = ...' every so many steps."""

    tensorboard_log_dir: str | PathLike[str]
    """Write loss, metrics and ring size for TensorBoard."""

    audit_dir: str | PathLike[str]
    """Each worker writes here which records it really used; `elasticdl audit` then proves that every
    record was used exactly once per epoch. Empty: no audit."""

    dashboard_port: str | PathLike[str]
    """Port of the job's page; `elasticdl dashboard` opens it. auto: any free one on this machine's
    loopback, 50002 in a pod. off: no page."""

    report: str | PathLike[str]
    """When the job is over, write its report here, too, as one HTML file; on Kubernetes a path on a
    --volume. A local job always has one in its directory; `elasticdl report` makes other forms of it."""

    namespace: str | PathLike[str]
    """Namespace of the job's pods."""

    worker_image: str | PathLike[str]
    """Image of workers. Empty: --image_name."""

    image_pull_policy: str | PathLike[str]
    """When nodes pull the image."""

    restart_policy: str | PathLike[str]
    """Restart policy of the master's container; workers are replaced by the master."""

    service_account: str | PathLike[str]
    """Service account of the master, allowed to manage pods (manifests/elasticdl-rbac.yaml). Empty: the
    namespace's default, which every other pod of the namespace has, too."""

    worker_service_account: str | PathLike[str]
    """Service account of workers, for a cloud that gives it rights on object storage. It needs none in
    the cluster, and its token is not mounted. Empty: the namespace's default."""

    master_resource_request: str | PathLike[str]
    """What the master's pod asks for, as name=amount,...; names: cpu, memory, disk, ephemeral-storage,
    gpu, or a device such as amd.com/gpu."""

    master_resource_limit: str | PathLike[str]
    """Limit of the master's pod. Empty: the request."""

    worker_resource_request: str | PathLike[str]
    """What each worker's pod asks for, such as cpu=2,memory=4Gi,gpu=1."""

    worker_resource_limit: str | PathLike[str]
    """Limit of a worker's pod. Empty: the request."""

    master_pod_priority: str | PathLike[str]
    """PriorityClass of the master's pod."""

    worker_pod_priority: str | PathLike[str]
    """PriorityClass of workers: high, low or any class; or a fraction such as 0.5: that part of the
    workers is high and the rest low."""

    worker_tolerations: str | PathLike[str]
    """Taints of nodes that workers may use (spot nodes), in kubectl's syntax:
    key=value:NoSchedule,key:NoExecute."""

    worker_node_selector: str | PathLike[str]
    """Labels of the nodes that workers run on, e.g. cloud.google.com/gke-spot=true."""

    volume: str | PathLike[str]
    """Volumes of all pods: claim_name=NAME,mount_path=PATH or host_path=PATH,mount_path=PATH, with
    sub_path and type (of a host path); several are separated by ';'."""

    envs: str | PathLike[str]
    """Environment variables of all pods."""

    populate_env_names: str | PathLike[str]
    """Copy the master's environment variables whose whole name matches to the workers."""

    cluster_spec: str | PathLike[str]
    """Python file with an object `cluster` whose with_pod(pod) and with_service(service) adapt the
    manifests to your cluster."""

    cluster_spec_json: str | PathLike[str]
    """The same as JSON: pod_spec, master_pod_spec, worker_pod_spec, service_spec with labels,
    annotations, affinity, tolerations, env."""

    yaml: str | PathLike[str]
    """Write the manifests to this file instead of submitting the job."""

    force_use_kube_config_file: bool
    """Use the kubeconfig file even inside a pod."""

    follow: bool
    """Stay and show the live table until the job ends."""

    no_controller: bool
    """Submit a bare master pod even where the cluster has TrainingJobs. Such a job ends with its master's
    pod, and no autoscaler looks after it."""

    max_workers: int
    """Most workers that the autoscaler may give; --num_workers then only decides the batch of a step. 0:
    --num_workers."""

    weight: float
    """Share of the cluster beside other jobs: one with weight 2 counts twice."""

    deadline: str | PathLike[str]
    """When the job should be over, as 2030-12-31T08:00:00Z: the autoscaler gives it the fewest workers
    that meet it. Nothing is ended when it passes."""

    active_deadline_seconds: int
    """The job is stopped and fails when it has been active for so long. 0: no limit."""

    ttl_seconds_after_finished: int
    """The TrainingJob is deleted so long after its end, with its pods and their logs. Empty: it stays
    until somebody deletes it."""

    clean_pod_policy: str | PathLike[str]
    """Which pods are deleted when the job is over. Running: those that have not ended; the others stay
    with their logs. All. None."""

    queue_name: str | PathLike[str]
    """Kueue's queue: the label kueue.x-k8s.io/queue-name of the TrainingJob and of its pods. What a queue
    manages is left alone by the autoscaler."""

    port: int
    """Port of the master. 0: any free one."""
