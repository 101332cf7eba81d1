"""`elasticdl top`: the live table of a running job."""

from __future__ import annotations

from edl_allreduce.cli.asking import job_parser, resolve_job
from edl_allreduce.cli.status import watch

ABOUT = """\
Watch a running job: the same table that `elasticdl train` draws, from another terminal.

  elasticdl top --job_name=digits
"""


def main(argv: list[str]) -> int:
    return watch(resolve_job(job_parser("top", "", ABOUT).read(argv)))
