"""What of Keras would have no effect here is refused with a clear word, or told."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_allreduce.errors import ModelError, NotFinite
from edl_allreduce.spec import OnNan
from edl_allreduce.worker.keras.trainer import Trainer
from edl_allreduce.worker.keras.zoo import ModelDefinition
from edl_allreduce.worker.loop.steps import MicroBatch, StepInput
from edl_allreduce.worker.ring.solo import SoloRing
from tests.same_as_keras import kinds

pytestmark = pytest.mark.tensorflow

BATCH = 6


def sample() -> MicroBatch:
    random = np.random.default_rng(0)
    numbers = random.normal(size=(BATCH, kinds.WIDTH)).astype("float32")
    return MicroBatch(tf.constant(numbers), tf.constant(random.integers(0, 3, BATCH)), BATCH)


def train(model=kinds.functional, loss=kinds.loss, optimizer=kinds.optimizer, on_nan=OnNan.STOP) -> Trainer:
    definition = ModelDefinition(Path("mine.py"), model, loss, optimizer, lambda data, mode, more: data)
    trainer = Trainer(definition, SoloRing(), 1, on_nan=on_nan)
    trainer.build(sample())
    return trainer


def step(trainer: Trainer, number: int = 0):
    return trainer.step(StepInput(number, [sample()], 0, BATCH))


def overriding(name: str):
    body = {name: lambda self, *arguments, **more: None, "call": lambda self, inputs: inputs}
    return type("Mine", (keras.Model,), body)


@pytest.mark.parametrize("name", ["train_step", "compute_loss", "test_step", "make_train_function"])
def test_a_model_that_changes_how_fit_works(name):
    with pytest.raises(ModelError, match=rf"mine.py: Mine overrides {name}\(\).*own-loop.md"):
        train(overriding(name))


def test_a_model_that_the_loss_does_not_depend_on():
    with pytest.raises(ModelError, match="does not depend on any trainable variable"):
        train(loss=lambda labels, predictions: tf.cast(labels, tf.float32))


def test_compile_has_no_effect_and_that_is_told():
    def compiled():
        model = kinds.functional()
        model.compile("adam", loss="mse")
        return model

    assert any("model.compile()" in text for text in train(compiled).notices)


def test_a_call_without_training_is_told_where_it_matters():
    assert any("no argument `training`" in text for text in train(kinds.WithoutTraining).notices)
    assert not train(kinds.PartlyUsed).notices


@pytest.mark.parametrize("loss", [kinds.loss, kinds.mean_loss])
def test_means_need_no_word(loss):
    assert not train(loss=loss).notices


def test_a_sum_is_told():
    assert any("the loss is a sum" in text for text in train(loss=kinds.summed_loss).notices)
    assert any("a layer adds is a sum" in text for text in train(kinds.adds_a_sum).notices)


def test_a_loss_that_compares_records_with_each_other_is_told():
    def contrastive(labels, predictions):
        alike = tf.matmul(predictions, predictions, transpose_b=True)
        return keras.losses.sparse_categorical_crossentropy(
            tf.range(tf.shape(alike)[0]), alike, from_logits=True
        )

    assert any("depends on the others in its batch" in text for text in train(loss=contrastive).notices)


class Noisy(keras.Model):
    """Draws without a seed of its own."""

    def __init__(self):
        super().__init__()
        self.last = keras.layers.Dense(kinds.CLASSES)

    def call(self, inputs, training=None):
        return self.last(inputs + keras.random.normal(tf.shape(inputs)))


def test_random_numbers_without_a_seed_are_new_in_each_step_and_the_same_when_it_is_repeated():
    trainer = train(Noisy)

    def loss_of(number: int) -> float:
        return float(trainer.compute(StepInput(number, [sample()], 0, BATCH)).loss)

    assert loss_of(3) == loss_of(3) != loss_of(4)


def divided_by_zero(labels, predictions):
    return kinds.loss(labels, predictions) / tf.cast(tf.size(labels) - BATCH, tf.float32)


def changed(trainer: Trainer, before) -> bool:
    return any(not np.array_equal(a, b) for a, b in zip(before, trainer.state(), strict=True))


def test_a_loss_that_is_not_finite_stops_before_anything_is_applied():
    trainer = train(loss=divided_by_zero)
    before = trainer.state()
    with pytest.raises(NotFinite):
        step(trainer)
    assert not changed(trainer, before)


def test_an_update_that_is_not_finite_can_be_left_out():
    trainer = train(loss=divided_by_zero, on_nan=OnNan.SKIP)
    before = trainer.state()
    assert not step(trainer).finite
    assert not changed(trainer, before)


def test_a_gradient_that_is_not_finite_counts_although_the_loss_is():
    """The derivative of the square root at zero."""

    def loss(labels, predictions):
        return tf.sqrt(tf.nn.relu(predictions - 1e6)) + kinds.loss(labels, predictions)[:, None]

    trainer = train(loss=loss, on_nan=OnNan.SKIP)
    before = trainer.state()
    result = step(trainer)
    assert np.isfinite(result.loss) and not result.finite
    assert not changed(trainer, before)


def test_whoever_wants_to_can_train_on():
    trainer = train(loss=divided_by_zero, on_nan=OnNan.CONTINUE)
    assert not step(trainer).finite
    assert np.isnan(trainer.model.trainable_variables[0].numpy()).any()


def test_outputs_that_are_no_batches_are_passed_on():
    class Several(keras.Model):
        def __init__(self):
            super().__init__()
            self.last = keras.layers.Dense(kinds.CLASSES)

        def call(self, inputs, training=None):
            outputs = self.last(inputs)
            return outputs, None, tf.reduce_mean(outputs)

    def loss(labels, predictions):
        return kinds.loss(labels, predictions[0]) + 0.01 * predictions[2]

    assert step(train(Several, loss)).finite


def test_a_loss_that_takes_one_size_only_is_taken_for_a_mean_and_that_is_told():
    def fixed(labels, predictions):
        return tf.reshape(kinds.loss(labels, predictions), [BATCH])

    trainer = train(loss=fixed)
    assert any("could not be tried" in text for text in trainer.notices)
    assert step(trainer).finite


class Counting(keras.Model):
    """Whole numbers that a float32 cannot hold, one of which counts."""

    def __init__(self):
        super().__init__()
        self.last = keras.layers.Dense(kinds.CLASSES)
        self.norm = keras.layers.BatchNormalization()
        self.key = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)
        self.seen = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)
        self.begun = self.add_weight(shape=(), dtype="bool", initializer="zeros", trainable=False)

    def call(self, inputs, training=None):
        self.seen.assign_add(1)
        self.begun.assign(True)
        return self.last(self.norm(inputs))


def test_whole_numbers_stay_what_they_are():
    trainer = train(Counting)
    trainer.model.key.assign(2**40 + 1)
    trainer.model.seen.assign(2**40)
    for number in range(3):
        step(trainer, number)
    assert int(trainer.model.key) == 2**40 + 1
    assert int(trainer.model.seen) == 2**40 + 3
    assert bool(trainer.model.begun.numpy())


def test_a_step_without_a_record_teaches_batch_normalisation_nothing():
    trainer = train(Counting)
    before = trainer.model.norm.moving_variance.numpy()
    trainer.step(StepInput(0, [], 0, BATCH))
    np.testing.assert_array_equal(trainer.model.norm.moving_variance.numpy(), before)


def test_leaving_updates_out_does_not_keep_the_scale_of_the_loss_from_falling():
    def scaled():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0**127)

    def large(labels, predictions):
        return 1000 * kinds.loss(labels, predictions)

    trainer = train(loss=large, optimizer=scaled, on_nan=OnNan.SKIP)
    for number in range(20):
        assert step(trainer, number).finite
    assert int(trainer.optimizer.iterations) > 0
