"""A table of 200 thousand words of which a batch looks at some thousands; pixels serve as words."""

from typing import Any

import keras

from benchmarks.zoo.cnn import loss, optimizer

__all__ = ["custom_model", "feed", "loss", "optimizer"]

LENGTH = 50
VALUES = 256
PIXELS = 784


def custom_model() -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(VALUES * PIXELS, 32),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def feed(dataset: Any, mode: Any, metadata: Any) -> Any:
    import tensorflow as tf

    def words(record: Any) -> Any:
        return tf.cast(record["x"][:LENGTH], tf.int32) * PIXELS + tf.range(LENGTH), record["y"]

    return dataset.map(words)
