"""`elasticdl scale`: another number of workers, while the job trains."""

from __future__ import annotations

from edl_allreduce.cli.asking import ask, job_parser, resolve_job
from edl_allreduce.core.protocol import Scale
from edl_allreduce.errors import UsageError

ABOUT = """\
Change the number of workers of a running job. New workers prepare beside the others and join in one
re-form of the ring; surplus ones finish their step and leave. The global batch stays what it was.

  elasticdl scale --job_name=digits --num_workers=4
"""


def main(argv: list[str]) -> int:
    parser = job_parser("scale", "--num_workers=N", ABOUT)
    parser.add_argument("--num_workers", metavar="N", help="how many workers the job should have")
    arguments = parser.read(argv)
    if arguments.num_workers is None:
        raise UsageError("--num_workers is missing: how many workers should the job have?")
    try:
        count = int(arguments.num_workers)
    except ValueError:
        raise UsageError(f"--num_workers={arguments.num_workers}: must be a whole number.") from None
    job = resolve_job(arguments)
    before = ask(job).wanted
    ask(job, Scale(count))
    where = f" --namespace={arguments.namespace}" if arguments.namespace else ""
    watch = f"elasticdl top --job_name={job.name}{where}"
    print(f"{job.name}: from {before} to {count} workers; `{watch}` shows how.")
    return 0
