"""The job: every flag declared once, parsed once, checked once."""

from edl_allreduce.spec.flags import ParsedJob, parse_job, to_argv
from edl_allreduce.spec.job import (
    CleanPodPolicy,
    Command,
    ElasticBatch,
    GradientCompression,
    ImagePullPolicy,
    JobSpec,
    JobType,
    LogLevel,
    MixedPrecision,
    OnNan,
    RestartPolicy,
    Strategy,
    job_directory,
)

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
    "ParsedJob",
    "RestartPolicy",
    "Strategy",
    "job_directory",
    "parse_job",
    "to_argv",
]
