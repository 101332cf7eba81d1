"""Iris flowers from a CSV file: four lengths, three kinds."""

import keras
import tensorflow as tf


def custom_model():
    return keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(3),
        ]
    )


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer(lr=0.05):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """Records are lines: four numbers, then the label (which may be absent for prediction)."""
    numbers = [n for n in metadata.column_names if n != "label"]
    defaults = [tf.constant([], tf.float32) for _ in metadata.column_names]

    def parse(line):
        columns = dict(zip(metadata.column_names, tf.io.decode_csv(line, defaults), strict=True))
        features = tf.stack([columns[name] for name in numbers])
        return features if mode == "prediction" else (features, tf.cast(columns["label"], tf.int32))

    return dataset.map(parse)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
