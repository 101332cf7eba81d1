"""The job: every flag declared once, parsed once, checked once."""

from edl_allreduce.spec.choices import (
    CleanPodPolicy,
    ElasticBatch,
    GradientCompression,
    ImagePullPolicy,
    JobType,
    LogLevel,
    MixedPrecision,
    OnNan,
    RestartPolicy,
    Strategy,
)
from edl_allreduce.spec.declare import Command
from edl_allreduce.spec.flags import ParsedJob, parse_job, to_argv
from edl_allreduce.spec.job import JobSpec, job_directory

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
