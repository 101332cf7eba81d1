"""Two layers, SGD with momentum."""

import keras


def custom_model():
    return keras.Sequential(
        [keras.layers.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
    )


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def feed(dataset, mode, metadata):
    return dataset.map(lambda record: (record["x"] / 16.0, record["y"]))
