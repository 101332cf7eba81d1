"""As people wrote them for ElasticDL: tf.keras, a mean in the loss, a schedule of the rate as a callback."""

import tensorflow as tf
from elasticdl.python.common.constants import Mode
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler


def custom_model():
    inputs = tf.keras.Input(shape=(64,), name="image")
    x = tf.keras.layers.Reshape((8, 8, 1))(inputs)
    x = tf.keras.layers.Conv2D(8, kernel_size=(3, 3), activation="relu")(x)
    x = tf.keras.layers.BatchNormalization(momentum=0.9)(x)
    x = tf.keras.layers.Dropout(0.25)(x)
    x = tf.keras.layers.Flatten()(x)
    outputs = tf.keras.layers.Dense(10)(x)
    return tf.keras.Model(inputs=inputs, outputs=outputs)


def loss(labels, predictions):
    labels = tf.reshape(labels, [-1])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=predictions, labels=labels))


def optimizer(lr=0.1):
    return tf.optimizers.SGD(lr)


def callbacks():
    return [LearningRateScheduler(lambda step: 0.1 if step < 20 else 0.05)]


def feed(dataset, mode, _):
    def parse(record):
        image = tf.math.divide(tf.cast(record["x"], tf.float32), 16.0)
        return image if mode == Mode.PREDICTION else (image, tf.cast(record["y"], tf.int32))

    dataset = dataset.map(parse)
    return dataset.shuffle(buffer_size=1024) if mode == Mode.TRAINING else dataset
