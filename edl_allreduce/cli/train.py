"""`elasticdl train`, `evaluate` and `predict`: read the flags, then hand the job to whoever runs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edl_allreduce import outside
from edl_allreduce.cli.main import load
from edl_allreduce.cluster.choose import Where, where
from edl_allreduce.cluster.registry import GLANCE_SECONDS
from edl_allreduce.errors import EdlError, StorageError, UsageError
from edl_allreduce.spec import Command, JobSpec, parse_job
from edl_allreduce.storage.remote import store
from edl_allreduce.storage.url import Url, place

AUDITED_BYTES = 256 * 1024 * 1024
"""Larger diaries take a while to read: whoever waits for the end of a job is not made to wait for that."""


def train(argv: Sequence[str]) -> int:
    """Train a model."""
    return _run(Command.TRAIN, argv)


def evaluate(argv: Sequence[str]) -> int:
    """Evaluate a trained model."""
    return _run(Command.EVALUATE, argv)


def predict(argv: Sequence[str]) -> int:
    """Predict with a trained model."""
    return _run(Command.PREDICT, argv)


def _run(command: Command, argv: Sequence[str]) -> int:
    parsed = parse_job(command, argv)
    for notice in parsed.notices:
        print(f"notice: {outside.story(notice)}", file=sys.stderr)
    spec = parsed.spec
    place = where(spec, command)
    if place is Where.KUBERNETES:
        code = load("edl_allreduce.cluster.kubernetes.submit:submit")(spec)
        if code == 0 and spec.follow and not spec.yaml:
            return load("edl_allreduce.cli.following:follow")(spec)
        return code
    if place is Where.THIS_PROCESS:
        if spec.detach:
            raise UsageError("--detach needs a master; leave --distribution_strategy=Local out.")
        return load("edl_allreduce.worker.start.local:run_single")(spec)
    load("edl_allreduce.worker.start.preflight:check_local_job")(spec)
    if spec.detach:
        return _detach(spec, command)
    return load("edl_allreduce.master.local:run_local_job")(spec, _judge)


def _detach(spec: JobSpec, command: Command) -> int:
    from edl_allreduce.cluster.detached import start

    job, process = start(spec, command)
    print(f"{outside.name(job.name)} runs in the background (pid {process.pid}).")
    for name, about in {
        "attach": "the live table; Ctrl-C there leaves the job running",
        "dashboard": "the job's page, in the browser",
        "events --follow": "what happens, line by line",
        "stop": "stop it at a step boundary",
    }.items():
        words, _, flag = name.partition(" ")
        print(f"  {' '.join(filter(None, ('elasticdl', words, job.named, flag))):<50} {about}")
    return 0


def _judge(directory: str) -> str:
    """The audit in one line, for the summary of a job that is over."""
    from edl_allreduce.worker.loop.diary import audit

    there = place(directory)
    try:
        if isinstance(there, Url):
            sizes = [found.size for found in store(GLANCE_SECONDS).below(there)]
        else:
            sizes = [path.stat().st_size for path in there.glob("worker-*.jsonl")]
    except StorageError as error:
        return f"not judged: {error}"
    size = sum(sizes)
    if size > AUDITED_BYTES:
        return f"not judged here, since {size >> 20} MiB were written down; `elasticdl audit` does it"
    try:
        return str(audit(directory))
    except (EdlError, OSError) as error:
        return f"not judged: {error}"
