"""CIFAR-10 with a plain convolutional network."""

import keras
import tensorflow as tf


def custom_model():
    inputs = keras.Input((32, 32, 3), name="image")
    x = inputs
    for filters in (32, 64, 128):
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = keras.layers.BatchNormalization(momentum=0.9)(x)
        x = keras.layers.ReLU()(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dropout(0.2)(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer(lr=0.01):
    return keras.optimizers.SGD(lr, momentum=0.9)


def feed(dataset, mode, metadata):
    """Records are tf.train.Example with `image`, floats from 0 to 255, and `label`."""
    features = {"image": tf.io.FixedLenFeature([32, 32, 3], tf.float32)}
    if mode != "prediction":
        features["label"] = tf.io.FixedLenFeature([], tf.int64)

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        image = example["image"] / 127.5 - 1.0
        return image if mode == "prediction" else (image, example["label"])

    return dataset.map(parse)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
