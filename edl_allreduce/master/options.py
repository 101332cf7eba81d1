"""What the master's machine must know of a job, from its flags."""

from __future__ import annotations

from edl_allreduce.core.deadlines import Deadlines
from edl_allreduce.core.job.state import JobOptions
from edl_allreduce.spec import JobSpec, JobType

PULLED = (JobType.EVALUATION_ONLY, JobType.PREDICTION_ONLY)


def options_of(spec: JobSpec) -> JobOptions:
    """Training needs a ring, evaluation and prediction only a queue."""
    task_records = spec.minibatch_size * spec.num_minibatches_per_task if spec.job_type in PULLED else 0
    return JobOptions(
        job_name=spec.job_name,
        num_workers=spec.num_workers,
        min_workers=spec.min_workers,
        cool_down=spec.cool_down_seconds,
        deadlines=Deadlines(spec.failure_detection_seconds),
        master_grace=spec.master_grace_seconds,
        crash_budget=spec.max_worker_crashes,
        max_bad_records=spec.max_bad_records,
        task_records=task_records,
        replace_stragglers=spec.replace_stragglers,
        standby=0 if task_records or spec.num_workers == 0 else spec.standby,
        verify_fingerprint=spec.verify_fingerprint,
        reproducible=spec.reproducible,
        relaunch=spec.typed.aux_params.get("disable_relaunch", "").lower() != "true",
    )
