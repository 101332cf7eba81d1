"""The network of mnist_functional_api as a subclass; the rest of the contract comes from there."""

import keras
from mnist.mnist_functional_api import eval_metrics_fn, feed, loss, optimizer

__all__ = ["CustomModel", "eval_metrics_fn", "feed", "loss", "optimizer"]


@keras.saving.register_keras_serializable("mnist")
class CustomModel(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.reshape = keras.layers.Reshape((28, 28, 1))
        self.conv1 = keras.layers.Conv2D(32, 3, activation="relu")
        self.conv2 = keras.layers.Conv2D(64, 3, activation="relu")
        self.pool = keras.layers.MaxPooling2D()
        self.norm = keras.layers.BatchNormalization(momentum=0.9)
        self.dropout = keras.layers.Dropout(0.25)
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(10)

    def call(self, inputs, training=False):
        x = self.pool(self.conv2(self.conv1(self.reshape(inputs))))
        x = self.dropout(self.norm(x, training=training), training=training)
        return self.dense(self.flatten(x))
