"""`elasticdl drain`: let one worker go, and another one take its place."""

from __future__ import annotations

from edl_allreduce import outside
from edl_allreduce.cli.asking import ask, job_parser, resolve_job
from edl_allreduce.core.protocol import DrainWorker
from edl_allreduce.errors import UsageError

ABOUT = """\
Let one worker finish its step and leave, for example from a node that is slow or will be gone. The others
train on, and another worker takes its place; `elasticdl scale` changes how many there are.

  elasticdl drain --job_name=digits 3
"""


def main(argv: list[str]) -> int:
    parser = job_parser("drain", "WORKER", ABOUT)
    parser.add_argument("worker", nargs="?", default="", metavar="WORKER", help="its number")
    arguments = parser.read(argv)
    if not arguments.worker.isdecimal():
        raise UsageError(f"expected the number of a worker, got {outside.name(arguments.worker) or 'none'}.")
    job = resolve_job(arguments)
    ask(job, DrainWorker(int(arguments.worker)))
    print(f"{outside.name(job.name)}: worker {int(arguments.worker)} leaves after its step.")
    return 0
