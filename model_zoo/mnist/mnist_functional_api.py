"""MNIST with a small convolutional network, written with the functional API."""

import keras
import tensorflow as tf


def custom_model():
    inputs = keras.Input((28, 28), name="image")
    x = keras.layers.Reshape((28, 28, 1))(inputs)
    x = keras.layers.Conv2D(32, 3, activation="relu")(x)
    x = keras.layers.Conv2D(64, 3, activation="relu")(x)
    x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.BatchNormalization(momentum=0.9)(x)
    x = keras.layers.Dropout(0.25)(x)
    x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer(lr=0.01):
    return keras.optimizers.SGD(lr, momentum=0.9)


def feed(dataset, mode, metadata):
    """Records are tf.train.Example with `image`, floats from 0 to 255, and `label`."""
    features = {"image": tf.io.FixedLenFeature([28, 28], tf.float32)}
    if mode != "prediction":
        features["label"] = tf.io.FixedLenFeature([], tf.int64)

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        image = example["image"] / 255.0
        return image if mode == "prediction" else (image, example["label"])

    return dataset.map(parse)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
