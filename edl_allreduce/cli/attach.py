"""`elasticdl attach`: sit down before a job again that runs in the background or in another terminal."""

from __future__ import annotations

from edl_allreduce import outside
from edl_allreduce.cli.asking import job_parser, resolve_job
from edl_allreduce.cli.status import current, show, watch

FAILED = "Failed"

ABOUT = """\
Show the live table of a running job (--detach, or a terminal that was closed) until it ends. Ctrl-C leaves
the job running. Of a job that is over, its end is shown. Exit code 1 when the job failed.

  elasticdl attach --job_name=digits
"""


def main(argv: list[str]) -> int:
    job = resolve_job(job_parser("attach", "", ABOUT).read(argv))
    try:
        if job.running() is None:
            show(job)
        else:
            watch(job)
    except KeyboardInterrupt:
        print(f"\nDetached: {outside.name(job.name)} goes on. `elasticdl stop {job.named}` stops it.")
        return 0
    return 1 if current(job).phase == FAILED else 0
