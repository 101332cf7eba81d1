"""The reasons of a plan in words for people, with the figures they rest on."""

from __future__ import annotations

from collections.abc import Sequence

from edl_allreduce.core.autoscale.cluster import Template
from edl_allreduce.core.autoscale.jobs import Job

MINUS = "\N{MINUS SIGN}"
MINUTE, HOUR, DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """'40 s', '9 min', '2.5 h', '3 d'."""
    if seconds < 2 * MINUTE:
        return f"{max(seconds, 0):.0f} s"
    if seconds < 2 * HOUR:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        return f"{seconds / HOUR:.1f} h"
    return f"{seconds / DAY:.0f} d"


def asked(template: Template) -> str:
    """What a pod asks for: '8 CPUs, 2 nvidia.com/gpu'."""
    amounts = [_amount(name, amount) for name, amount in template.requests.items() if amount]
    return ", ".join(amounts) or "a node that it may use"


def _amount(name: str, amount: int) -> str:
    if name == "cpu":
        return f"{amount / 1000:g} CPU{'' if amount == 1000 else 's'}"
    if name == "memory":
        return f"{amount / 2**30:.3g} GiB of memory"
    return f"{amount} {name}"


def reason(job: Job, target: int, notes: Sequence[str], idle: str) -> str:
    """'4→6: +31 % speed, saves 9 min'."""
    if target == 0 and job.workers == 0:
        also = f"; {', '.join(notes)}" if notes else ""
        return f"waits: {_minimum(job)} do not fit beside the minimums of others{also}"
    if target == job.workers:
        return f"stays at {target}: {', '.join([idle, *notes])}"
    said = [*_figures(job, target), *notes]
    return f"{job.workers}→{target}: {', '.join(said)}"


def _minimum(job: Job) -> str:
    each = f" with {asked(job.worker)} each" if job.minimum > 1 else f" with {asked(job.worker)}"
    return f"{job.minimum} worker{'s' if job.minimum > 1 else ''}{each}"


def _figures(job: Job, target: int) -> list[str]:
    if target == 0:
        return ["suspended until its minimum fits again"]
    if job.workers == 0:
        return ["begins" if target > job.minimum else "begins with its minimum"]
    ratio = job.speed.step(job.workers) / job.speed.step(target) - 1
    said = [f"{ratio:+.0%} speed".replace("%", " %").replace("-", MINUS)]
    if job.known:
        saved = job.trained_for(job.workers) - job.time_left(target)
        said.append(f"saves {duration(saved)}" if saved >= 0 else f"costs {duration(-saved)}")
    elif not job.measured:
        said.append("not measured yet, taken as linear")
    return said
