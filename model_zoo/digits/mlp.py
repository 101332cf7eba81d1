"""Handwritten digits, 8 x 8 pixels: a small network that trains in seconds."""

import keras


def custom_model():
    return keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer(lr=0.1):
    return keras.optimizers.SGD(lr, momentum=0.9)


def feed(dataset, mode, metadata):
    # `elasticdl data make digits` writes image and label; x and y are the same as flat columns.
    image, label = ("image", "label") if "image" in metadata.column_names else ("x", "y")

    def pixels(record):
        return keras.ops.reshape(keras.ops.cast(record[image], "float32"), (64,)) / 16.0

    if mode == "prediction":
        return dataset.map(pixels)
    return dataset.map(lambda record: (pixels(record), record[label]))


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
