"""What callbacks remember. It travels with the state, so that whoever comes later decides like the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from edl_allreduce.errors import ModelError

MEMORY_BYTES = 64 * 1024
"""Room for it: it travels in one array of a size that all workers know beforehand."""
LONGEST_TEXT = 1000

Array = np.ndarray[Any, Any]


class Memory:
    """Numbers, words and truth values that callbacks hold as attributes, and the weights that an
    EarlyStopping wants back."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = callbacks
        self._keeper: Any = None
        self._empty: list[Array] = []
        self.kept_paths: list[str] = []
        """Of the variables whose best values are kept."""
        self.epoch_begun = -1
        self.step_begun = -1
        """The last ones whose beginning callbacks know of: a step that comes again does not begin again."""
        self.epoch_ended = -1
        """The last one whose end callbacks know of: a ring may break before all agreed on what they want."""
        self.halts = False
        """They want no epoch after it."""
        self.told: dict[str, float] = {}
        """What they added to its metrics."""
        keepers = [
            c for c in callbacks if isinstance(c, keras.callbacks.EarlyStopping) and c.restore_best_weights
        ]
        if len(keepers) > 1:
            raise ModelError("elastic.fit: only one EarlyStopping can have restore_best_weights=True")
        self._wanted = keepers[0] if keepers else None

    def model_is_built(self, model: Any) -> None:
        """Now it is known how much there is to keep."""
        if self._wanted is not None:
            self._keeper = self._wanted
            self._empty = [np.zeros_like(a) for a in model.get_weights()]
            self.kept_paths = [v.path for v in model.weights]

    def arrays(self) -> list[Array]:
        """As arrays whose sizes never change."""
        best = self._keeper.best_weights if self._keeper is not None else None
        words = {
            "epoch": self.epoch_begun,
            "step": self.step_begun,
            "ended": self.epoch_ended,
            "halts": self.halts,
            "told": self.told,
            "best": best is not None,
            "callbacks": [_remembered(callback) for callback in self._callbacks],
        }
        text = json.dumps(words).encode()
        if len(text) > MEMORY_BYTES:
            names = ", ".join(type(callback).__name__ for callback in self._callbacks)
            raise ModelError(f"callbacks ({names}) remember {len(text)} bytes, {MEMORY_BYTES} are allowed")
        packed = np.frombuffer(text.ljust(MEMORY_BYTES), np.uint8)
        return [packed, *(self._empty if best is None else map(np.asarray, best))]

    def restore(self, arrays: Sequence[Array]) -> None:
        words = json.loads(arrays[0].tobytes())
        self.epoch_begun, self.step_begun = words["epoch"], words["step"]
        self.epoch_ended, self.halts, self.told = words["ended"], words["halts"], words["told"]
        for callback, values in zip(self._callbacks, words["callbacks"], strict=True):
            for name, value in values.items():
                setattr(callback, name, value)
        if self._keeper is not None:
            self._keeper.best_weights = [np.array(a) for a in arrays[1:]] if words["best"] else None


def _remembered(callback: Any) -> dict[str, bool | int | float | str | None]:
    found: dict[str, bool | int | float | str | None] = {}
    for name, value in vars(callback).items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            continue
        if name != "best_weights" and (value is None or isinstance(value, bool | int | float | str)):
            found[name] = value
    return found
