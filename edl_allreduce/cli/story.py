"""`elasticdl story`: the life of one worker, or all of them in a line each."""

from __future__ import annotations

import msgspec

from edl_allreduce import outside
from edl_allreduce.cli.asking import job_parser, resolve_job
from edl_allreduce.cli.events import line
from edl_allreduce.core.progress import duration
from edl_allreduce.core.status import EventRecord
from edl_allreduce.core.story import Life, lives, story
from edl_allreduce.errors import UsageError

ABOUT = """\
Tell the life of one worker: when it started, joined, paused and ended, and why. Without a number: all workers
of the job, a line each.

  elasticdl story --job_name=digits
  elasticdl story --job_name=digits 3
  elasticdl story --job_name=digits 3 --output=json
"""


def main(argv: list[str]) -> int:
    parser = job_parser("story", "[WORKER] [--output=text|json]", ABOUT)
    parser.add_argument("worker", nargs="?", default="", metavar="WORKER", help="its number")
    parser.add_argument(
        "--output", choices=("text", "json"), default="text", help="text, or one JSON per line"
    )
    arguments = parser.read(argv)
    job = resolve_job(arguments)
    history = job.history()
    as_json = arguments.output == "json"
    if arguments.worker:
        found: list[EventRecord] | list[Life] = _about(job.name, history, arguments.worker)
    else:
        found = lives(history)
    for part in found:
        print(msgspec.json.encode(part).decode() if as_json else _shown(part))
    return 0


def _about(name: str, history: list[EventRecord], worker: str) -> list[EventRecord]:
    found = story(history, int(worker)) if worker.isdecimal() else []
    if not found:
        known = ", ".join(str(life.worker_id) for life in lives(history)) or "none so far"
        raise UsageError(f"job {name} knows nothing of a worker {outside.name(worker)}. Workers: {known}.")
    return found


def _shown(part: EventRecord | Life) -> str:
    if isinstance(part, EventRecord):
        return line(part)
    ready = f"ready after {duration(part.ready - part.began)}" if part.ready is not None else "never ready"
    words = [ready, f"in {part.rings} ring{'' if part.rings == 1 else 's'}"]
    if part.pauses:
        words.append(f"{len(part.pauses)} pauses, longest {max(part.pauses):.3f} s")
    if part.ended is not None:
        words.append(f"ended after {duration(part.ended - part.began)}: {outside.line(part.end)}")
    elif part.end:
        words.append(outside.line(part.end))
    return f"worker {part.worker_id}: {', '.join(words)}"
