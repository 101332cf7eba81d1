"""The user's loop as the engine sees it: a trainer that computes and commits."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from edl_allreduce.core.health import Activity
from edl_allreduce.errors import RingBroken
from edl_allreduce.worker.loop.orders import Progress
from edl_allreduce.worker.loop.steps import (
    LOSS,
    WEIGHT,
    Contribution,
    InTwoParts,
    StepInput,
    StepResult,
    Written,
    step_result,
)
from edl_allreduce.worker.ring.base import Ring
from edl_allreduce.worker.ring.errors import BROKEN, broken
from edl_allreduce.worker.script.state import SharedState
from edl_allreduce.worker.script.turns import Again, Brought, Handover, Mean, Offer, Save, Saved, StepApplied

GIVEN = LOSS + 1
"""One slot more in the control vector: records whose loss is known."""


class Loop(InTwoParts):
    """The user's loop as the engine's trainer."""

    def __init__(self, state: SharedState, handover: Handover, reducer: Reducer, progress: Progress) -> None:
        self._kept = state
        self._handover = handover
        self._reducer = reducer
        self._progress = progress
        self.stop_wanted = False
        self._generation = 0
        """Of the step at hand."""
        self._compared = 0
        """The generation whose ranks are known to bring the same shapes."""

    def compute(self, step: StepInput) -> Contribution:
        self._generation = step.generation
        self._handover.to_loop.put(Offer(step))
        brought = self._handover.hear()
        assert isinstance(brought, Brought)
        return Contribution(brought.tensors, brought.loss, step.parts[0].records, step.batch)

    def commit(
        self, own: Contribution, *, switch: bool, stop: bool, drain: bool, seconds: float
    ) -> StepResult:
        """The slots of the ranks are left out: a loop may bring any shapes, and each size of a ring would be
        traced again."""
        stop = stop or self.stop_wanted
        try:
            if self._compared != self._generation:
                self._reducer.compare(own.tensors)
                self._compared = self._generation
            mean, result = self._reducer(own, switch=switch, stop=stop, drain=drain)
        except BROKEN as error:
            self._handover.to_loop.put(Again())
            raise broken(error) from error
        except RingBroken:
            self._handover.to_loop.put(Again())
            raise
        self._progress.activity = Activity.COMPUTING  # applying is user code again
        self._handover.to_loop.put(Mean(mean, result.loss))
        applied = self._handover.hear()
        assert isinstance(applied, StepApplied)
        return result

    def names(self) -> tuple[list[str], list[str]]:
        return self._kept.names()

    def state(self) -> list[np.ndarray[Any, Any]]:
        return self._kept.state()

    def restore(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        self._kept.restore(arrays)

    def export(self) -> Written:
        self._handover.to_loop.put(Save())
        saved = self._handover.hear()
        assert isinstance(saved, Saved)
        return Written(saved.path)


class Reducer:
    """The weighted mean over the ring, in one operation with the votes. Traced once per list of shapes."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._sum = tf.function(self._graph, autograph=False)

    def compare(self, tensors: Sequence[Any]) -> None:
        """The first sum of a ring would take tensors that do not fit, and make garbage of them."""
        shapes = "; ".join(f"{tuple(t.shape)} {t.dtype.name}" for t in tensors)
        digests = {row[0] for row in self._ring.gather([zlib.crc32(shapes.encode())])}
        if len(digests) > 1:
            raise RingBroken(f"ranks bring gradients of different shapes; this one brings {shapes}"[:300])

    def __call__(
        self, own: Contribution, *, switch: bool, stop: bool, drain: bool
    ) -> tuple[list[Any], StepResult]:
        records = float(own.records)
        given = records if own.loss is not None else 0.0
        loss = tf.cast(tf.convert_to_tensor(own.loss), tf.float32) * given if given else 0.0
        control = tf.stack([float(switch), float(stop), float(drain), records, loss, given])
        mean, total = self._sum(own.tensors, tf.constant(records), control)
        total = total.numpy()
        # Not every rank need have a loss to tell; what all of them know is the sum.
        known = float(total[LOSS] / total[GIVEN]) if total[GIVEN] else float("nan")
        return list(mean), replace(step_result(total, ranks=GIVEN + 1), loss=known)

    def _graph(self, tensors: list[Any], records: Any, control: Any) -> tuple[list[Any], Any]:
        # Without a record of its own a worker may bring NaN; it must not count at all.
        parts = [tf.where(records > 0, t * tf.cast(records, t.dtype), tf.zeros_like(t)) for t in tensors]
        *summed, total = self._ring.sum([*parts, control])
        return [s / tf.cast(total[WEIGHT], s.dtype) for s in summed], total
