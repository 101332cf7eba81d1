"""Handwritten digits, 8 x 8 pixels: a small convolutional network, the model of `make demo`."""

import keras


def custom_model():
    return keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer(lr=0.02):
    return keras.optimizers.SGD(lr, momentum=0.9)


def feed(dataset, mode, metadata):
    return dataset.map(lambda record: (record["x"] / 16.0, record["y"]))
