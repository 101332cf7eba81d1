"""`elasticdl hosts`: the ring's members as horovodrun wants them."""

from __future__ import annotations

from collections import Counter

from edl_allreduce import outside
from edl_allreduce.cli.asking import ask, job_parser, resolve_job

ABOUT = """\
Print where the ring's members are, one line `host:slots` per machine: what a host discovery script of
Horovod Elastic prints. Use it to run your own Horovod Elastic script on the machines of a job:

  printf '#!/bin/sh\\nexec elasticdl hosts --job_name=digits\\n' > discover.sh && chmod +x discover.sh
  horovodrun -np 1 --min-np 1 --max-np 4 --network-interfaces lo \\
      --host-discovery-script ./discover.sh python my_script.py
"""


def main(argv: list[str]) -> int:
    job = resolve_job(job_parser("hosts", "", ABOUT).read(argv))
    slots = Counter(worker.host for worker in ask(job).workers if worker.rank >= 0)
    for host, count in slots.items():
        # Horovod starts processes over ssh on every host that it does not know as this one.
        print(f"{'localhost' if host == '127.0.0.1' else outside.name(host)}:{count}")
    return 0
