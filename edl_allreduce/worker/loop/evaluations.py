"""Evaluation while training: when it is due, and how the ranks share it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from edl_allreduce import clock
from edl_allreduce.core.schedule import Span, share
from edl_allreduce.worker.loop.observers import ObservesSteps
from edl_allreduce.worker.loop.state import TrainingState
from edl_allreduce.worker.loop.steps import Evaluates
from edl_allreduce.worker.ring.base import Ring

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluations:
    """Over the whole validation data, after every `every` steps (0: none) and at the end."""

    evaluator: Evaluates | None
    every: int
    callbacks: ObservesSteps

    def due(self, state: TrainingState, *, finished: bool) -> bool:
        """Once after each step that wants one; a ring that broke meanwhile does it again."""
        if self.evaluator is None or state.step == 0 or state.journal.evaluated == state.step:
            return False
        return finished or (self.every > 0 and state.step % self.every == 0)

    def run(
        self, state: TrainingState, ring: Ring, between: Callable[[], None], reducing: Callable[[], None]
    ) -> dict[str, float]:
        """Measure this rank's share and add up. What is known then is in the journal; it may end the job."""
        assert self.evaluator is not None, "nothing is due without one"
        began = clock.now()
        mine = share(Span(0, 0, self.evaluator.chunks), ring.rank, ring.size)
        self.callbacks.before_evaluation()
        own = self.evaluator.measure(range(mine.start, mine.stop), between)
        reducing()
        rows = ring.gather(own.view(np.int64).tolist())  # doubles as they are, bit by bit
        sums = np.array(rows, np.int64).view(np.float64)
        metrics = self.evaluator.conclude(np.array([math.fsum(column) for column in sums.T]))
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        state.journal = self.callbacks.after_evaluation(
            msgspec.structs.replace(state.journal, evaluated=state.step, metrics=finite)
        )
        log.info("evaluation after %d steps: %s (%d records in %.1f s)",
                 state.step, _shown(finite), self.evaluator.records, clock.now() - began)  # fmt: skip
        return metrics


def _shown(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """Short enough to read in a log."""
    return {name: None if value is None else round(value, 6) for name, value in metrics.items()}
