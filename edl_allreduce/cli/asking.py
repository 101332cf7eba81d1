"""What the commands for running jobs share: which job is meant, and how it is asked."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from edl_allreduce import clock
from edl_allreduce.cluster.choose import find_job
from edl_allreduce.cluster.known import KnownJob, running_address
from edl_allreduce.core.protocol import Ask, Command
from edl_allreduce.core.status import JobStatus
from edl_allreduce.spec.words import Parser

POLL_SECONDS = 0.2
"""Between two looks at the job's files: what a person takes for at once."""


def job_parser(name: str, usage: str, about: str) -> Parser:
    """A parser whose command is about one job."""
    parser = Parser(f"elasticdl {name}", f"[--job_name=NAME] {usage}".rstrip(), about)
    parser.add_argument(
        "--job_name", metavar="NAME", default="", help="the job; not needed while only one runs"
    )
    parser.add_argument(
        "--job_dir", metavar="DIR", default="", help="the directory of a job that was given one"
    )
    parser.add_argument(
        "--namespace", metavar="NAME", default="", help="a job on Kubernetes: the namespace of its pods"
    )
    return parser


def resolve_job(arguments: argparse.Namespace) -> KnownJob:
    """The job that the flags name."""
    return find_job(arguments.job_name, arguments.job_dir, arguments.namespace)


def ask(job: KnownJob, command: Command | None = None) -> JobStatus:
    """Send a command to the job's master; it must run."""
    address = running_address(job)
    from edl_allreduce.rpc.client import command as send  # gRPC only now: help must be quick

    asked = Ask() if command is None else command
    return send(address.address, address.token, asked, certificate=address.certificate)


def while_running(job: KnownJob, seconds: float = POLL_SECONDS) -> Iterator[None]:
    """Yield now and then, and once more after the job ended."""
    for _ in clock.polls(seconds):
        running = job.running() is not None
        yield
        if not running:
            return
