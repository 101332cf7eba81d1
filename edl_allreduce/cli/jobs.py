"""`elasticdl jobs`: the local jobs of this user, and removing what old ones left; or those of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from edl_allreduce import clock, outside
from edl_allreduce.cli.status import SHOWN_JOBS, list_jobs, when
from edl_allreduce.cluster.registry import LocalJobFiles, find_job, known_jobs
from edl_allreduce.errors import UsageError
from edl_allreduce.spec.words import Parser

DAY = 24 * 3600.0
USAGE = "[--all] [--cluster|--namespace=NAME] [--output=table|json] | rm NAME…|--older_than=DAYS"

ABOUT = """\
List the local jobs of this user, the newest first, or remove the directories of jobs that are over: their
events, logs and last status. Checkpoints, models and audits are elsewhere and stay.

  elasticdl jobs
  elasticdl jobs --all
  elasticdl jobs rm digits digits-2
  elasticdl jobs rm --older_than=30        all that began more than 30 days ago and do not run

The TrainingJobs of a cluster, with the size that is planned for each and the reason:

  elasticdl jobs --cluster
  elasticdl jobs --namespace=team
"""


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] == "rm":
        return _remove(argv[1:])
    parser = Parser("elasticdl jobs", USAGE, ABOUT)
    parser.add_argument("--all", action="store_true", help=f"all of them, not only the last {SHOWN_JOBS}")
    parser.add_argument(
        "--output", choices=("table", "json"), default="table", help="table, or JSON for scripts (all jobs)"
    )
    parser.add_argument("--cluster", action="store_true", help="the TrainingJobs of all namespaces")
    parser.add_argument("--namespace", metavar="NAME", default="", help="the TrainingJobs of this namespace")
    arguments = parser.read(argv)
    if arguments.cluster or arguments.namespace:
        from edl_allreduce.cli.cluster_jobs import list_cluster  # a laptop needs no Kubernetes

        return list_cluster(arguments.output, arguments.namespace)
    return list_jobs(arguments.output, everything=arguments.all)


def _remove(argv: Sequence[str]) -> int:
    parser = Parser("elasticdl jobs rm", "NAME… | --older_than=DAYS", ABOUT)
    parser.add_argument("names", nargs="*", metavar="NAME", help="jobs that are over")
    parser.add_argument("--older_than", metavar="DAYS", help="all jobs that began before, and do not run")
    arguments = parser.read(argv)
    if bool(arguments.names) == (arguments.older_than is not None):
        raise UsageError("Name the jobs to remove, or say --older_than=DAYS. See `elasticdl jobs --help`.")
    if arguments.names:
        jobs = [find_job(name) for name in arguments.names]
    else:
        jobs = older_than(known_jobs(), _days(arguments.older_than) * DAY, clock.wall())
    for job in jobs:
        address = job.address()
        began = when(address.started if address is not None else 0.0)
        job.remove()
        print(f"removed {outside.name(job.directory.name)}, which began {began}")
    if not jobs:
        print("Nothing to remove.")
    return 0


def older_than(jobs: Sequence[LocalJobFiles], age: float, now: float) -> list[LocalJobFiles]:
    """Those that began so long ago and are over."""
    return [
        job
        for job in jobs
        if (address := job.address()) is not None and now - address.started > age and job.running() is None
    ]


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < float("inf"):
        raise UsageError(f"--older_than={text}: must be a number of days, for example 30.")
    return days
