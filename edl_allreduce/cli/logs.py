"""`elasticdl logs`: what workers and the master printed."""

from __future__ import annotations

from edl_allreduce.cli.asking import job_parser, resolve_job
from edl_allreduce.errors import UsageError

ABOUT = """\
Show what one worker printed, or the master, or all of them with their names in front.

  elasticdl logs --job_name=digits            all workers
  elasticdl logs --job_name=digits 2          worker 2
  elasticdl logs --job_name=digits master
  elasticdl logs --job_name=digits --follow   stay until the job ends
"""


def main(argv: list[str]) -> int:
    parser = job_parser("logs", "[--follow] [WORKER]", ABOUT)
    parser.add_argument(
        "worker", nargs="?", default="", metavar="WORKER", help="a worker's number, or master"
    )
    parser.add_argument("--follow", action="store_true", help="stay until the job ends")
    arguments = parser.read(argv)
    job, whose = resolve_job(arguments), arguments.worker
    if whose and whose not in (names := job.logs()):
        raise UsageError(f"job {job.name} has no log of {whose}; there are: {', '.join(names)}.")
    for name, line in job.log_lines(whose, follow=arguments.follow):
        marked = whose or f"[worker {name}]" in line
        print(line if marked else f"{name}: {line}", flush=True)
    return 0
