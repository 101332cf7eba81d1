"""What a job remembers besides its variables. The same on every rank, and part of every checkpoint."""

from __future__ import annotations

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


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Journal).decode
