"""Handwritten digits, 8 x 8 pixels: a small network that trains in seconds."""

import keras


def custom_model():
    return keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer(lr=0.1):
    return keras.optimizers.SGD(lr, momentum=0.9)


def feed(dataset, mode, metadata):
    if mode == "prediction":
        return dataset.map(lambda record: record["x"] / 16.0)
    return dataset.map(lambda record: (record["x"] / 16.0, record["y"]))


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
