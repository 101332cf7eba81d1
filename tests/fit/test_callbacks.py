"""Callbacks of `elastic.fit` on several workers: files are whole, and all decide alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from edl_allreduce.worker.fit.callbacks import _Saving

pytestmark = pytest.mark.tensorflow


def small() -> Any:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


class DiesWhileItWrites:
    """Has written half of a file."""

    def save_weights(self, filepath: Any, **more: Any) -> None:
        Path(filepath).write_bytes(b"half")
        raise KeyboardInterrupt


def test_the_best_weights_so_far_survive_a_kill_while_better_ones_are_written(tmp_path):
    path, model = tmp_path / "best.weights.h5", small()
    checkpoint = keras.callbacks.ModelCheckpoint(path, monitor="loss", mode="min", save_weights_only=True)
    checkpoint.set_model(_Saving(model, lambda: True))
    checkpoint.on_epoch_end(0, {"loss": 1.0})
    whole = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        _Saving(DiesWhileItWrites(), lambda: True).save_weights(str(path), overwrite=True)
    assert path.read_bytes() == whole
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    other = small()
    other.load_weights(path)
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_one_worker_writes_weights(tmp_path):
    _Saving(small(), lambda: False).save_weights(str(tmp_path / "best.weights.h5"), overwrite=True)
    assert not list(tmp_path.iterdir())
