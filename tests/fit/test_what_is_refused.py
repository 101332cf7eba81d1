"""What cannot work in `elastic.fit` is refused by name, before anything is trained."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_allreduce import elastic
from edl_allreduce.errors import UsageError

pytestmark = pytest.mark.tensorflow

X, Y = np.zeros((8, 2), "float32"), np.zeros(8, "int64")


def compiled() -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_a_model_that_is_not_compiled():
    with pytest.raises(UsageError, match=r"model\.compile"):
        elastic.fit(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), X, Y)


@pytest.mark.parametrize(
    ("callback", "instead"),
    [
        (keras.callbacks.CSVLogger("x.csv"), "History"),
        (keras.callbacks.BackupAndRestore("x"), "--checkpoint_dir"),
        (keras.callbacks.SwapEMAWeights(), "use_ema"),
    ],
)
def test_callbacks_that_cannot_work(callback, instead):
    with pytest.raises(UsageError, match=f"{type(callback).__name__} cannot work.*{instead}"):
        elastic.fit(compiled(), X, Y, callbacks=[callback])


def test_a_stream():
    with pytest.raises(UsageError, match="a stream gives them once"):
        elastic.fit(compiled(), tf.data.Dataset.from_tensor_slices((X, Y)))


def test_a_dataset_that_shuffles_itself():
    class Shuffled(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, number):
            return X[:4], Y[:4]

        def on_epoch_end(self):
            """Another order."""

    with pytest.raises(UsageError, match=r"Shuffled\.on_epoch_end"):
        elastic.fit(compiled(), Shuffled())


def test_rows_that_do_not_match():
    with pytest.raises(UsageError, match="have 7, 8 rows"):
        elastic.fit(compiled(), X, Y[:7])
