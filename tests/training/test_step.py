"""One update, in one process: nothing half-applied, exact weights, random layers that repeat."""

from __future__ import annotations

import itertools
from pathlib import Path

import keras
import numpy as np
import pytest

from edl_allreduce.worker.keras.trainer import Trainer
from edl_allreduce.worker.keras.zoo import ModelDefinition
from edl_allreduce.worker.loop.steps import MicroBatch, StepInput
from edl_allreduce.worker.ring.solo import SoloRing

pytestmark = pytest.mark.tensorflow

BATCH = 12


def model():
    return keras.Sequential(
        [
            keras.layers.Input((5,)),
            keras.layers.Dense(8, activation="relu", kernel_regularizer=keras.regularizers.L2(0.01)),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3),
        ]
    )


def plain_model():
    regularizer = keras.regularizers.L2(0.01)
    return keras.Sequential(
        [
            keras.layers.Input((5,)),
            keras.layers.Dense(8, activation="relu", kernel_regularizer=regularizer),
            keras.layers.Dense(3),
        ]
    )


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def make_trainer(make_model) -> Trainer:
    definition = ModelDefinition(
        path=Path("test.py"),
        model=make_model,
        loss=loss,
        optimizer=lambda: keras.optimizers.Adam(0.01),
        feed=lambda dataset, mode, metadata: dataset,
    )
    trainer = Trainer(definition, SoloRing(), seed=3)
    trainer.build(part(0, BATCH))
    return trainer


def part(start: int, stop: int) -> MicroBatch:
    import tensorflow as tf

    random = np.random.default_rng(0)
    x = random.normal(size=(BATCH, 5)).astype("float32")
    y = random.integers(0, 3, BATCH)
    return MicroBatch(tf.constant(x[start:stop]), tf.constant(y[start:stop]), stop - start)


def test_building_and_tracing_leaves_the_state_untouched():
    keras.utils.set_random_seed(3)
    fresh = [v.numpy() for v in model().variables]
    built = make_trainer(model)
    for expected, got in zip(fresh, built.state(), strict=False):
        np.testing.assert_array_equal(got, expected)
    assert int(built.optimizer.iterations.numpy()) == 0


def test_computing_gradients_changes_nothing_until_they_are_committed():
    trainer = make_trainer(model)
    before = trainer.state()
    own = trainer.compute(StepInput(0, [part(0, BATCH)], 0, BATCH))
    for expected, got in zip(before, trainer.state(), strict=True):
        np.testing.assert_array_equal(got, expected)
    trainer.commit(own, switch=False, stop=False)
    changed = [not np.array_equal(a, b) for a, b in zip(before, trainer.state(), strict=True)]
    assert any(changed)


@pytest.mark.parametrize("cuts", [[6], [1], [5, 9], [4, 8], [1, 2, 3]])
def test_any_split_into_micro_batches_gives_the_same_update(cuts):
    whole, split = make_trainer(plain_model), make_trainer(plain_model)
    for step in range(3):
        a = whole.step(StepInput(step, [part(0, BATCH)], 0, BATCH))
        edges = [0, *cuts, BATCH]
        parts = [part(*edge) for edge in itertools.pairwise(edges)]
        b = split.step(StepInput(step, parts, 0, BATCH))
        assert b.loss == pytest.approx(a.loss, rel=1e-5)
    for expected, got in zip(whole.state(), split.state(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_records_that_are_left_out_do_not_weaken_the_step():
    """Eight of twelve records: the mean over the eight, not a sum that lacks four."""
    trainer, eight = make_trainer(plain_model), make_trainer(plain_model)
    trainer.step(StepInput(0, [part(0, 8)], 0, BATCH))
    eight.step(StepInput(0, [part(0, 8)], 0, 8))
    for expected, got in zip(eight.state(), trainer.state(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


def test_random_layers_draw_the_same_when_a_step_is_repeated_and_anew_in_the_next():
    trainer = make_trainer(model)

    def draw(step: int) -> float:
        return float(trainer.compute(StepInput(step, [part(0, BATCH)], 0, BATCH)).loss)

    assert draw(0) == draw(0)
    assert draw(0) != draw(1)


def test_a_rank_without_records_takes_part_all_the_same():
    trainer = make_trainer(plain_model)
    result = trainer.step(StepInput(0, [], 0, BATCH), switch=True, stop=False)
    assert result.switch and not result.stop
