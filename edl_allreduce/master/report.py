"""How far a job is, and what came of it, in words. Pure: a status in, text out; time is an argument."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from edl_allreduce import outside
from edl_allreduce.core import goodput
from edl_allreduce.core.job.lifecycle import FINAL, Phase
from edl_allreduce.core.progress import duration
from edl_allreduce.core.status import JobStatus

EVERY_SECONDS = 10.0
"""Between two lines of progress in a log."""
EPOCH_SECONDS = 5.0
"""A new epoch is worth a line, but short epochs must not flood a log."""
STILL_SECONDS = 60.0
"""A job that stands still says so now and then."""

LIVE = frozenset({Phase.TRAINING.value, Phase.WORKING.value, Phase.WAITING.value})
OVER = frozenset(phase.value for phase in FINAL)


@dataclass(frozen=True)
class Told:
    """What the last line of progress said, and when."""

    at: float = -math.inf
    step: int = -1
    epoch: int = 0


def next_line(told: Told, status: JobStatus, now: float) -> tuple[Told, str]:
    """The line of progress that is due now; an empty one when none is."""
    epoch = status.length.epoch(status.position) if status.length is not None else 0
    since = now - told.at
    moved = status.step != told.step
    due = status.step > 0 and (
        (moved and since >= EVERY_SECONDS)
        or (moved and epoch != told.epoch and since >= EPOCH_SECONDS)
        or since >= STILL_SECONDS
    )
    if status.phase not in LIVE or not due:
        return told, ""
    return Told(now, status.step, epoch), progress_line(status)


def progress_line(status: JobStatus) -> str:
    """Everything that somebody who reads a log wants to know of one moment."""
    ring = sum(worker.rank >= 0 for worker in status.workers)
    parts = [
        *place(status),
        f"loss {number(status.loss)}" if status.loss == status.loss else "",
        f"{status.records_per_second:,.0f} records/s" if status.records_per_second else "",
        f"ring {ring} of {status.wanted or 'any'}" if status.generation else "",
        f"waiting: {outside.line(status.waiting_for)}" if status.waiting_for else "",
        time_left(status),
    ]
    return ", ".join(part for part in parts if part)


def place(status: JobStatus) -> list[str]:
    """How far: step of how many, per cent, epoch."""
    total = status.total_steps
    share = f" ({100 * min(status.step, total) // total} %)" if total else ""
    words = [f"{status.counts} {status.step} of {total or '?'}{share}"]
    if status.length is not None:
        words.append(f"epoch {status.length.epoch(status.position)} of {status.length.epochs}")
    return words


def time_left(status: JobStatus) -> str:
    left = status.total_steps - status.step
    if left <= 0 or not status.steps_per_second or status.phase in OVER:
        return ""
    return f"{duration(left / status.steps_per_second)} left"


def number(value: float) -> str:
    """Short, and never a row of zeros."""
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 100_000 else f"{value:.3g}"


def summary(status: JobStatus, places: Mapping[str, str]) -> list[str]:
    """What came of a job that is over. `places`: what was written, and where."""
    rows = _trained(status) if status.length is not None else _pulled(status)
    if status.metrics:
        shown = ", ".join(f"{outside.name(name)} {value:.6g}" for name, value in status.metrics.items())
        rows["Metrics"] = f"{outside.line(shown)} (model of step {status.metrics_step})"
    rows |= _disturbances(status)
    if status.fingerprint:
        rows["Fingerprint"] = f"{status.fingerprint} (SHA-256 of the weights)"
    if status.audit:
        rows["Audit"] = outside.line(status.audit)
    rows |= {what: outside.line(where) for what, where in places.items() if where}
    width = max(map(len, rows))
    return [f"  {what:<{width}}  {text}" for what, text in rows.items()]


def _trained(status: JobStatus) -> dict[str, str]:
    tally, length = status.tally, status.length
    assert length is not None
    earlier = f", {tally.steps} of them in this run" if tally.steps != status.step else ""
    rows = {
        "Steps": f"{status.step} of {status.total_steps}{earlier}",
        "Epochs": f"{status.position / length.records:.4g} of {length.epochs}",
        "Time": f"{duration(status.elapsed)}, {duration(tally.trained)} of it with a ring",
    }
    if status.goodput.wall > 0:
        rows["Goodput"] = goodput.words(status.goodput)
    if tally.trained and tally.steps:
        steps, records = tally.steps / tally.trained, tally.records / tally.trained
        rows["Throughput"] = f"{steps:,.1f} steps/s, {records:,.0f} records/s on average"
    if status.loss == status.loss:
        rows["Loss"] = f"{number(status.loss)} in the last step"
    return rows


def _pulled(status: JobStatus) -> dict[str, str]:
    return {
        f"{status.counts.capitalize()}s": f"{status.step} of {status.total_steps or '?'}",
        "Time": duration(status.elapsed),
    }


def _disturbances(status: JobStatus) -> dict[str, str]:
    pauses, losses, set_back = status.tally.pauses, status.tally.losses, status.tally.set_back
    if not pauses and not losses and not set_back:
        return {}
    words = [f"{losses} worker{'' if losses == 1 else 's'} lost"] if losses else []
    if pauses:
        many = f"{len(pauses)} pause{'' if len(pauses) == 1 else 's'}"
        words.append(f"{many}, longest {duration_ms(max(pauses))}, together {duration_ms(sum(pauses))}")
    if set_back:
        words.append(f"the model was lost: {set_back} steps were made again")
    return {"Disturbed": "; ".join(words)}


def duration_ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else duration(seconds)
