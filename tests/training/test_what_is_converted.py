"""A user's functions may branch on tensors; our own code is traced as it stands, which is much quicker."""

from __future__ import annotations

import logging
import subprocess
import sys
import traceback
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_allreduce.data import open_source
from edl_allreduce.worker.keras import trainer as trainers
from edl_allreduce.worker.keras.evaluation import Evaluator
from edl_allreduce.worker.keras.pipeline import Parser
from edl_allreduce.worker.keras.zoo import Mode, ModelDefinition
from edl_allreduce.worker.loop.steps import MicroBatch, StepInput
from edl_allreduce.worker.ring.solo import SoloRing
from edl_allreduce.worker.start.tensorflow_import import avoid_tiles

pytestmark = pytest.mark.tensorflow


def feed(dataset, mode, metadata):
    def parse(record):
        x = record["x"]
        if tf.reduce_sum(x) < 0.0:
            x = -x
        return x, record["y"]

    return dataset.map(parse)


def loss(labels, predictions):
    error = tf.abs(tf.cast(labels, tf.float32) - predictions[:, 0])
    if tf.reduce_max(error) > 1e9:
        error = tf.zeros_like(error)
    return error


def doubled_if_large(labels, predictions):
    result = tf.reduce_mean(tf.cast(labels, tf.float32))
    if result > 1.0:
        result = 2.0 * result
    return result


DEFINITION = ModelDefinition(
    path=Path("test.py"),
    model=lambda: keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)]),
    loss=loss,
    optimizer=lambda: keras.optimizers.SGD(0.1),
    feed=feed,
    eval_metrics=lambda: {"doubled": doubled_if_large},
)


@pytest.fixture
def source(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1, 1, 1], [-1, -2, -3]], "float32"))
    np.save(tmp_path / "y.npy", np.array([2, 4], "int64"))
    return open_source(str(tmp_path))


@pytest.fixture
def batch(source):
    features, labels = Parser(feed, Mode.TRAINING, source.metadata)(source.read([0, 1]), 2)
    return MicroBatch(features, labels, 2)


def test_feed_may_branch_on_a_record(batch):
    np.testing.assert_array_equal(batch.features.numpy(), [[1, 1, 1], [1, 2, 3]])


def test_loss_may_branch_on_a_batch(batch):
    trainer = trainers.Trainer(DEFINITION, SoloRing(), seed=3)
    trainer.build(batch)
    expected = loss(batch.labels, trainer.model(batch.features))
    result = trainer.step(StepInput(0, [batch], 0, 2))
    assert result.loss == pytest.approx(float(tf.reduce_mean(expected)))


def test_a_metric_may_branch_on_a_batch(source):
    evaluator = Evaluator(DEFINITION, DEFINITION.model(), source, chunk=2)
    assert evaluator.conclude(evaluator.measure([0]))["doubled"] == 6.0


def test_our_own_code_is_not_rewritten_when_the_step_is_traced(batch, caplog):
    stacks: list[str] = []

    class Looks(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            stacks.append("".join(traceback.format_stack()))

    caplog.set_level(logging.INFO)
    trainers.log.addHandler(handler := Looks())
    try:
        trainers.Trainer(DEFINITION, SoloRing(), seed=3).build(batch)
    finally:
        trainers.log.removeHandler(handler)
    assert len(stacks) == 1, "the step is traced once"
    assert "_local_graph" in stacks[0]
    assert "autograph" not in stacks[0]


def test_tile_registers_are_avoided_where_the_processor_has_them_and_nobody_asked_for_them(tmp_path):
    with_tiles, without = tmp_path / "with", tmp_path / "without"
    with_tiles.write_text("flags\t: fpu avx512f amx_bf16 avx512_bf16 amx_tile\n")
    without.write_text("flags\t: fpu avx512f\n")
    for processor, given, expected in [
        (with_tiles, {}, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}),
        (with_tiles, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}),
        (without, {}, {}),
        (tmp_path / "none", {}, {}),
    ]:
        environ = dict(given)
        avoid_tiles(environ, processor)
        assert environ == expected, processor


def test_what_only_slows_the_start_down_is_not_imported_and_stays_importable():
    code = """
import gc, sys
from edl_allreduce.worker.start.tensorflow_import import import_tensorflow
import_tensorflow()
assert "keras" in sys.modules and "tensorflow" in sys.modules
assert "sklearn" not in sys.modules
assert gc.isenabled() and gc.get_freeze_count() > 100_000
from sklearn.datasets import load_digits
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
