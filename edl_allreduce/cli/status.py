"""`elasticdl status`: all local jobs, or one with its workers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec
from rich.live import Live
from rich.table import Table

from edl_allreduce import outside
from edl_allreduce.cli.jobs import ask, job_parser, meant, while_running
from edl_allreduce.cluster.registry import KnownJob, known_jobs, running_address
from edl_allreduce.errors import EdlError, MasterUnreachable
from edl_allreduce.rpc.messages import JobStatus

ABOUT = """\
Show the jobs of this machine, or one job: its ring, progress, workers and the last events.

  elasticdl status
  elasticdl status --job_name=digits
  elasticdl status --job_name=digits --watch
  elasticdl status --job_name=digits --output=json | jq .step
"""


def main(argv: list[str]) -> int:
    parser = job_parser("status", "[--output=table|json] [--watch]", ABOUT)
    parser.add_argument(
        "--output", choices=("table", "json"), default="table", help="table, or JSON for scripts"
    )
    parser.add_argument("--watch", action="store_true", help="stay, and show every change until the job ends")
    arguments = parser.read(argv)
    one = arguments.job_name or arguments.job_dir or arguments.watch
    if not one:
        return _list(arguments.output, arguments.namespace)
    job = meant(arguments)
    if arguments.output == "json":
        return _json(job, arguments.watch)
    return watch(job) if arguments.watch else _show(job)


def current(job: KnownJob) -> JobStatus:
    """From the master, or what it last said."""
    if job.running() is None:
        result = job.result()
        if result is not None:
            return result
    try:
        return ask(job)
    except EdlError:
        result = job.result()  # it may have ended in between
        if result is None:
            raise
        return result


def watch(job: KnownJob) -> int:
    """The live table, until the job ends."""
    from edl_allreduce.master.display import render

    running_address(job)
    with Live(render(current(job)), console=outside.console(), auto_refresh=False) as live:
        for _ in while_running(job):
            with suppress(MasterUnreachable):  # it restarts, or just ended
                live.update(render(current(job)), refresh=True)
    _tell_end(current(job))
    return 0


def _show(job: KnownJob) -> int:
    from edl_allreduce.master.display import render

    status = current(job)
    outside.console().print(render(status))
    _tell_end(status)
    return 0


def _tell_end(status: JobStatus) -> None:
    if status.reason:
        print(f"{status.phase}: {outside.story(status.reason)}")
    if status.path:
        print(f"The result is in {outside.line(status.path)}")


def _json(job: KnownJob, stay: bool) -> int:
    for _ in while_running(job) if stay else [None]:
        print(msgspec.json.encode(current(job)).decode(), flush=True)
    return 0


def _list(output: str, namespace: str) -> int:
    rows = [_row(job) for job in _all(namespace)]
    if output == "json":
        print(msgspec.json.encode(rows).decode())
        return 0
    if not rows:
        print("No job is known here. Start one with `elasticdl train`; see `elasticdl train --help`.")
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("job", "phase", "step", "of", "workers", "generation"):
        table.add_column(column, justify="left" if column in ("job", "phase") else "right")
    for row in rows:
        numbers = (row.step, row.total_steps or "?", row.workers, row.generation)
        table.add_row(outside.name(row.job_name), outside.name(row.phase), *map(str, numbers))
    outside.console().print(table)
    return 0


def _all(namespace: str) -> Sequence[KnownJob]:
    if not namespace:
        return known_jobs()
    from edl_allreduce.cluster.kubernetes import api, remote

    return remote.list_jobs(api.Api.connect(), namespace)


class Row(msgspec.Struct, frozen=True):
    """One job of the list."""

    job_name: str
    phase: str
    step: int = 0
    total_steps: int = 0
    workers: int = 0
    generation: int = 0
    where: str = ""


def _row(job: KnownJob) -> Row:
    try:
        status = current(job)
    except EdlError:
        return Row(job.name, "Lost", where=job.where)
    ring = sum(worker.rank >= 0 for worker in status.workers)
    return Row(job.name, status.phase, status.step, status.total_steps, ring, status.generation, job.where)
