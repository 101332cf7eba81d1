"""A trainer and an evaluator in NumPy whose results are exact, so that two runs can be compared bit by bit.

An update mixes the sum of its records into a whole number, so the final state says which records were used in
which step; how often each was used is counted as well. Sums of whole numbers do not depend on who added them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from edl_allreduce.errors import NotFinite
from edl_allreduce.spec import OnNan
from edl_allreduce.worker.loop.steps import (
    Array,
    Contribution,
    InTwoParts,
    StepInput,
    StepResult,
    Vector,
    seconds_of,
    step_result,
)
from edl_allreduce.worker.ring.base import Ring

PRIME = 2**31 - 1
"""Numbers stay below it, so that their products fit into 64 bits."""


class NumpyTrainer(InTwoParts):
    """Records are their own indices: the features of a micro-batch are what is summed."""

    def __init__(
        self,
        ring: Ring,
        records: int,
        *,
        on_nan: OnNan = OnNan.STOP,
        nan_records: frozenset[int] = frozenset(),
        computing: Callable[[StepInput], None] = lambda step: None,
    ) -> None:
        self.chain = np.zeros(1, np.int64)
        """Says which records were used in which step."""
        self.used = np.zeros(records, np.int64)
        """How often each record was."""
        self._ring = ring
        self._on_nan = on_nan
        self._nan_records = nan_records
        self._computing = computing

    def compute(self, step: StepInput) -> Contribution:
        self._computing(step)
        indices = np.concatenate([np.zeros(0, np.int64), *(p.features[: p.records] for p in step.parts)])
        loss = float("nan") if self._nan_records & set(indices.tolist()) else float(indices.sum())
        mixed = np.array([np.sum((indices + 1) * (step.number + 1))], np.int64)
        used = np.bincount(indices, minlength=self.used.size)
        return Contribution([mixed, used], loss / step.batch, len(indices), step.batch)

    def commit(
        self, own: Contribution, *, switch: bool, stop: bool, drain: bool, seconds: float
    ) -> StepResult:
        table = seconds_of(self._ring.rank, self._ring.size, seconds)
        control = np.array([switch, stop, drain, own.records, own.loss * own.batch, *table], np.float64)
        mixed, used, total = self._ring.sum([*own.tensors, control])
        result = step_result(total)
        if not result.finite and self._on_nan is OnNan.STOP:
            raise NotFinite("the loss of this step is not finite")
        if result.finite or self._on_nan is OnNan.CONTINUE:
            self.chain = (self.chain * 31 + mixed) % PRIME
            self.used = self.used + used
        return result

    def state(self) -> list[Array]:
        return [self.chain, self.used]

    def names(self) -> tuple[list[str], list[str]]:
        return ["chain", "used"], []

    def restore(self, arrays: Sequence[Array]) -> None:
        self.chain, self.used = (np.array(array) for array in arrays)


class NumpyEvaluator:
    """The mean of the numbers of all records; one metric, `mean`."""

    def __init__(self, records: int, chunk: int) -> None:
        self.records = records
        self.measured: list[int] = []
        """Chunks that this rank worked on."""
        self._chunk = chunk

    @property
    def chunks(self) -> int:
        return -(-self.records // self._chunk)

    def measure(self, chunks: Iterable[int], between: Callable[[], None]) -> Vector:
        total: Any = np.zeros(2, np.float64)
        for number in chunks:
            self.measured.append(number)
            values = np.arange(number * self._chunk, min((number + 1) * self._chunk, self.records))
            total += [values.sum(), len(values)]
            between()
        return np.asarray(total, np.float64)

    def conclude(self, total: Vector) -> dict[str, float]:
        return {"mean": float(total[0] / total[1])}
