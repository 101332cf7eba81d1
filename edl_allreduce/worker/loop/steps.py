"""One step, as it passes through the loop: data, input, contribution, result; and who takes part in it.

Tensors are of whatever framework the trainer uses; the loop hands them on and looks at none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from edl_allreduce.core.protocol import Plan
from edl_allreduce.core.schedule import Span, share
from edl_allreduce.errors import BadRecord

Array = np.ndarray[Any, Any]
Vector = npt.NDArray[np.float64]

SWITCH, STOP, DRAIN, WEIGHT, LOSS = range(5)
"""Slots of the control vector that rides with the gradients. WEIGHT counts records, and the loss is weighted
by them. What follows belongs to the ranks, one slot each: see `seconds_of`."""


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass gets."""

    features: Any
    labels: Any
    records: int
    virtual_rank: int = 0
    """Whose part of a step it is, where a step is cut into the same parts for any number of workers."""


@dataclass(frozen=True)
class StepData:
    """This rank's part of one global batch."""

    span: Span
    """The whole global batch."""
    parts: list[MicroBatch]
    records: list[int]
    """Indices that were read and fed."""
    bad: list[int]
    problems: tuple[BadRecord, ...] = ()
    """What is wrong with those."""


@dataclass(frozen=True)
class StepInput:
    """All that a trainer needs to know about the step that it computes."""

    number: int
    """Steps that were made before."""
    parts: Sequence[MicroBatch]
    offset: int
    """Where the records of this rank begin in the batch of all ranks."""
    batch: int
    """Records of the whole step, over all ranks."""
    generation: int = 0
    """Of the ring, which is another one when the same step comes again."""
    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, number: int, plan: Plan, rank: int, data: StepData) -> Self:
        """This rank's part of a step of the ring of `plan`."""
        offset = share(data.span, rank, plan.size).start - data.span.start
        return cls(number, data.parts, offset, len(data.span), plan.generation, rank, plan.size)


@dataclass(frozen=True)
class Contribution:
    """What one rank brings to a step."""

    tensors: Sequence[Any]
    loss: Any
    records: int
    """Of this rank; bad ones were left out."""
    batch: int
    """Records of the whole step, over all ranks."""


@dataclass(frozen=True)
class Votes:
    """What a rank says to the others when it meets them."""

    switch: bool = False
    stop: bool = False
    drain: bool = False
    seconds: float = 0.0
    """Of this rank's own part, before it met the others."""


Meet = Callable[[Any], Votes]
"""Called with this rank's loss when its own part of a step is computed, before what it waits for."""


@dataclass(frozen=True)
class StepResult:
    """What every rank knows after a step: the same on all."""

    loss: float
    """NaN also when there was no record that could be read."""
    switch: bool
    stop: bool
    draining: int
    """How many ranks were asked to leave."""
    finite: bool = True
    """False when the loss was not, or when the update was left out because it was not."""
    computed: tuple[float, ...] = ()
    """By rank: seconds of its own part, before it met the others. Empty where that is not told."""


def seconds_of(rank: int, size: int, seconds: float) -> list[float]:
    """The slots of the ranks, as one of them fills them: a sum makes a table of it."""
    slots = [0.0] * size
    slots[rank] = seconds
    return slots


def step_result(total: Array, *, finite: bool = True, ranks: int = LOSS + 1) -> StepResult:
    """What the summed control vector says; the slots of the ranks begin at `ranks`."""
    return StepResult(
        loss=float(total[LOSS] / total[WEIGHT]) if total[WEIGHT] else float("nan"),
        switch=total[SWITCH] > 0,
        stop=total[STOP] > 0,
        draining=round(float(total[DRAIN])),
        finite=finite and bool(np.isfinite(total[LOSS])),
        computed=tuple(total[ranks:].tolist()),
    )


@dataclass(frozen=True)
class Written:
    """Where the trained model is, and what is not as it was asked for."""

    path: str
    """Empty where there is none."""
    trouble: str = ""


class Trains(Protocol):
    """One update after the other. A model file, or a user's loop."""

    def update(self, step: StepInput, meet: Meet) -> StepResult:
        """Compute this rank's sums, where user code runs; ask for its votes; sum over the ring and apply. A
        step is applied as a whole or not at all. Raises RingBroken when the sum did not come about, and
        NotFinite, on all ranks and with nothing applied, when the job is to stop then."""

    def state(self) -> list[Array]:
        """Everything that makes the next step and the result what they are, as arrays to be read."""

    def restore(self, arrays: Sequence[Array]) -> None: ...

    def names(self) -> tuple[list[str], list[str]]:
        """Of the model's and of the optimizer's variables, in the order of `state`."""


class InTwoParts(Protocol):
    """A trainer that computes all of its part before it meets the others."""

    def compute(self, step: StepInput) -> Contribution:
        """This rank's sums. User code runs here, and nothing of the state changes."""

    def commit(
        self, own: Contribution, *, switch: bool, stop: bool, drain: bool, seconds: float
    ) -> StepResult:
        """Sum over the ring and apply, with these votes; raises as `Trains.update` does."""

    def update(self, step: StepInput, meet: Meet) -> StepResult:
        own = self.compute(step)
        votes = meet(own.loss)
        return self.commit(
            own, switch=votes.switch, stop=votes.stop, drain=votes.drain, seconds=votes.seconds
        )


class Feeds(Protocol):
    """This rank's part of one step after the other."""

    def take(self) -> StepData:
        """The next step's data; raises what reading or parsing met."""

    def close(self) -> None:
        """Read no more; nobody waits for it."""


class OpensFeed(Protocol):
    """Begins to read for one rank of one ring."""

    def __call__(self, *, rank: int, size: int, step: int, position: int, global_batch: int) -> Feeds: ...


class Evaluates(Protocol):
    """Metrics over the whole validation data, in chunks whose sums are added up over the ranks."""

    @property
    def chunks(self) -> int: ...

    @property
    def records(self) -> int: ...

    def measure(self, chunks: Iterable[int], between: Callable[[], None]) -> Vector:
        """The sums of these chunks; `between` is called after each."""

    def conclude(self, total: Vector) -> dict[str, float]:
        """The metrics from the sum of all vectors."""
