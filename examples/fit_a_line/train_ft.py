"""The documents' example "fit a line": a linear regression with thirteen features, in an elastic job.

    elasticdl train --job_name=fit-a-line --num_workers=2 --num_epochs=50 \
        --job_command="python examples/fit_a_line/train_ft.py"

Alone: python examples/fit_a_line/train_ft.py. As a TrainingJob: manifests/examples/examplejob.yaml.
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from edl_allreduce import elastic

RECORDS, FEATURES, NOISE = 4096, 13, 0.1

# Records that every worker makes for itself, all the same: houses and what they cost.
random = np.random.default_rng(1)
x = random.normal(size=(RECORDS, FEATURES)).astype("float32")
truth = random.normal(size=(FEATURES, 1)).astype("float32")
y = x @ truth + 22.5 + NOISE * random.normal(size=(RECORDS, 1)).astype("float32")

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.01)
optimizer.build(model.trainable_variables)
loss_of = keras.losses.MeanSquaredError()


@tf.function(reduce_retracing=True)
def gradients_of(features: tf.Tensor, prices: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    with tf.GradientTape() as tape:
        loss = loss_of(prices, model(features, training=True))
    return tape.gradient(loss, model.trainable_variables), loss


def save() -> str:
    """Only where a path was given: pods of the example have no volume."""
    if len(sys.argv) < 2:
        return ""
    model.save(Path(sys.argv[1]))
    return sys.argv[1]


with elastic.join(records=RECORDS, state=[model, optimizer], save=save) as job:
    for step in job.steps():
        with step:
            gradients, loss = gradients_of(x[step.indices], y[step.indices])
            optimizer.apply(step.average(gradients, loss), model.trainable_variables)
    error = float(np.abs(model.trainable_variables[0] - truth).max())
    print(f"worker {job.worker_id}: finished={job.finished} furthest coefficient off by {error:.4f}")
