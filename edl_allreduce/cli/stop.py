"""`elasticdl stop`: end a job at a step boundary."""

from __future__ import annotations

import os

from edl_allreduce import clock, outside
from edl_allreduce.cli.asking import POLL_SECONDS, ask, job_parser, resolve_job, while_running
from edl_allreduce.cluster.known import running_address
from edl_allreduce.cluster.processes import process_ticks
from edl_allreduce.core.protocol import StopJob
from edl_allreduce.errors import JobFailed

ABOUT = """\
Stop a running job at a step boundary: every worker finishes its step, the model so far is written to
--output, and all of them exit. Returns when that is done.

  elasticdl stop --job_name=digits
"""

EXIT_SECONDS = 10.0
"""How long a master that wrote its result may take to end."""


def main(argv: list[str]) -> int:
    job = resolve_job(job_parser("stop", "", ABOUT).read(argv))
    address = running_address(job)
    ask(job, StopJob())
    for _ in while_running(job):
        pass
    result = job.result()
    if result is None:
        raise JobFailed(f"the master of {job.name} ended without a result; see {job.where}")
    if address.pid:
        _wait_for_exit(address.pid, address.ticks)
    print(f"{job.name}: {result.phase} after {result.step} steps.")
    if result.path:
        print(f"The model so far is in {outside.line(result.path)}")
    return 0


def _wait_for_exit(pid: int, ticks: int) -> None:
    """So that a job of the same name may start at once."""
    if pid == os.getpid():
        return
    for _ in clock.polls(POLL_SECONDS, within=EXIT_SECONDS):
        if process_ticks(pid) != ticks:
            return
