"""What a master tells the controller of its job, from the status that it shows everybody. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from edl_allreduce.core.controller.mail import Progress, measured
from edl_allreduce.core.job.lifecycle import Phase
from edl_allreduce.core.status import JobStatus

PULLS: Final = ("working", "waiting")
LAST: Final = 9
"""Pauses and start-ups of which the median counts."""
SAMPLE_SECONDS: Final = 10.0
"""How often the step time of a ring is taken."""
LEAST_STEPS: Final = 3
"""That were made in it: the first one is no measure, and until the second is over everywhere heartbeats
tell the step time of the ring before."""
SETTLED_SECONDS: Final = 3.0
SETTLED_STEPS: Final = 5
"""A ring of a size that was never run is believed after so long and so many steps: growth waits for it, and
a wrong first value would stay, because the job leaves a size that looks slow."""


@dataclass(frozen=True)
class Account:
    """What must be remembered between two reports."""

    first: int = 0
    """The first worker that this master starts itself: how long those before it took it did not see."""
    step_seconds: Mapping[int, float] = field(default_factory=dict)
    starting: Mapping[int, float] = field(default_factory=dict)
    """Since when workers start, by number; those that wait for room do not start yet."""
    start_ups: tuple[float, ...] = ()
    ring: tuple[int, int] = (0, 0)
    """Generation and size of the ring that was last seen ..."""
    seen: tuple[float, int] = (0.0, 0)
    """... when it was first seen, and at which step."""
    sampled: float = 0.0
    """When its step time was last taken, or when it was first seen."""


def begin(carried: Progress | None, first: int = 0) -> Account:
    """`carried`: what an earlier master of this job told last; `first`: the number of the next worker."""
    if carried is None:
        return Account(first)
    return Account(first, carried.step_seconds, start_ups=(carried.start_up,) if carried.start_up else ())


def watch(account: Account, status: JobStatus, now: float) -> Account:
    """A look at the workers: how long do they take from their start to the ring?"""
    here = {worker.worker_id: worker for worker in status.workers if worker.worker_id >= account.first}
    starting = {i: since for i, since in account.starting.items() if i in here}
    done: list[float] = []
    for i, worker in here.items():
        if worker.rank >= 0:
            if i in starting:
                done.append(now - starting.pop(i))
        elif worker.standing == "starting" and worker.activity:
            starting.pop(i, None)  # its condition: it waits for room or an image
        else:
            starting.setdefault(i, now)
    return replace(account, starting=starting, start_ups=(*account.start_ups, *done)[-LAST:])


def sample(account: Account, status: JobStatus, now: float) -> Account:
    """Seconds per step at this size, if the ring has been the same for a while: so it has settled.

    After a plan the ring before it trains on for a while, and what it does says nothing of the new size.
    After a set-back steps are counted from where it begins again.
    """
    size = _ring(status)
    ring = (status.generation, size)
    since, first = account.seen
    trains = status.phase == Phase.TRAINING and not status.changing
    if ring != account.ring or status.step < first or not trains:
        return replace(account, ring=ring, seen=(now, status.step), sampled=now)
    made = status.step - first
    if size in account.step_seconds:
        due = now - account.sampled >= SAMPLE_SECONDS and made >= LEAST_STEPS
    else:
        due = now - since >= SETTLED_SECONDS and made >= SETTLED_STEPS
    if not due or status.steps_per_second <= 0:
        return account
    times = measured(account.step_seconds, size, 1 / status.steps_per_second)
    return replace(account, step_seconds=times, sampled=now)


def progress(account: Account, status: JobStatus, wall: float, next_id: int) -> Progress:
    """The whole report."""
    steps, left = status.steps_per_second, max(0, status.total_steps - status.step)
    length, tally = status.length, status.tally
    return Progress(
        phase=status.phase,
        reason=status.reason or status.waiting_for or status.short,
        wall=wall,
        wanted=status.wanted,
        ring=_ring(status),
        step=status.step,
        total_steps=status.total_steps,
        epoch=length.epoch(status.position) if length is not None else 0,
        epochs=length.epochs if length is not None else 0,
        records_per_second=status.records_per_second,
        seconds_left=left / steps if steps else 0.0,
        loss=status.loss,
        metrics=status.metrics,
        next_id=next_id,
        step_seconds=account.step_seconds,
        pause=statistics.median(tally.pauses[-LAST:]) if tally.pauses else 0.0,
        start_up=statistics.median(account.start_ups) if account.start_ups else 0.0,
        goodput=status.goodput.share,
        checkpoint=status.checkpoint.step if status.checkpoint is not None else 0,
        path=status.path,
    )


def _ring(status: JobStatus) -> int:
    """Workers that take part; where work is pulled there is no ring, and all that are ready do."""
    pulled = status.counts == "task"
    return sum(worker.rank >= 0 or (pulled and worker.standing in PULLS) for worker in status.workers)
