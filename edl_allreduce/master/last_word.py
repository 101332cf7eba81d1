"""What Kubernetes keeps of a master that is over: a status that fits into its termination message."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec

from edl_allreduce.core import goodput
from edl_allreduce.core.status import JobStatus

TERMINATION_BYTES = 4096
"""What Kubernetes keeps of it."""
LAST_PAUSES = 20


def last_word(status: JobStatus) -> bytes:
    """As JSON that Kubernetes keeps whole: what matters least is left out until there is room."""
    short = dataclasses.replace(
        status,
        events=[],
        workers=[],
        flags=[],
        # JSON knows neither NaN nor infinity.
        loss=status.loss if math.isfinite(status.loss) else 0.0,
        metrics={name: value for name, value in status.metrics.items() if math.isfinite(value)},
        reason=status.reason[: TERMINATION_BYTES // 2],
        tally=dataclasses.replace(status.tally, pauses=status.tally.pauses[-LAST_PAUSES:]),
        goodput=goodput.short(status.goodput),
        losses=[],
    )
    shorter: tuple[dict[str, Any], ...] = (
        {"reason": short.reason[: TERMINATION_BYTES // 4]},
        {"reason": short.reason[: TERMINATION_BYTES // 16]},
        {"tally": dataclasses.replace(short.tally, pauses=[])},
        {"goodput": dataclasses.replace(short.goodput, reforms={})},
        {"metrics": {}, "waiting_for": "", "short": ""},
        {"goodput": goodput.GoodputReport(), "path": "", "audit": "", "checkpoint": None, "job_dir": ""},
    )
    for left_out in shorter:
        if len(msgspec.json.encode(short)) <= TERMINATION_BYTES:
            break
        short = dataclasses.replace(short, **left_out)
    return msgspec.json.encode(short)
