"""`elasticdl train`, `evaluate` and `predict`: read the flags, then hand the job to whoever runs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edl_allreduce.cli.main import load
from edl_allreduce.spec import Command, Strategy, parse_job, to_argv


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
        print(f"notice: {notice}", file=sys.stderr)
    spec = parsed.spec
    if spec.image_name:
        code = load("edl_allreduce.cluster.submit:submit")(spec)
        if code == 0 and spec.follow and not spec.yaml:
            return load("edl_allreduce.cli.following:follow")(spec)
        return code
    if spec.distribution_strategy is Strategy.LOCAL:
        return load("edl_allreduce.worker.single:run_single")(spec)
    load("edl_allreduce.worker.preflight:check_local_job")(spec)
    return load("edl_allreduce.master.local:run_local_job")(spec, to_argv(spec, command))
