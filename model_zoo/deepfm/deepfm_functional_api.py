"""DeepFM (Guo et al., 2017) for click prediction, on records as those of Frappe: ten feature numbers each.

Linear weights, a factorisation machine over pairs of features, and a network share one embedding.
"""

import keras
import tensorflow as tf

FIELDS = 10
FEATURES = 5383


def custom_model(embedding_size=8, units=(64, 32)):
    inputs = keras.Input((FIELDS,), dtype="int32", name="feature")
    linear = keras.layers.Embedding(FEATURES, 1, embeddings_initializer="zeros", name="linear")(inputs)
    embedded = keras.layers.Embedding(
        FEATURES, embedding_size, embeddings_initializer=keras.initializers.RandomNormal(0, 0.1)
    )(inputs)
    pairs = FactorisationMachine()(embedded)
    deep = keras.layers.Flatten()(embedded)
    for count in units:
        deep = keras.layers.Dense(count, activation="relu")(deep)
    deep = keras.layers.Dense(1)(deep)
    linear = keras.layers.GlobalAveragePooling1D()(linear)
    return keras.Model(inputs, keras.layers.add([linear, pairs, deep]))


@keras.saving.register_keras_serializable("deepfm")
class FactorisationMachine(keras.layers.Layer):
    """The sum over all pairs of features of the product of their vectors, in linear time."""

    def call(self, vectors):
        square_of_sum = keras.ops.square(keras.ops.sum(vectors, axis=1))
        sum_of_squares = keras.ops.sum(keras.ops.square(vectors), axis=1)
        return 0.5 * keras.ops.sum(square_of_sum - sum_of_squares, axis=1, keepdims=True)

    def compute_output_shape(self, shape):
        return (shape[0], 1)


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels, predictions, from_logits=True)


def optimizer(lr=0.01):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """Records are tf.train.Example with `feature`, ten numbers, and `label`."""
    features = {"feature": tf.io.FixedLenFeature([FIELDS], tf.int64)}
    if mode != "prediction":
        features["label"] = tf.io.FixedLenFeature([1], tf.int64)

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        numbers = tf.cast(example["feature"], tf.int32)
        return numbers if mode == "prediction" else (numbers, example["label"])

    return dataset.map(parse)


def eval_metrics_fn():
    return {
        "accuracy": keras.metrics.BinaryAccuracy(threshold=0.0),
        "auc": keras.metrics.AUC(from_logits=True),
    }
