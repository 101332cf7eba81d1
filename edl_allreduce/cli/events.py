"""`elasticdl events`: what happened to a job, with reasons."""

from __future__ import annotations

import msgspec

from edl_allreduce import outside
from edl_allreduce.cli.asking import job_parser, resolve_job, while_running
from edl_allreduce.cluster.known import KnownJob
from edl_allreduce.core.status import EventRecord

INDENT = 26

ABOUT = """\
Show what happened to a job and why: workers that came and went, the rings they formed, pauses.

  elasticdl events --job_name=digits
  elasticdl events --job_name=digits --follow
  elasticdl events --job_name=digits --output=json | jq 'select(.kind == "re-form")'
"""


def main(argv: list[str]) -> int:
    parser = job_parser("events", "[--follow] [--output=text|json]", ABOUT)
    parser.add_argument("--follow", action="store_true", help="stay until the job ends")
    parser.add_argument(
        "--output", choices=("text", "json"), default="text", help="text, or one JSON per line"
    )
    arguments = parser.read(argv)
    job = resolve_job(arguments)
    seen = 0
    for _ in while_running(job) if arguments.follow else [None]:
        seen = print_new(job, seen, as_json=arguments.output == "json")
    return 0


def print_new(job: KnownJob, seen: int, *, as_json: bool = False) -> int:
    """Print the events after the one with the number `seen`; returns the last number."""
    events = job.events()
    if events and events[-1].serial < seen:
        seen = 0  # a new master counts from the beginning
    for event in events:
        if event.serial > seen:
            seen = event.serial
            print(msgspec.json.encode(event).decode() if as_json else line(event), flush=True)
    return seen


def line(event: EventRecord) -> str:
    when = outside.moment(event.wall, "%H:%M:%S.%f")[:12]
    # Further lines are indented, so that none of them looks like an event of its own.
    text = outside.story(event.text).replace("\n", f"\n{'':<{INDENT}}")
    return f"{when}  {outside.name(event.kind):<10}  {text}"
