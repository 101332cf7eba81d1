"""Your own training loop in an elastic job.

    elasticdl data make digits data --format=npy
    elasticdl train --job_name=mine --num_workers=2 --num_epochs=5 \
        --job_command="python examples/own_loop.py data/digits/train model.keras"

Alone: python examples/own_loop.py data/digits/train model.keras
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from edl_allreduce import elastic

data, target = Path(sys.argv[1]), sys.argv[2]
x, y = np.load(data / "image.npy") / np.float32(16), np.load(data / "label.npy")

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [keras.Input((8, 8)), keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
)
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
optimizer.build(model.trainable_variables)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function(reduce_retracing=True)
def gradients_of(features: tf.Tensor, labels: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(features, training=True))
    return tape.gradient(loss, model.trainable_variables), loss


def save() -> str:
    model.save(target)
    return target


with elastic.join(records=len(x), state=[model, optimizer], values={"best": 9.9}, save=save) as job:
    for step in job.steps():
        with step:
            gradients, loss = gradients_of(x[step.indices], y[step.indices])
            optimizer.apply(step.average(gradients, loss), model.trainable_variables)
            job.values["best"] = min(job.values["best"], step.loss)
    print(f"worker {job.worker_id}: finished={job.finished} best loss {job.values['best']:.4f}")
