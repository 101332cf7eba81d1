"""All ranks of a reproducible job hold the same weights: what happens when one does not."""

from __future__ import annotations

import logging
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
        values = [value for (value,) in self.ring.gather([int(self.fingerprint[:COMPARED_DIGITS], 16)])]
        if len(set(values)) > 1:
            return self.differ(plan, values)
        log.info("the fingerprint of the weights is %s", self.fingerprint)
        return ""

    def differ(self, plan: Plan, values: list[int]) -> str:
        """Raises RingBroken when a majority shows who is wrong: the master is told, and the others go on
        without it. Otherwise: why the job cannot go on."""
        step, odd = self.state.step, differing.odd_ranks(values)
        self.spoiled = not odd or self.ring.rank in odd
        if self.spoiled:
            self.keeping.withdraw(self.state)
        if not odd:
            return differing.nobody_knows([seat.worker_id for seat in plan.members], step)
        workers = tuple(plan.members[rank].worker_id for rank in odd)
        self.orders.send(protocol.Differs(plan.generation, step, workers))
        raise RingBroken(f"worker {', '.join(map(str, workers))} {differing.words(step)}")
