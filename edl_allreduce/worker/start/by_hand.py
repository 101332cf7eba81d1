"""What a worker that a person started was not told: the token, and the flags of the job, from its master."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal

from edl_allreduce import clock
from edl_allreduce.cluster.registry import token_for
from edl_allreduce.contract import EXIT_INTERRUPTED, JOB_TOKEN
from edl_allreduce.core.protocol import Ask
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import EdlError, MasterUnreachable, UsageError
from edl_allreduce.rpc.client import command
from edl_allreduce.spec import JobSpec, ParsedJob, parse_job
from edl_allreduce.worker.start.signals import TERMINATION

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
"""Between two tries to reach the master: a person waits, and nothing but one small call is spent."""
ASK_SECONDS = 5.0
"""How long one try may take: a master that is busy for so long is as good as none."""
REFUSALS = 10
"""How often a missing token is no reason to give up: it is found a moment after a local master listens."""


class Interrupted(EdlError):
    """Ctrl-C while the worker waited for its master."""

    exit_code = EXIT_INTERRUPTED


def told_everything(parsed: ParsedJob) -> bool:
    """A master that starts a worker gives it all flags and the token; a person gives what is needed."""
    return bool(os.environ.get(JOB_TOKEN)) and "job_name" in parsed.given


def complete(parsed: ParsedJob) -> JobSpec:
    """The job of the master at --master_addr, with what this worker's own flags say instead."""
    own = parsed.spec
    if own.worker_id is None:
        raise UsageError("--worker_id is missing: give each worker of the job a number of its own.")
    status = _ask(own)
    _must_be_free(own.worker_id, status)
    job = parse_job("worker", status.flags).spec
    spec = dataclasses.replace(job, **{name: getattr(own, name) for name in parsed.given})
    for flag in () if spec.job_command else ("model_def", "training_data"):
        if not getattr(spec, flag):
            raise UsageError(f"--{flag} is missing: neither this worker nor its master was told.")
    return spec


def _must_be_free(worker_id: int, status: JobStatus) -> None:
    """Two workers of one number would be one in every log and command."""
    for worker in status.workers:
        if worker.worker_id == worker_id:
            free = max(other.worker_id for other in status.workers) + 1
            who = f"pid {worker.pid}" if worker.pid else f"on {worker.host}"
            raise UsageError(
                f"--worker_id={worker_id}: the job {status.job_name} has a worker {worker_id} already "
                f"({who}). Give this one a number of its own, for example --worker_id={free}."
            )


def _ask(own: JobSpec) -> JobStatus:
    """The worker may be quicker than its master: wait for it as long as for one that restarts."""
    deadline = clock.now() + own.master_grace_seconds
    refused = 0
    told = False
    while True:
        token = os.environ.get(JOB_TOKEN) or token_for(own.master_addr, own.job_dir)
        try:
            status = command(own.master_addr, token, Ask(), timeout=ASK_SECONDS)
        except (MasterUnreachable, UsageError) as error:
            refused += isinstance(error, UsageError)
            # A local master listens a moment before its token can be found, so the first refusals may pass.
            if clock.now() > deadline or refused > REFUSALS or (refused and token):
                raise
            if not told:
                log.info("waiting for the master: %s", error)
                told = True
            if signal.sigtimedwait(TERMINATION, RETRY_SECONDS) is not None:
                raise Interrupted("interrupted before the master answered") from error
        else:
            os.environ[JOB_TOKEN] = token
            return status
