"""How far one worker's training is."""

from __future__ import annotations

from dataclasses import dataclass, field

from edl_allreduce.worker.loop.journal import Journal
from edl_allreduce.worker.loop.orders import StartPoint


@dataclass
class TrainingState:
    """With the trainer's variables this is the whole state of the job. The training thread owns it."""

    step: int = 0
    position: int = 0
    """Records that were used, over all epochs."""
    journal: Journal = field(default_factory=Journal)
    run: int = 0
    """Counts how often the job began or came back from a checkpoint, for the audit."""
    is_agreed: bool = False
    """Whether a ring agreed on it. Until then it is this worker's own: the beginning, or a checkpoint."""

    @property
    def start_point(self) -> StartPoint:
        return self.step, self.position
