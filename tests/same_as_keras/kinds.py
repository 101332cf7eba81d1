"""Kinds of models, as a user would write them: each is trained by Keras' own `fit` and by us.

It is also a model file: `--model_def=kinds.subclassed --feed=feed_numbers …` trains one of them as a job.
"""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

CLASSES, WIDTH, WORDS, LENGTH = 3, 12, 10, 6


# ------------------------------------------------------------------------------------------ models


def sequential():
    return keras.Sequential([layers.Input((WIDTH,)), layers.Dense(8, "tanh"), layers.Dense(CLASSES)])


def not_built_sequential():
    return keras.Sequential([layers.Dense(8, "tanh"), layers.Dense(CLASSES)])


def functional():
    inputs = layers.Input((WIDTH,))
    x = layers.Dense(8, "tanh")(inputs)
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.add([x, layers.Dense(8)(inputs)])))


class Subclassed(keras.Model):
    """Batch normalisation and nothing that passes `training` on by hand."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(8)
        self.norm = layers.BatchNormalization(momentum=0.7)
        self.last = layers.Dense(CLASSES)

    def call(self, inputs, training=None):
        return self.last(keras.activations.tanh(self.norm(self.first(inputs))))


def subclassed():
    return Subclassed()


class WithoutTraining(keras.Model):
    """`call` has no argument `training`."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(8)
        self.norm = layers.BatchNormalization(momentum=0.7)
        self.last = layers.Dense(CLASSES)

    def call(self, inputs):
        return self.last(self.norm(self.first(inputs)))


class Block(layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.inner = keras.Sequential([layers.Dense(units, "tanh"), layers.Dense(units)])

    def call(self, inputs):
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(inputs)))
        return self.inner(inputs)


def nested():
    inputs = layers.Input((WIDTH,))
    tower = keras.Sequential([layers.Input((WIDTH,)), Block(6), layers.BatchNormalization(momentum=0.7)])
    return keras.Model(inputs, layers.Dense(CLASSES)(tower(inputs)))


def plain_nested():
    inputs = layers.Input((WIDTH,))
    tower = keras.Sequential([layers.Input((WIDTH,)), Block(6)])
    return keras.Model(inputs, layers.Dense(CLASSES)(tower(inputs)))


def shared():
    inputs = layers.Input((WIDTH,))
    both = layers.Dense(WIDTH, "tanh")
    return keras.Model(inputs, layers.Dense(CLASSES)(both(both(inputs))))


def regularised():
    l1, l2 = keras.regularizers.L1(0.01), keras.regularizers.L2(0.02)
    return keras.Sequential(
        [
            layers.Input((WIDTH,)),
            layers.Dense(8, "tanh", kernel_regularizer=l2, bias_regularizer=l1, activity_regularizer=l2),
            layers.Dense(CLASSES, kernel_constraint=keras.constraints.MaxNorm(0.5)),
        ]
    )


class SummedLoss(layers.Layer):
    """Adds a sum over the records, not their mean."""

    def call(self, inputs):
        self.add_loss(0.001 * keras.ops.sum(keras.ops.square(inputs)))
        return inputs


def adds_a_sum():
    return keras.Sequential(
        [layers.Input((WIDTH,)), layers.Dense(8, "tanh"), SummedLoss(), layers.Dense(CLASSES)]
    )


def batch_norm():
    return keras.Sequential(
        [
            layers.Input((WIDTH,)),
            layers.Reshape((4, 3, 1)),
            layers.Conv2D(4, 2),
            layers.BatchNormalization(momentum=0.7),
            layers.Activation("relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES),
        ]
    )


def frozen():
    model = functional()
    model.layers[1].trainable = False
    return model


class PartlyUsed(keras.Model):
    """Has a layer that the loss never sees: Keras leaves it alone, weight decay included."""

    def __init__(self):
        super().__init__()
        self.used = layers.Dense(CLASSES)
        self.unused = layers.Dense(4)

    def call(self, inputs):
        self.unused(inputs)
        return self.used(inputs)


def recurrent():
    return keras.Sequential(
        [
            layers.Input((LENGTH,), dtype="int64"),
            layers.Embedding(WORDS, 5, mask_zero=True),
            layers.LSTM(6),
            layers.Dense(CLASSES),
        ]
    )


def vocabulary():
    """Of so large a table only those rows travel that a batch looks at."""
    return keras.Sequential(
        [
            layers.Input((LENGTH,), dtype="int64"),
            layers.Embedding(20_000, 16),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )


def gated():
    return keras.Sequential(
        [
            layers.Input((LENGTH,), dtype="int64"),
            layers.Embedding(WORDS, 5),
            layers.Bidirectional(layers.GRU(4, return_sequences=True)),
            layers.GlobalMaxPooling1D(),
            layers.Dense(CLASSES),
        ]
    )


def attention():
    inputs = layers.Input((LENGTH,), dtype="int64")
    x = layers.Embedding(WORDS, 8, mask_zero=True)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))


def tagger():
    """One answer per word; padding is masked out of the loss by Keras itself."""
    return keras.Sequential(
        [
            layers.Input((LENGTH,), dtype="int64"),
            layers.Embedding(WORDS, 5, mask_zero=True),
            layers.SimpleRNN(6, return_sequences=True),
            layers.Dense(CLASSES),
        ]
    )


def two_inputs_and_outputs():
    numbers = layers.Input((WIDTH,), name="numbers")
    words = layers.Input((LENGTH,), dtype="int64", name="words")
    x = layers.Concatenate()([layers.Dense(6)(numbers), layers.Flatten()(layers.Embedding(WORDS, 3)(words))])
    return keras.Model(
        {"numbers": numbers, "words": words},
        {"kind": layers.Dense(CLASSES, name="kind")(x), "size": layers.Dense(1, name="size")(x)},
    )


def dropout():
    return keras.Sequential(
        [layers.Input((WIDTH,)), layers.Dense(8, "tanh"), layers.Dropout(0.5, seed=7), layers.Dense(CLASSES)]
    )


# ------------------------------------------------------------------------------------------ losses


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def mean_loss(labels, predictions):
    return tf.reduce_mean(loss(labels, predictions))


def summed_loss(labels, predictions):
    return 0.1 * tf.reduce_sum(loss(labels, predictions))


masked_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def two_losses(labels, predictions):
    size = keras.losses.mean_squared_error(labels["size"], predictions["size"])
    return loss(labels["kind"], predictions["kind"]) + 0.5 * size


def optimizer():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def feed(dataset, mode, metadata):
    return dataset.map(lambda record: (record["numbers"], record["kind"]))


def feed_words(dataset, mode, metadata):
    return dataset.map(lambda record: (record["words"], record["kind"]))


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
