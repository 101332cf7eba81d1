"""Many weights, little arithmetic: 20 million parameters, so that copying and writing them shows."""

from typing import Any

import keras

from benchmarks.zoo.mlp import feed, loss, optimizer

__all__ = ["custom_model", "feed", "loss", "optimizer"]


def custom_model() -> Any:
    return keras.Sequential(
        [
            keras.layers.Input((784,)),
            keras.layers.Dense(4096, activation="relu"),
            keras.layers.Dense(4096, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
