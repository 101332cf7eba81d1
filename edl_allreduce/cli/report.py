"""`elasticdl report`: what came of a job, or what it came to so far, to keep and to show."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from edl_allreduce import files, outside
from edl_allreduce.cli.asking import job_parser, resolve_job
from edl_allreduce.cli.dashboard import state_of
from edl_allreduce.cli.status import current
from edl_allreduce.cluster.known import KnownJob

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
    feed = Feed(lambda: current(job), history=job.history())
    return encode(feed.update())


def _written(data: bytes, form: str) -> str:
    if form == "json":
        return data.decode() + "\n"
    if form == "md":
        from edl_allreduce.master.web.report_text import markdown

        return markdown(msgspec.json.decode(data))
    from edl_allreduce.master.web.bundle import report_page

    return report_page(data)
