"""A compiled Keras model in an elastic job: `elastic.fit` beside `model.fit`.

    elasticdl data make digits data --format=npy
    elasticdl train --job_name=fit --num_workers=2 \
        --job_command="python examples/fit.py data/digits/train model.keras"

Alone: python examples/fit.py data/digits/train model.keras
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np

from edl_allreduce import elastic

data, target = Path(sys.argv[1]), sys.argv[2]
x, y = np.load(data / "image.npy") / np.float32(16), np.load(data / "label.npy")
x_val, y_val = x[:100], y[:100]

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [keras.Input((8, 8)), keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
)
model.compile(
    keras.optimizers.SGD(0.1, momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = elastic.fit(
    model,
    x,
    y,
    batch_size=48,
    epochs=4,
    shuffle=False,
    class_weight={0: 2.0},
    validation_data=(x_val, y_val),
    callbacks=[
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.2),
        keras.callbacks.ModelCheckpoint(target.replace(".keras", "-{epoch}.keras")),
    ],
    save=target,
)
print(f"history of rank {elastic.rank()}:", json.dumps(history.history))
