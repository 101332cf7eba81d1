"""Large steps: a convolutional network, 422 thousand parameters, most of the time in the arithmetic."""

from typing import Any

import keras


def custom_model() -> Any:
    return with_dense(250)


def with_dense(*widths: int) -> Any:
    """The same convolutions with other dense layers behind them."""
    return keras.Sequential(
        [
            keras.layers.Input((784,)),
            keras.layers.Reshape((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            *(keras.layers.Dense(width, activation="relu") for width in widths),
            keras.layers.Dense(10),
        ]
    )


def loss(labels: Any, predictions: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer(lr: float = 0.01) -> Any:
    return keras.optimizers.SGD(lr, momentum=0.9)


def feed(dataset: Any, mode: Any, metadata: Any) -> Any:
    import tensorflow as tf

    return dataset.map(lambda record: (tf.cast(record["x"], tf.float32) / 255.0, record["y"]))
