"""A model with a `call` of its own, which adds to the loss; weights are averaged over the steps."""

import keras
from mlp import feed, loss

__all__ = ["CustomModel", "feed", "loss", "optimizer"]


@keras.saving.register_keras_serializable("reproducible")
class CustomModel(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = keras.layers.Dense(32, activation="gelu", kernel_regularizer=keras.regularizers.L2(1e-3))
        self.norm = keras.layers.LayerNormalization()
        self.dropout = keras.layers.Dropout(0.2)
        self.last = keras.layers.Dense(10)

    def call(self, inputs, training=False):
        x = self.norm(self.first(inputs))
        self.add_loss(1e-4 * keras.ops.mean(keras.ops.square(x)))
        return self.last(self.dropout(x, training=training))


def optimizer():
    return keras.optimizers.AdamW(0.005, clipnorm=1.0, use_ema=True)
