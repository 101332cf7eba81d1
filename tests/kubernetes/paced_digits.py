"""The digits model of the zoo, at the pace that a test needs: slow while the file /data/slow exists."""

import time
from pathlib import Path

import keras

SLOW = Path("/data/slow")
SLOW_STEP_SECONDS = 0.25


def custom_model():
    layers = [keras.layers.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
    return keras.Sequential(layers)


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def feed(dataset, mode, metadata):
    if mode == "prediction":
        return dataset.map(lambda record: record["x"] / 16.0)
    return dataset.map(lambda record: (record["x"] / 16.0, record["y"]))


def eval_metrics_fn():
    return {"accuracy": keras.metrics.sparse_categorical_accuracy}


class Pace(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if SLOW.exists():
            time.sleep(SLOW_STEP_SECONDS)


def callbacks():
    return [Pace()]
