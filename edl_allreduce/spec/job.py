"""The job in one frozen dataclass: ElasticDL's flags under their own names, and ours.

Flags that mean nothing without parameter servers, and flags that old documents still show, are not fields:
they have no effect beyond a notice. They live in `legacy.py`.
"""

# ruff: noqa: RUF009  flag() makes a dataclasses.field, which is what the rule asks for.

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path

from edl_allreduce.spec.choices import (
    ElasticBatch,
    GradientCompression,
    JobType,
    LogFormat,
    MixedPrecision,
    OnNan,
    Strategy,
)
from edl_allreduce.spec.cluster_flags import ClusterFlags
from edl_allreduce.spec.declare import PROCESSES, SUBMITTING, TRAINING, Command, Group, flag
from edl_allreduce.spec.log_flags import LogFlags
from edl_allreduce.spec.typed import TypedFlags

DEFAULT_CHECKPOINTS = "checkpoint_dir"
LEAST_VIRTUAL_WORKERS = 4
"""Of a reproducible job, unless it says how many: so that 1, 2 and 4 workers come to the same bits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSpec(LogFlags, ClusterFlags):
    """Everything that a user can say about a job. Text fields hold the flag's syntax, `typed` its meaning.

    Flags about logs and clusters are in `log_flags.py` and `cluster_flags.py`.
    """

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
        0,
        group=Group.TRAINING,
        metavar="N",
        commands=TRAINING,
        minimum=0,
        help="With --reproducible: each step is cut into so many parts, whoever computes them. Runs come to "
        "the same bits only with the same number. 0: --num_workers, or its first multiple from 4 on.",
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
    standby: int = flag(
        0,
        group=Group.ELASTICITY,
        metavar="N",
        commands=TRAINING,
        minimum=0,
        help="Workers beyond the wanted ones that are kept ready: they have imported, built and traced, and "
        "take the place of the next worker that is lost, drained or added, without a start. Each costs a "
        "process or a pod that does not train.",
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
        if not self.reproducible:
            return 0
        workers = max(1, self.num_workers, self.min_workers)  # never changes: the batch depends on it
        return self.virtual_workers or workers * -(-LEAST_VIRTUAL_WORKERS // workers)

    @property
    def micro_batch(self) -> int:
        """The most records of one forward pass."""
        if self.reproducible:  # the same for all ways to come to this batch
            return -(-self.global_batch_size // self.virtual_ranks)
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
