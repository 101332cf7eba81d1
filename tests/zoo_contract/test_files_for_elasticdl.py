"""A model file as people wrote them for ElasticDL, trained, evaluated and used for prediction unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from edl_allreduce.core.protocol import Plan, Seat
from edl_allreduce.data.datasets import DATASETS
from edl_allreduce.data.example import encode_example
from edl_allreduce.data.recordio import RecordIOWriter
from edl_allreduce.spec import parse_job

pytestmark = pytest.mark.tensorflow

OLD_FILE = """
import tensorflow as tf

from elasticdl.python.common.constants import Mode
from elasticdl.python.common.log_utils import default_logger as logger
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler
from elasticdl.python.worker.prediction_outputs_processor import (
    BasePredictionOutputsProcessor,
)


def custom_model():
    inputs = tf.keras.Input(shape=(8, 8), name="image")
    x = tf.keras.layers.Reshape((8, 8, 1))(inputs)
    x = tf.keras.layers.Conv2D(16, kernel_size=(3, 3), activation="relu")(x)
    x = tf.keras.layers.BatchNormalization(momentum=0.9)(x)
    x = tf.keras.layers.Flatten()(x)
    outputs = tf.keras.layers.Dense(10)(x)
    return tf.keras.Model(inputs=inputs, outputs=outputs, name="digits_model")


def loss(labels, predictions):
    labels = tf.reshape(labels, [-1])
    return tf.reduce_mean(
        input_tensor=tf.nn.sparse_softmax_cross_entropy_with_logits(
            logits=predictions, labels=labels
        )
    )


def optimizer(lr=0.1):
    return tf.optimizers.SGD(lr)


def callbacks():
    def _schedule(model_version):
        return 0.2 if model_version < 40 else 0.05

    LearningRateScheduler(_schedule)
    return [LearningRateScheduler(_schedule)]


def feed(dataset, mode, _):
    def _parse_data(record):
        if mode == Mode.PREDICTION:
            feature_description = {"image": tf.io.FixedLenFeature([8, 8], tf.float32)}
        else:
            feature_description = {
                "image": tf.io.FixedLenFeature([8, 8], tf.float32),
                "label": tf.io.FixedLenFeature([1], tf.int64),
            }
        r = tf.io.parse_single_example(record, feature_description)
        features = {"image": tf.math.divide(tf.cast(r["image"], tf.float32), 16.0)}
        if mode == Mode.PREDICTION:
            return features
        return features, tf.cast(r["label"], tf.int32)

    dataset = dataset.map(_parse_data)
    if mode == Mode.TRAINING:
        dataset = dataset.shuffle(buffer_size=1024)
    return dataset


def eval_metrics_fn():
    return {
        "accuracy": lambda labels, predictions: tf.equal(
            tf.argmax(predictions, 1, output_type=tf.int32),
            tf.cast(tf.reshape(labels, [-1]), tf.int32),
        )
    }


class PredictionOutputsProcessor(BasePredictionOutputsProcessor):
    def process(self, predictions, worker_id):
        logger.info("%d predictions by worker %d", len(predictions), worker_id)
        with open(OUT, "a") as file:
            file.writelines("%d\\n" % row.argmax() for row in predictions.numpy())
"""


@pytest.fixture
def flags(tmp_path):
    splits = DATASETS["digits"].load(None)
    for name, columns in (("train", splits.train), ("test", splits.test)):
        (tmp_path / name).mkdir()
        with RecordIOWriter(tmp_path / name / "data-00000") as writer:
            for image, label in zip(columns["image"], columns["label"], strict=True):
                features = {"image": image.astype("float32"), "label": np.array([label])}
                writer.write(encode_example(features))
    zoo = tmp_path / "zoo" / "digits_old"
    zoo.mkdir(parents=True)
    text = OLD_FILE.replace("OUT", repr(str(tmp_path / "predicted")))
    (zoo / "digits_functional_api.py").write_text(text)
    return {
        "job_name": "old",
        "distribution_strategy": "Local",
        "model_zoo": tmp_path / "zoo",
        "model_def": "digits_old.digits_functional_api.custom_model",
        "minibatch_size": 32,
    }


def test_it_runs_unchanged(flags, tmp_path, capsys):
    from edl_allreduce.worker.lone import LoneMaster
    from edl_allreduce.worker.ring.solo import SoloRing
    from edl_allreduce.worker.start import tasks as pulled
    from edl_allreduce.worker.start.session import prepare_alone

    def parsed(command: str, **more):
        return parse_job(command, [f"--{k}={v}" for k, v in {**flags, **more}.items()]).spec

    train = parsed(
        "train",
        training_data=tmp_path / "train",
        validation_data=tmp_path / "test",
        num_epochs=2,
        checkpoint_dir=tmp_path / "checkpoints",
    )
    lone = LoneMaster(Plan(1, (Seat("local", 0, "127.0.0.1"),)), rank=0)
    engine = prepare_alone(train, lone.attendant(), SoloRing())
    engine.run()
    accuracy = engine.state.journal.metrics["accuracy"]
    assert accuracy is not None and accuracy > 0.7

    trained = {"checkpoint_dir_for_init": tmp_path / "checkpoints"}
    pulled.run_alone(parsed("evaluate", validation_data=tmp_path / "test", **trained))
    assert (
        f"Evaluation metrics[step={engine.state.step}]: {{'accuracy': {accuracy:.6g}"
        in capsys.readouterr().out
    )

    pulled.run_alone(parsed("predict", prediction_data=tmp_path / "test", **trained))
    predicted = np.loadtxt(tmp_path / "predicted", dtype=int)
    labels = DATASETS["digits"].load(None).test["label"]
    assert (predicted == labels).mean() == pytest.approx(accuracy), "in the order of the records"
