"""What flags with a few possible values may say."""

from __future__ import annotations

import enum


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
