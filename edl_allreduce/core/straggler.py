"""Workers that are slow: two scores for each, and who was slow for so long that people should know.

In a ring all steps take equally long, so what counts is each worker's own part of a step, before it meets the
others. A worker is judged by the median of the others, never by the best alone: one that is very quick does
not make stragglers of all the rest.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

SLOW_FACTOR = 1.5
"""Times the median of the others: slower is slow."""
SLOW_SECONDS = 30.0
"""So long it must be slow before it is named or replaced."""
QUICK_FACTOR = 1.2
"""A worker that was named is forgiven below this, so that nobody is named again and again."""
NOTICEABLE_SECONDS = 0.005
"""Differences below this cost nobody anything, whatever their factor."""
REST_SECONDS = 120.0
"""After one was replaced; each time twice as long, since a slow node may bring forth one after the other."""
REST_DOUBLINGS = 6
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Times:
    """Of one worker of the ring: the median of its recent steps, and the lowest median that it had."""

    seconds: float
    best: float = 0.0


@dataclass(frozen=True)
class Scores:
    """1 is as quick as can be, 0.5 takes twice as long."""

    best_rank: float = 1.0
    """Beside the quickest member of its ring."""
    own_best: float = 1.0
    """Beside its own best time in this ring."""


@dataclass(frozen=True)
class Slow:
    """A worker that was slow for long."""

    worker_id: int
    seconds: float
    usual: float
    """Of the others."""
    replaces: bool = False

    @property
    def factor(self) -> float:
        return self.seconds / self.usual


@dataclass(frozen=True)
class Watch:
    """What is known of slow workers."""

    since: Mapping[int, float] = field(default_factory=dict)
    """By worker: since when it is slow without a break."""
    named: frozenset[int] = frozenset()
    looked: float = 0.0
    replaced: int = 0
    rest_until: float = 0.0


def scores(times: Mapping[int, Times]) -> dict[int, Scores]:
    """By worker; what is not known counts as quick."""
    known = [t.seconds for t in times.values() if t.seconds > 0]
    best = min(known, default=0.0)
    return {
        worker_id: Scores(
            best_rank=best / t.seconds if t.seconds > 0 else 1.0,
            own_best=min(1.0, t.best / t.seconds) if t.seconds > 0 and t.best > 0 else 1.0,
        )
        for worker_id, t in times.items()
    }


def look(
    watch: Watch, times: Mapping[int, Times], now: float, *, replace_factor: float = 0.0, spare: bool = True
) -> tuple[Watch, tuple[Slow, ...], tuple[int, ...]]:
    """Who is slow for long, told once, and who is quick again. `times`: of the members of the ring.

    `replace_factor`: whoever takes so many times as long as the others is to be replaced; 0 for nobody. One
    at a time, and only where the ring can do without (`spare`).
    """
    if now - watch.looked < LOOK_SECONDS:
        return watch, (), ()
    limits = {worker_id: _usual(times, worker_id) for worker_id in times}
    since = {
        worker_id: watch.since.get(worker_id, now)
        for worker_id, t in times.items()
        if _is_slow(t.seconds, limits[worker_id], SLOW_FACTOR)
    }
    ripe = [worker_id for worker_id, begun in since.items() if now - begun >= SLOW_SECONDS]
    to_replace = _to_replace(watch, times, limits, ripe, replace_factor, now) if spare else None
    found = tuple(
        Slow(worker_id, times[worker_id].seconds, limits[worker_id], worker_id == to_replace)
        for worker_id in ripe
        if worker_id not in watch.named or worker_id == to_replace
    )
    quick = tuple(
        worker_id
        for worker_id in sorted(watch.named & times.keys())
        if times[worker_id].seconds > 0
        and not _is_slow(times[worker_id].seconds, limits[worker_id], QUICK_FACTOR)
    )
    named = (watch.named & times.keys() | {slow.worker_id for slow in found}) - set(quick)
    watch = replace(watch, since=since, named=frozenset(named), looked=now)
    if to_replace is not None:
        rest = REST_SECONDS * 2 ** min(watch.replaced, REST_DOUBLINGS)
        watch = replace(watch, replaced=watch.replaced + 1, rest_until=now + rest)
    return watch, found, quick


def _usual(times: Mapping[int, Times], worker_id: int) -> float:
    """The median of the others; 0 where there are none."""
    others = [t.seconds for other, t in times.items() if other != worker_id and t.seconds > 0]
    return statistics.median(others) if others else 0.0


def _is_slow(seconds: float, usual: float, factor: float) -> bool:
    return usual > 0 and seconds > factor * usual and seconds - usual > NOTICEABLE_SECONDS


def _to_replace(
    watch: Watch,
    times: Mapping[int, Times],
    limits: Mapping[int, float],
    ripe: list[int],
    factor: float,
    now: float,
) -> int | None:
    """The slowest of those who are slow for long and by so much."""
    if factor <= 0 or now < watch.rest_until:
        return None
    slow = [i for i in ripe if _is_slow(times[i].seconds, limits[i], max(factor, SLOW_FACTOR))]
    return max(slow, key=lambda i: times[i].seconds, default=None)
