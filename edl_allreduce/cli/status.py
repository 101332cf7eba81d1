"""`elasticdl status`: the jobs of this machine, or one with its workers."""

from __future__ import annotations

from contextlib import suppress

import msgspec
from rich.live import Live
from rich.table import Table

from edl_allreduce import clock, outside
from edl_allreduce.cli.asking import ask, job_parser, resolve_job, while_running
from edl_allreduce.cli.events import print_new
from edl_allreduce.cluster.choose import known_jobs
from edl_allreduce.cluster.known import KnownJob, running_address
from edl_allreduce.core.status import JobStatus
from edl_allreduce.errors import EdlError, MasterUnreachable

SHOWN_JOBS = 15

ABOUT = """\
Show the jobs of this machine, the newest first, or one job: its ring, progress, workers and the last events.

  elasticdl status
  elasticdl status --job_name=digits
  elasticdl status --job_name=digits --watch
  elasticdl status --job_name=digits --output=json | jq .step
"""


def main(argv: list[str]) -> int:
    parser = job_parser("status", "[--output=table|json] [--watch] [--all]", ABOUT)
    parser.add_argument(
        "--output", choices=("table", "json"), default="table", help="table, or JSON for scripts"
    )
    parser.add_argument("--watch", action="store_true", help="stay, and show every change until the job ends")
    parser.add_argument("--all", action="store_true", help=f"list all jobs, not only the last {SHOWN_JOBS}")
    arguments = parser.read(argv)
    one = arguments.job_name or arguments.job_dir or arguments.watch
    if not one:
        return list_jobs(arguments.output, arguments.namespace, everything=arguments.all)
    job = resolve_job(arguments)
    if arguments.output == "json":
        return _json(job, arguments.watch)
    return watch(job) if arguments.watch else show(job)


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
    """The live table until the job ends, or lines where no table can be drawn."""
    from edl_allreduce.master.display import can_draw
    from edl_allreduce.master.picture import render

    running_address(job)
    console = outside.console()
    if not can_draw(console):
        _watch_lines(job)
    else:
        with Live(render(current(job)), console=console, auto_refresh=False) as live:
            for _ in while_running(job):
                with suppress(MasterUnreachable):  # it restarts, or just ended
                    live.update(render(current(job)), refresh=True)
    tell_end(current(job))
    return 0


def _watch_lines(job: KnownJob) -> None:
    """For a pipe or a log: how far the job is, at once and then now and then, and what happens to it."""
    from edl_allreduce.master.report import Told, next_line, progress_line

    seen = max((event.serial for event in job.events()), default=0)
    first = current(job)
    print(f"{outside.name(job.name)}: {first.phase}: {progress_line(first)}", flush=True)
    told = Told(clock.now(), first.step)
    for _ in while_running(job):
        seen = print_new(job, seen)
        with suppress(MasterUnreachable):
            told, line = next_line(told, current(job), clock.now())
            if line:
                print(line, flush=True)


def show(job: KnownJob) -> int:
    """One picture."""
    from edl_allreduce.master.picture import render

    status = current(job)
    outside.console().print(render(status))
    tell_end(status)
    return 0


def tell_end(status: JobStatus) -> None:
    """What came of a job that is over."""
    from edl_allreduce.master.report import OVER, summary

    if status.phase not in OVER:
        return
    print(f"{status.phase}: {outside.story(status.reason)}")
    for line in summary(status, {}):
        print(line)
    if status.path:
        print(f"The result is in {outside.line(status.path)}")


def _json(job: KnownJob, stay: bool) -> int:
    for _ in while_running(job) if stay else [None]:
        print(msgspec.json.encode(current(job)).decode(), flush=True)
    return 0


# --------------------------------------------------------------------------------------------- the list


class Row(msgspec.Struct, frozen=True):
    """One job of the list."""

    job_name: str
    phase: str
    step: int = 0
    total_steps: int = 0
    workers: int = 0
    generation: int = 0
    where: str = ""
    started: float = 0.0
    """Seconds since 1970; 0 where it is not known."""
    loss: float | None = None
    counts: str = "step"


def list_jobs(output: str, namespace: str = "", *, everything: bool = False) -> int:
    """The newest jobs, or all of them."""
    jobs = known_jobs(namespace)
    rows = [_row(job) for job in (jobs if everything or output == "json" else jobs[:SHOWN_JOBS])]
    if output == "json":
        print(msgspec.json.encode(rows).decode())
        return 0
    if not rows:
        print("No job is known here. Start one with `elasticdl train`; see `elasticdl train --help`.")
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("job", "phase", "started", "progress", "loss", "ring"):
        table.add_column(column, justify="left" if column in ("job", "phase", "started") else "right")
    for row in rows:
        table.add_row(
            outside.name(row.job_name), outside.name(row.phase), when(row.started), _progress(row),
            "-" if row.loss is None else f"{row.loss:.4g}", str(row.workers) if row.workers else "-",
        )  # fmt: skip
    outside.console().print(table)
    if len(jobs) > len(rows):
        print(
            f"{len(jobs) - len(rows)} older ones: `elasticdl jobs --all`; `elasticdl jobs rm` removes them."
        )
    return 0


def when(wall: float) -> str:
    """A date as people sort by."""
    return outside.moment(wall, "%Y-%m-%d %H:%M") if wall else "-"


def _progress(row: Row) -> str:
    if row.phase in (LOST, WAITING) or not (row.step or row.total_steps):
        return "-"
    return f"{row.counts} {row.step} of {row.total_steps or '?'}"


LOST = "Lost"
WAITING = "Pending"
"""No master is there yet, or not at the moment."""


def _row(job: KnownJob) -> Row:
    started = job.started
    try:
        status = current(job)
    except EdlError:
        return Row(job.name, LOST if job.over() else WAITING, where=job.where, started=started)
    ring = sum(worker.rank >= 0 for worker in status.workers)
    return Row(
        job.name, status.phase, status.step, status.total_steps, ring, status.generation, job.where,
        started, status.loss if status.loss == status.loss else None, status.counts,
    )  # fmt: skip
