"""`elasticdl scale`: another number of workers, while the job trains."""

from __future__ import annotations

from edl_allreduce.cli.asking import ask, job_parser, resolve_job
from edl_allreduce.core.protocol import Scale
from edl_allreduce.errors import UsageError

ABOUT = """\
Change the number of workers of a running job. New workers prepare beside the others and join in one
re-form of the ring; surplus ones finish their step and leave. The global batch stays what it was.

  elasticdl scale --job_name=digits --num_workers=4

Of a TrainingJob the cluster's controller keeps the size (as with `kubectl scale`), until its autoscaler may
decide again:

  elasticdl scale --job_name=digits --namespace=default --num_workers=auto
"""

AUTO = "auto"


def main(argv: list[str]) -> int:
    parser = job_parser("scale", "--num_workers=N", ABOUT)
    parser.add_argument(
        "--num_workers", metavar="N", help="how many workers the job should have; of a TrainingJob also auto"
    )
    arguments = parser.read(argv)
    if arguments.num_workers is None:
        raise UsageError("--num_workers is missing: how many workers should the job have?")
    count = None if arguments.num_workers == AUTO else _number(arguments.num_workers)
    job = resolve_job(arguments)
    if job.resize(count):
        size = (
            f"{count} workers, and the autoscaler leaves it alone" if count else "as the autoscaler decides"
        )
        print(f"{job.name}: {size}; `elasticdl jobs --namespace={arguments.namespace}` shows the plan.")
        return 0
    if count is None:
        raise UsageError(f"--num_workers={AUTO}: only a TrainingJob has an autoscaler; give a number.")
    before = ask(job).wanted
    ask(job, Scale(count))
    where = f" --namespace={arguments.namespace}" if arguments.namespace else ""
    watch = f"elasticdl top --job_name={job.name}{where}"
    print(f"{job.name}: from {before} to {count} workers; `{watch}` shows how.")
    return 0


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--num_workers={text}: must be a whole number.") from None
