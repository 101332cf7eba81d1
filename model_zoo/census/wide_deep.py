"""Census income with a wide & deep network (Cheng et al., 2016).

The wide part is linear in single columns and in pairs of them; the deep part is a network over embeddings
and scaled numbers.
"""

import keras
import tensorflow as tf

# Means and scales are those of the census of 1994, so that nothing has to be fitted first.
NUMBERS = {
    "age": (38.6, 13.7),
    "capital-gain": (1079.0, 7452.0),
    "capital-loss": (87.5, 403.0),
    "hours-per-week": (40.4, 12.4),
}
WORDS = [
    "workclass",
    "education",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native-country",
]
PAIRS = [("education", "occupation"), ("marital-status", "sex")]
BUCKETS = 64
PAIR_BUCKETS = 512


def custom_model(embedding_size=8, units=(64, 32)):
    numbers = keras.Input((len(NUMBERS),), name="numbers")
    words = keras.Input((len(WORDS),), dtype="int32", name="words")
    pairs = keras.Input((len(PAIRS),), dtype="int32", name="pairs")

    def linear(ids, buckets, name):
        weights = keras.layers.Embedding(buckets, 1, embeddings_initializer="zeros", name=name)(ids)
        return keras.layers.Flatten()(weights)

    wide = keras.layers.concatenate(
        [
            linear(words, len(WORDS) * BUCKETS, "wide_words"),
            linear(pairs, len(PAIRS) * PAIR_BUCKETS, "wide_pairs"),
        ]
    )
    wide = keras.ops.sum(wide, axis=1, keepdims=True)
    deep = keras.layers.Embedding(len(WORDS) * BUCKETS, embedding_size, name="deep_words")(words)
    deep = keras.layers.concatenate([keras.layers.Flatten()(deep), numbers])
    for count in units:
        deep = keras.layers.Dense(count, activation="relu")(deep)
    deep = keras.layers.Dense(1)(deep)
    inputs = {"numbers": numbers, "words": words, "pairs": pairs}
    return keras.Model(inputs, keras.layers.add([wide, deep]))


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels, predictions, from_logits=True)


def optimizer(lr=0.005):
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """Records are tf.train.Example with the columns of the census, and `label`: 1 for more than 50 K."""
    features = {name: tf.io.FixedLenFeature([], tf.int64) for name in NUMBERS}
    features |= {name: tf.io.FixedLenFeature([], tf.string) for name in WORDS}
    if mode != "prediction":
        features["label"] = tf.io.FixedLenFeature([1], tf.int64)

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        numbers = [(tf.cast(example[n], tf.float32) - mean) / scale for n, (mean, scale) in NUMBERS.items()]
        words = [
            place * BUCKETS + tf.strings.to_hash_bucket_fast(example[name], BUCKETS)
            for place, name in enumerate(WORDS)
        ]
        pairs = [
            place * PAIR_BUCKETS
            + tf.strings.to_hash_bucket_fast(tf.strings.join([example[a], example[b]], "/"), PAIR_BUCKETS)
            for place, (a, b) in enumerate(PAIRS)
        ]
        inputs = {
            "numbers": tf.stack(numbers),
            "words": tf.cast(tf.stack(words), tf.int32),
            "pairs": tf.cast(tf.stack(pairs), tf.int32),
        }
        return inputs if mode == "prediction" else (inputs, example["label"])

    return dataset.map(parse)


def eval_metrics_fn():
    return {
        "accuracy": keras.metrics.BinaryAccuracy(threshold=0.0),
        "auc": keras.metrics.AUC(from_logits=True),
    }
