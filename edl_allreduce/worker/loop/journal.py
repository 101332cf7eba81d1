"""What a job remembers besides its variables. The same on every rank, and part of every checkpoint."""

from __future__ import annotations

import math

import msgspec


class Journal(msgspec.Struct, frozen=True):
    """Small facts that newcomers must know to decide like the others."""

    evaluated: int = -1
    """The step of the last evaluation."""
    metrics: dict[str, float | None] = {}
    """What it found; None where a value is not finite."""
    callbacks: dict[str, dict[str, float]] = {}
    """The memory of callbacks that have one, by their place in the list."""
    halted: str = ""
    """Why training is over before its last epoch."""
    not_finite: int = 0
    """Steps whose loss was NaN or infinite."""
    epoch: int = 0
    epoch_loss: float | None = 0.0
    """Of the epoch that is being trained, weighted by records; None once it is not finite."""
    epoch_records: int = 0

    @property
    def mean_loss(self) -> float:
        """Over the steps of the epoch so far, as Keras counts it."""
        if self.epoch_loss is None or not self.epoch_records:
            return math.nan
        return self.epoch_loss / self.epoch_records

    def count(self, epoch: int, loss: float, records: int) -> Journal:
        """One more step."""
        before, counted = (self.epoch_loss, self.epoch_records) if epoch == self.epoch else (0.0, 0)
        total = before + loss * records if before is not None and math.isfinite(loss) else None
        return msgspec.structs.replace(self, epoch=epoch, epoch_loss=total, epoch_records=counted + records)


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Journal).decode
