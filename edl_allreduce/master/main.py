"""A master by hand: `python -m edl_allreduce.master.main --job_name=NAME …`.

Without --num_workers it starts no workers and serves those that people start, in any number and at any time.
With a number it starts them as `elasticdl train` does: as local processes or, with an image, as pods.
"""

from __future__ import annotations

import dataclasses
import sys

from edl_allreduce import outside
from edl_allreduce.cluster.choose import Where, where
from edl_allreduce.contract import JOB_TOKEN
from edl_allreduce.errors import EdlError
from edl_allreduce.master.local import run_local_job
from edl_allreduce.spec import Command, job_directory, parse_job


def main(argv: list[str] | None = None) -> int:
    try:
        parsed = parse_job("master", sys.argv[1:] if argv is None else argv)
        spec = parsed.spec
        if where(spec, Command.MASTER) is Where.KUBERNETES:
            from edl_allreduce.master.in_cluster import run_in_cluster  # a laptop needs no Kubernetes

            return run_in_cluster(spec, parsed.notices)
        for notice in parsed.notices:
            print(f"notice: {outside.story(notice)}", file=sys.stderr)
        if "num_workers" not in parsed.given:
            spec = dataclasses.replace(spec, num_workers=0)
        if where(spec, Command.MASTER) is Where.BY_HAND:
            print(
                f"Start workers, as many as you like and in the same directory:\n"
                f"  python -m edl_allreduce.worker.main --worker_id=0 --master_addr=localhost:{spec.port}\n"
                f"On other machines (--bind=0.0.0.0 here) they need {JOB_TOKEN}: the token is in "
                f"{job_directory(spec) / 'job.json'}",
                flush=True,
            )
        return run_local_job(spec)
    except EdlError as error:
        print(f"elasticdl master: {outside.story(error)}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
