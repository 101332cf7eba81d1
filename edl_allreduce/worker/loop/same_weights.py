"""All ranks of a reproducible job hold the same weights: what happens when one does not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from edl_allreduce.core import differing, protocol
from edl_allreduce.core.protocol import Plan
from edl_allreduce.errors import RingBroken
from edl_allreduce.worker.checkpoint.format import fingerprint_of
from edl_allreduce.worker.loop.checkpointing import Checkpointing
from edl_allreduce.worker.loop.orders import Orders
from edl_allreduce.worker.loop.state import TrainingState
from edl_allreduce.worker.loop.steps import Trains
from edl_allreduce.worker.ring.base import Ring

log = logging.getLogger(__name__)

COMPARED_DIGITS = 15
"""Of a fingerprint: so many fit into a whole number that ranks exchange."""


@dataclass
class SameWeights:
    """One worker's part in it."""

    state: TrainingState
    orders: Orders
    ring: Ring
    trainer: Trains
    keeping: Checkpointing
    fingerprint: str = ""
    """Of the weights, once the last step was made."""
    spoiled: bool = False
    """Others hold other weights, and this worker may be the one that is wrong: nothing of it is kept."""

    def compare(self, plan: Plan) -> str:
        """After the last step; empty when all is well. Otherwise as `differ`."""
        self.fingerprint = fingerprint_of(self.trainer.state())
        values = self._gathered(self.fingerprint)
        if len(set(values)) > 1:
            return self.differ(plan, values)
        log.info("the fingerprint of the weights is %s", self.fingerprint)
        return ""

    def compare_owners(self, plan: Plan, owners: Sequence[int], step: int) -> str:
        """Before others take the state of one of these ranks, who all made the same `step` steps. As
        `compare`, on all ranks of the ring."""
        if len(owners) < 2:
            return ""
        own = fingerprint_of(self.trainer.state()) if self.ring.rank in owners else "0"
        everybody = self._gathered(own)
        values = [everybody[rank] for rank in owners]
        return self.differ(plan, values, owners, step) if len(set(values)) > 1 else ""

    def _gathered(self, fingerprint: str) -> list[int]:
        return [value for (value,) in self.ring.gather([int(fingerprint[:COMPARED_DIGITS], 16)])]

    def differ(
        self, plan: Plan, values: Sequence[int], ranks: Sequence[int] = (), step: int | None = None
    ) -> str:
        """Raises RingBroken when a majority shows who is wrong: the master is told, and the others go on
        without it. Otherwise: why the job cannot go on. `ranks`: whose values these are, unless all; `step`:
        after how many they were, unless that of this worker."""
        ranks, step = ranks or range(plan.size), self.state.step if step is None else step
        odd = [ranks[place] for place in differing.odd_ranks(values)]
        self.spoiled = self.ring.rank in (odd or ranks)
        if self.spoiled:
            self.keeping.withdraw(self.state)
        if not odd:
            return differing.nobody_knows([plan.members[rank].worker_id for rank in ranks], step)
        seats = [plan.members[rank] for rank in odd]
        self.orders.send(protocol.Differs(plan.generation, step, tuple(seat.uid for seat in seats)))
        workers = ", ".join(str(seat.worker_id) for seat in seats)
        raise RingBroken(f"worker {workers} {differing.words(step)}")
