"""What a master leaves to the next master of its job, so that sums go on where they were. Pure.

Times are those of the clock of the master that left it, which nobody else can read; `wall` and `now` are the
same moment on the calendar's clock and on its own, so that the next one can translate them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from edl_allreduce.core import goodput
from edl_allreduce.core.digest import Curve
from edl_allreduce.core.job.lifecycle import FINAL
from edl_allreduce.core.job.state import Checkpoint, JobState, Ring
from edl_allreduce.core.membership.machine import RESTART_GAP
from edl_allreduce.core.progress import Place, Stopwatch

MOST_PAUSES = 1000
"""The last ones are left; a job that re-forms for months does not keep each of them."""


@dataclass(frozen=True)
class Inheritance:
    """Of a job whose master is lost, or was ended in order."""

    wall: float
    now: float
    began: float
    over: bool
    """The master ended the job in order: the time until somebody takes it up again is not the job's."""
    account: goodput.Account
    wanted: int = 0
    generation: int = 0
    first: tuple[int, int] | None = None
    """Step and position where the run began."""
    place: tuple[int, int, int] = (0, 0, 0)
    """Generation, step and position that the last heartbeats told."""
    reached: int = 0
    redo_until: int = 0
    losses: int = 0
    set_back: int = 0
    failures: int = 0
    trained: Stopwatch = field(default_factory=Stopwatch)
    pauses: tuple[float, ...] = ()
    loss_curve: Curve = field(default_factory=Curve)
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Of the last evaluation, by its step."""
    checkpoint: Checkpoint | None = None


def leave(state: JobState, now: float, wall: float) -> Inheritance:
    """What is worth to be known, as it is now."""
    seen, place = state.progress, state.progress.place
    last = max(seen.metrics, default=-1)
    finite = {name: value for name, value in seen.metrics.get(last, {}).items() if math.isfinite(value)}
    return Inheritance(
        wall=wall,
        now=now,
        began=state.began,
        over=state.phase in FINAL,
        account=state.goodput,
        wanted=state.wanted,
        generation=state.work.members.generation if isinstance(state.work, Ring) else 0,
        first=(seen.first.step, seen.first.position) if seen.first is not None else None,
        place=(place.generation, place.step, place.position),
        reached=seen.reached,
        redo_until=seen.redo_until,
        losses=seen.losses,
        set_back=seen.set_back,
        failures=state.keeping.failures,
        trained=seen.trained,
        pauses=(*seen.earlier_pauses, *(reform.pause for reform in seen.reforms.values()))[-MOST_PAUSES:],
        loss_curve=seen.loss_curve,
        metrics={last: finite} if last >= 0 else {},
        checkpoint=state.checkpoint,
    )


def inherit(state: JobState, left: Inheritance, living: Collection[int], now: float, wall: float) -> JobState:
    """The first thing that a master does. `living`: workers that the last one started and that are there;
    they trained meanwhile, and their ledgers will tell what they did."""
    gap = 0.0 if left.over else max(0.0, wall - left.wall)
    shift = now - gap - left.now
    trained = replace(left.trained, since=_moved(left.trained.since, shift))
    if not living:
        trained = Stopwatch(left.trained.read(left.now))
    progress = replace(
        state.progress,
        first=Place(0, *left.first) if left.first is not None else None,
        place=Place(0, *left.place[1:]),
        reached=left.reached,
        redo_until=left.redo_until,
        losses=left.losses,
        set_back=left.set_back,
        trained=trained,
        earlier_pauses=left.pauses,
        loss_curve=left.loss_curve,
        metrics=left.metrics,
    )
    last = left.checkpoint
    return replace(
        _with_generation(state, left.generation),
        began=left.began + shift,
        goodput=goodput.tick(goodput.inherited(left.account, shift, living), left.wanted, len(living), now),
        progress=progress,
        keeping=replace(state.keeping, failures=0 if left.over else left.failures),
        checkpoint=replace(last, at=last.at + shift) if last is not None else None,
    )


def _moved(moment: float | None, shift: float) -> float | None:
    return moment + shift if moment is not None else None


def _with_generation(state: JobState, generation: int) -> JobState:
    """No generation may mean two rings, and the last plans may be newer than what was left."""
    if not isinstance(state.work, Ring) or not generation:
        return state
    gap = 0 if state.options.recover_until > 0 else RESTART_GAP - 1  # else the machine leaves it itself
    members = replace(state.work.members, generation=generation + gap)
    return replace(state, work=replace(state.work, members=members))
