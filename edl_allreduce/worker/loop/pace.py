"""How long steps take, and where the time of each goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from edl_allreduce import clock
from edl_allreduce.core.goodput import Bucket
from edl_allreduce.worker.loop.orders import Progress

RECENT_STEPS = 21
"""Whose median is the time of a step."""


class Pace:
    """Told by the training thread at the corners of a step; heartbeats tell the results."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._steps: deque[float] = deque(maxlen=RECENT_STEPS)
        self._computing: deque[float] = deque(maxlen=RECENT_STEPS)
        self._began = self._taking = self._met = 0.0
        self._input = 0.0
        self._is_first = False
        self._evened = 1.0

    def ring_begins(self, evened: float = 1.0) -> None:
        """Shares of records are others now, so what was quick before says nothing. `evened`: what makes the
        time of this rank's share that of an even one; 0 where it has none.

        The last known time of a step is told until there are new ones: it is the best guess of how long
        others may wait for a worker. It is not that of the first step, which may trace everything anew.
        """
        self._evened = evened
        self._steps.clear()
        self._computing.clear()
        self._progress.best_compute_seconds = 0.0

    def begins(self) -> None:
        """A step begins."""
        self._began = clock.now()

    def takes(self) -> None:
        """It asks for its records."""
        self._taking = clock.now()

    def has_taken(self) -> None:
        self._input = clock.now() - self._taking

    def meets(self) -> float:
        """This worker's part is computed; for how long the others may have waited for it."""
        self._met = clock.now()
        return self._met - self._began

    def applied(self, computed: Sequence[float], way_in: Bucket | None) -> None:
        """The sum came about. `computed`: for how long each rank was on the way to it, where that is known;
        `way_in`: the bucket of what the first step of a ring takes longer than others."""
        now, own = clock.now(), self._met - self._began
        waited = min(max(computed, default=own) - own, now - self._met)
        parts = {Bucket.INPUT: self._input, Bucket.STRAGGLER: waited}
        if way_in is not None:
            parts[way_in] = now - self._began - self._input - max(0.0, waited) - self._progress.step_seconds
        self._progress.ledger.split(parts, Bucket.STEP)
        self._computing.append(own)
        self._is_first = way_in is not None

    def over(self) -> None:
        """Everything of the step is done."""
        progress = self._progress
        if not self._is_first:
            self._steps.append(clock.now() - self._began)
            progress.step_seconds = _median(self._steps)
        progress.compute_seconds = _median(self._computing) * self._evened
        if len(self._computing) == RECENT_STEPS:
            best = progress.best_compute_seconds or progress.compute_seconds
            progress.best_compute_seconds = min(best, progress.compute_seconds)


def _median(values: deque[float]) -> float:
    """Of so few, twice in each step: a sort is quickest."""
    return sorted(values)[len(values) // 2]
