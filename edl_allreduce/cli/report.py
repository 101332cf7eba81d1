"""`elasticdl report`: what came of a job, or what it came to so far, to keep and to show."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edl_allreduce import files, outside
from edl_allreduce.cli.asking import job_parser, resolve_job
from edl_allreduce.cli.dashboard import state_of
from edl_allreduce.cli.status import current
from edl_allreduce.cluster.known import KnownJob
from edl_allreduce.core import event_data, events
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.status import EventRecord, JobStatus
from edl_allreduce.errors import EdlError

ABOUT = """\
Write the report of a job that runs or is over: plots, pauses with their phases, where the time went, events,
the audit's verdict, flags and versions. One HTML file that needs nothing else; Markdown for a pull request;
JSON for a script.

  elasticdl report --job_name=digits
  elasticdl report --job_name=digits --file=digits.html
  elasticdl report --job_name=digits --format=md
  elasticdl report --job_name=digits --format=json | jq '.pauses[].seconds'
"""


def main(argv: list[str]) -> int:
    parser = job_parser("report", "[--format=html|md|json] [--file=FILE]", ABOUT)
    parser.add_argument("--format", choices=("html", "md", "json"), default="html", help="html, md or json")
    parser.add_argument(
        "--file", metavar="FILE", help="where to write it; -: print it. html: NAME-report.html, others: -"
    )
    arguments = parser.read(argv)
    job = resolve_job(arguments)
    text = _written(data_of(job), arguments.format)
    place = arguments.file or (f"{job.name}-report.html" if arguments.format == "html" else "-")
    if place == "-":
        sys.stdout.write(text)
        return 0
    files.write(Path(place), text.encode())
    print(f"The report of {outside.name(job.name)} is in {outside.line(place)}")
    return 0


def data_of(job: KnownJob) -> bytes:
    """What the page of the job shows, as JSON: from its master, as that left it, or from its history."""
    from edl_allreduce.master.web.feed import Feed, encode

    kept = state_of(job) or job.report()
    if kept:
        return kept
    history = job.history()
    try:
        status = current(job)
    except EdlError:
        if not job.over() or not history:
            raise
        status = left_behind(job, history)
    return encode(Feed(lambda: status, history=history, of_master=False).update())


def left_behind(job: KnownJob, history: Sequence[EventRecord]) -> JobStatus:
    """Of a job whose master was killed: what its history tells."""
    told = [event for record in history if (event := event_data.from_data(record.event)) is not None]
    plans = [event for event in told if isinstance(event, events.RingPlanned)]
    measured = [event for event in told if isinstance(event, events.ModelEvaluated)]
    steps = [
        event.step for event in told if isinstance(event, events.CheckpointWritten | events.ModelEvaluated)
    ]
    return JobStatus(
        job_name=job.name,
        phase=Phase.FAILED.value,
        wanted=len(plans[-1].workers) if plans else 0,
        minimum=0,
        generation=plans[-1].generation if plans else 0,
        step=max(steps, default=0),
        total_steps=0,
        loss=math.nan,
        records_per_second=0.0,
        steps_per_second=0.0,
        waiting_for="",
        elapsed=history[-1].wall - history[0].wall,
        workers=[],
        events=[],
        metrics=dict(measured[-1].metrics) if measured else {},
        metrics_step=measured[-1].step if measured else -1,
        reason=job.absence().partition("\n")[0],
    )


def _written(data: bytes, form: str) -> str:
    if form == "json":
        return data.decode() + "\n"
    if form == "md":
        from edl_allreduce.master.web.report_text import markdown

        return markdown(msgspec.json.decode(data))
    from edl_allreduce.master.web.bundle import report_page

    return report_page(data)
