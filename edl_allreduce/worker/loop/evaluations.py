"""Evaluation while training: when it is due, and how the ranks share it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from edl_allreduce import clock
from edl_allreduce.core.health import Activity
from edl_allreduce.core.schedule import Span, share, virtual_ranks
from edl_allreduce.worker.loop.observers import ObservesSteps
from edl_allreduce.worker.loop.orders import Progress
from edl_allreduce.worker.loop.state import TrainingState
from edl_allreduce.worker.loop.steps import Evaluates
from edl_allreduce.worker.ring.base import Ring

log = logging.getLogger(__name__)

Table = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Evaluations:
    """Over the whole validation data, after every `every` steps (0: none) and at the end."""

    evaluator: Evaluates | None
    every: int
    callbacks: ObservesSteps
    virtual_ranks: int = 0

    def due(self, state: TrainingState, *, finished: bool) -> bool:
        """Once after each step that wants one; a ring that broke meanwhile does it again."""
        if self.evaluator is None or state.step == 0 or state.journal.evaluated == state.step:
            return False
        return finished or (self.every > 0 and state.step % self.every == 0)

    def run(
        self, state: TrainingState, ring: Ring, between: Callable[[], None], progress: Progress
    ) -> dict[str, float]:
        """Measure this rank's share and add up. What is known then is in the journal; it may end the job."""
        assert self.evaluator is not None, "nothing is due without one"
        began = clock.now()
        self.callbacks.before_evaluation()
        own = self._measure(self.evaluator, ring, between)
        progress.activity = Activity.REDUCING
        rows = ring.gather(own.view(np.int64).ravel().tolist())  # doubles as they are, bit by bit
        sums = np.array(rows, np.int64).view(np.float64).reshape(-1, own.shape[1])
        with progress.user_code():
            metrics = self.evaluator.conclude(np.array([math.fsum(column) for column in sums.T]))
            finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
            state.journal = self.callbacks.after_evaluation(
                msgspec.structs.replace(state.journal, evaluated=state.step, metrics=finite)
            )
        log.info("evaluation after %d steps: %s (%d records in %.1f s)",
                 state.step, _shown(finite), self.evaluator.records, clock.now() - began)  # fmt: skip
        return metrics

    def _measure(self, evaluator: Evaluates, ring: Ring, between: Callable[[], None]) -> Table:
        """The sums of this rank's share: one row, or one for each virtual rank, the others' being zero."""
        if not self.virtual_ranks:
            return evaluator.measure(_chunks(evaluator, ring.rank, ring.size), between).reshape(1, -1)
        count, own = self.virtual_ranks, virtual_ranks(ring.rank, ring.size, self.virtual_ranks)
        rows = {v: evaluator.measure(_chunks(evaluator, v, count), between) for v in own}
        nothing = evaluator.measure((), between)
        return np.array([rows.get(v, nothing) for v in range(count)])


def _chunks(evaluator: Evaluates, rank: int, size: int) -> range:
    mine = share(Span(0, 0, evaluator.chunks), rank, size)
    return range(mine.start, mine.stop)


def _shown(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """Short enough to read in a log."""
    return {name: None if value is None else round(value, 6) for name, value in metrics.items()}
