"""When the state is kept."""

from __future__ import annotations

from dataclasses import dataclass

from edl_allreduce.core.goodput import Bucket
from edl_allreduce.worker.checkpoint.writer import Checkpoints
from edl_allreduce.worker.loop.ledger import Ledger
from edl_allreduce.worker.loop.state import TrainingState


@dataclass(frozen=True)
class Checkpointing:
    """Without a directory nothing is kept."""

    checkpoints: Checkpoints | None
    ledger: Ledger

    def after_step(self, state: TrainingState, *, everybody_begins_to_leave: bool) -> None:
        """Copy the state if it is due; it is written while training goes on."""
        if self.checkpoints is not None and (self.checkpoints.due(state.step) or everybody_begins_to_leave):
            self.ledger.close(Bucket.STEP)
            self.checkpoints.save(state.step, state.position, state.journal)
            self.ledger.close(Bucket.CHECKPOINT)

    def keep_now(self, state: TrainingState) -> None:
        """Write a checkpoint and wait until it is on disk."""
        if self.checkpoints is not None:
            self.checkpoints.save(state.step, state.position, state.journal)
            self.checkpoints.flush()

    def withdraw(self, state: TrainingState) -> None:
        """What was kept of this step is not worth it."""
        if self.checkpoints is not None:
            self.checkpoints.withdraw(state.step)

    def flush(self) -> None:
        """Wait until nothing is half-written."""
        if self.checkpoints is not None:
            self.checkpoints.flush()
