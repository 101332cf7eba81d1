"""The data of every job of a campaign, and the model's numbers that the replay and the model file share.

Small, without chance, in float64: what comes of it can be computed again to the last few bits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

RECORDS = 480
FEATURES = 6
HIDDEN = 5
GLOBAL_BATCH = 24
"""Divides by 1, 2, 3 and 4 workers."""
STEPS_PER_EPOCH = RECORDS // GLOBAL_BATCH
# Binary fractions: Keras takes some of them for float32 on the way.
RATE = 0.0625
DECAY = 1 / 512
MOMENTUM = 0.875


def columns() -> tuple[Array, Array]:
    """Features and labels of all records."""
    index = np.arange(RECORDS * FEATURES, dtype=np.float64).reshape(RECORDS, FEATURES)
    x = np.sin(index * 0.7 + np.cos(index * 0.013))
    y = np.tanh(x @ np.linspace(-1.0, 1.0, FEATURES)) + 0.3 * np.cos(x[:, 0] * 5)
    return x, y.reshape(RECORDS, 1)


def first_weights() -> list[Array]:
    """Of the hidden layer, then of the last one: kernel and bias each."""
    kernel = np.sin(np.arange(FEATURES * HIDDEN, dtype=np.float64) + 1).reshape(FEATURES, HIDDEN) / 2
    last = np.cos(np.arange(HIDDEN, dtype=np.float64) * 2 + 1).reshape(HIDDEN, 1)
    return [kernel, np.zeros(HIDDEN), last, np.zeros(1)]


def write(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    x, y = columns()
    np.save(directory / "x.npy", x)
    np.save(directory / "y.npy", y)
