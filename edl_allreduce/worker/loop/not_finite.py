"""A loss that is NaN or infinite: whose records gave it, and what becomes of it."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import msgspec

from edl_allreduce.core import protocol
from edl_allreduce.core.protocol import Plan
from edl_allreduce.spec import OnNan
from edl_allreduce.worker.loop.orders import Orders
from edl_allreduce.worker.loop.state import TrainingState
from edl_allreduce.worker.loop.steps import StepData
from edl_allreduce.worker.ring.base import Ring

log = logging.getLogger(__name__)

SHOWN_RECORDS = 20


@dataclass(frozen=True)
class NotFiniteLosses:
    """All ranks meet them in the same step."""

    state: TrainingState
    orders: Orders
    ring: Ring
    policy: OnNan

    def what_happened(self, plan: Plan, step: int, loss: Any, data: StepData) -> str:
        """In words. All ranks ask together, each with its own loss."""
        own = math.isfinite(float(loss))
        if not own:
            log.error("the loss of these records is %s: %s", float(loss), data.records[:SHOWN_RECORDS])
        told = zip(plan.members, self.ring.gather([own]), strict=True)
        ids = [str(seat.worker_id) for seat, (finite,) in told if not finite]
        where = f"from the records of worker {', '.join(ids)}" if ids else "as the sum over all workers"
        return (
            f"the loss of step {step + 1} is not finite (NaN or infinite), {where}. Is the learning rate too "
            "high, or is there a division by zero or a logarithm of it? The worker's log names the records"
        )

    def count(self, plan: Plan, loss: Any, data: StepData) -> None:
        """The user wants to go on; they are told at once, and how often at the end."""
        state = self.state
        first = not state.journal.not_finite  # on every rank or on none: the journal is the same everywhere
        what = self.what_happened(plan, state.step - 1, loss, data) if first else ""
        state.journal = msgspec.structs.replace(state.journal, not_finite=state.journal.not_finite + 1)
        if first and self.ring.rank == 0:
            goes_on = "such updates are left out" if self.policy is OnNan.SKIP else "training goes on"
            text = f"{what}; {goes_on} (--on_nan={self.policy})"
            self.orders.send(protocol.Note(protocol.NoteKind.NAN, text))
