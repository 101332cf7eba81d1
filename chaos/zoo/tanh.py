"""The model of all jobs of a campaign; `chaos.replay` computes the same in NumPy."""

import os
import time
from pathlib import Path

import keras

from chaos import data

keras.config.set_floatx("float64")
PACE = Path(os.environ.get("CHAOS_PACE", os.devnull))


def custom_model():
    kernel, _, last, _ = (keras.initializers.Constant(value) for value in data.first_weights())
    return keras.Sequential(
        [
            keras.layers.Input((data.FEATURES,), dtype="float64"),
            keras.layers.Dense(data.HIDDEN, activation="tanh", kernel_initializer=kernel, name="hidden"),
            keras.layers.Dense(1, kernel_initializer=last, name="last"),
        ]
    )


def loss(labels, predictions):
    return keras.losses.mean_squared_error(labels, predictions)


@keras.saving.register_keras_serializable("chaos")
class Rate(keras.optimizers.schedules.LearningRateSchedule):
    """Keras' own schedules compute in float32."""

    def __call__(self, step):
        return data.RATE / (1 + data.DECAY * keras.ops.cast(step, "float64"))

    def get_config(self):
        return {}


def optimizer():
    return keras.optimizers.SGD(Rate(), momentum=data.MOMENTUM)


def feed(dataset, mode, metadata):
    return dataset.map(lambda record: (record["x"], record["y"]))


def eval_metrics_fn():
    return {"error": keras.metrics.MeanSquaredError()}


class Pace(keras.callbacks.Callback):
    """Steps take as long as the driver wants: it decides when the job will be over."""

    def on_train_batch_end(self, batch, logs=None):
        text = PACE.read_text()
        if text:
            time.sleep(float(text))


def callbacks():
    return [Pace()]
